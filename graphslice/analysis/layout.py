"""A molecule as RDKit draws it, in lines and areas that any picture can take; and where numbers go beside it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from xml.etree import ElementTree

import numpy as np
from matplotlib.path import Path as Curve
from rdkit import Chem
from rdkit.Chem.Draw import rdMolDraw2D

# Pixels of an ångström while RDKit draws: coordinates have one decimal.
_SCALE = 100.0
_CODES = {"M": int(Curve.MOVETO), "L": int(Curve.LINETO), "Q": int(Curve.CURVE3), "C": int(Curve.CURVE4)}
#: How far from an atom a coloured disc reaches, in bond lengths.
DISC = 0.3
# Where numbers are tried: directions, and how far beyond the disc or the label.
_ANGLES = np.arange(32) * (2 * np.pi / 32)
_GAPS = (0.03, 0.12, 0.25, 0.4, 0.6, 0.85, 1.15, 1.5, 1.9, 2.4)
# What overlaps cost beside a distance of one bond length.
_ON_LINE, _ON_DISC, _ON_TEXT = 40.0, 12.0, 400.0


@dataclass
class Depiction:
    """A molecule in bond lengths, y upwards.

    Attributes:
        atoms: ``float64 [N, 2]``, in the order of the SMILES.
        segments: ``float64 [S, 2, 2]``, the ends of the bonds and of all that is drawn as lines.
        lines: what is drawn as lines.
        areas: what is filled: letters and wedges.
        labels: ``float64 [L, 4]``, the boxes (left, bottom, right, top) of the letters at atoms.
        label_atoms: ``int64 [L]``, whose letters these are.
    """

    atoms: np.ndarray
    segments: np.ndarray
    lines: list[Curve]
    areas: list[Curve]
    labels: np.ndarray
    label_atoms: np.ndarray

    @property
    def box(self) -> tuple[float, float, float, float]:
        """Left, bottom, right and top of it all, the discs around its atoms included."""
        corners = [self.atoms - DISC, self.atoms + DISC, self.labels[:, :2], self.labels[:, 2:]]
        points = np.concatenate(corners)
        return *points.min(axis=0), *points.max(axis=0)


def prepare_molecule(smiles: str, kekulize: bool = True) -> Chem.Mol:
    """The molecule of a SMILES, laid out, its atoms in their order."""
    # Without the hydrogens that RDKit puts at some stereocentres: they would be atoms without a value.
    return rdMolDraw2D.PrepareMolForDrawing(Chem.MolFromSmiles(smiles), kekulize=kekulize, addChiralHs=False)


def depict(smiles: str) -> Depiction:
    """Lay a molecule out and draw it, without colours of elements: colours say what atoms add."""
    try:
        mol = prepare_molecule(smiles)
    except Chem.KekulizeException:
        mol = prepare_molecule(smiles, kekulize=False)
    drawing = rdMolDraw2D.MolDraw2DSVG(-1, -1)
    options: Any = drawing.drawOptions()
    options.useBWAtomPalette()
    options.scalingFactor = _SCALE
    options.fixedFontSize = 44 if mol.GetNumBonds() else 30
    options.clearBackground = False
    options.prepareMolsBeforeDrawing = False
    drawing.DrawMolecule(mol)
    places = [drawing.GetDrawCoords(i) for i in range(mol.GetNumAtoms())]
    drawing.FinishDrawing()
    atoms = np.array([(place.x, -place.y) for place in places])
    ends = np.array([(b.GetBeginAtomIdx(), b.GetEndAtomIdx()) for b in mol.GetBonds()], np.int64).reshape(-1, 2)
    lengths = np.linalg.norm(atoms[ends[:, 0]] - atoms[ends[:, 1]], axis=1)
    unit = float(np.median(lengths)) if len(lengths) else _SCALE
    lines, areas, labels, label_atoms = _parts(drawing.GetDrawingText(), unit)
    corners = [np.asarray(line.vertices, np.float64) for line in lines]
    drawn = [np.stack([points[:-1], points[1:]], axis=1) for points in corners]
    segments = np.concatenate([(atoms / unit)[ends], *drawn])
    long = np.linalg.norm(segments[:, 0] - segments[:, 1], axis=1) > 0.1  # the others round off corners
    return Depiction(atoms / unit, segments[long], lines, areas, labels, label_atoms)


def _parts(svg: str, unit: float) -> tuple[list[Curve], list[Curve], np.ndarray, np.ndarray]:
    """The lines and the areas of RDKit's SVG, the boxes of the letters at atoms, and whose they are."""
    lines: list[Curve] = []
    areas: list[Curve] = []
    boxes: dict[int, list[np.ndarray]] = {}
    for path in ElementTree.fromstring(svg).iter("{http://www.w3.org/2000/svg}path"):
        curve = _curve(path.get("d", ""), unit)
        letters = path.get("fill") is not None
        (areas if letters or "fill:none" not in path.get("style", "") else lines).append(curve)
        if letters:
            atom = int((path.get("class") or "atom-0").split("-")[1])
            boxes.setdefault(atom, []).append(np.array(curve.get_extents().extents))
    labels = [(*np.min(each, axis=0)[:2], *np.max(each, axis=0)[2:]) for each in boxes.values()]
    return lines, areas, np.array(labels, np.float64).reshape(-1, 4), np.array(list(boxes), np.int64)


def _curve(data: str, unit: float) -> Curve:
    """A path of RDKit's SVG: M, L, Q, C and Z with absolute coordinates."""
    points: list[tuple[float, float]] = []
    codes: list[int] = []
    for letter, numbers in re.findall(r"([A-Z])([^A-Z]*)", data):
        values = [float(number) for number in re.findall(r"-?[\d.]+(?:e-?\d+)?", numbers)]
        if letter == "Z":
            points.append(points[0])
            codes.append(int(Curve.CLOSEPOLY))
            continue
        pairs = [(x / unit, -y / unit) for x, y in zip(values[::2], values[1::2], strict=True)]
        points += pairs
        codes += [_CODES[letter]] * len(pairs)
    return Curve(np.array(points), codes)


def place_boxes(drawn: Depiction, sizes: Sequence[tuple[float, float]]) -> np.ndarray:
    """``float64 [N, 4]``: a box beside each atom that covers neither lines, letters nor other boxes, where it can.

    The most hemmed in atoms come first; then each is placed again, among all the others.

    Args:
        drawn: the molecule.
        sizes: width and height of each box, in bond lengths.
    """
    count = len(drawn.atoms)
    tried = [_candidates(drawn, i, sizes[i]) for i in range(count)]
    fixed = [_fixed_costs(drawn, i, boxes) + distances for i, (boxes, distances) in enumerate(tried)]
    placed = np.full((count, 4), np.nan)
    first = np.argsort([-np.sort(costs)[:12].mean() for costs in fixed], kind="stable")
    for turn in range(3):
        for i in first:
            others = np.delete(placed, i, axis=0)
            others = others[~np.isnan(others[:, 0])]
            on_others = _overlap(_expand(tried[i][0], 0.04), others).sum(axis=1)
            costs = fixed[i] + _ON_TEXT * on_others + 20.0 * (on_others > 0)
            placed[i] = tried[i][0][costs.argmin()]
        if turn and not _overlap(placed, placed)[~np.eye(count, dtype=bool)].any():
            break
    return placed


def _candidates(drawn: Depiction, atom: int, size: tuple[float, float]) -> tuple[np.ndarray, np.ndarray]:
    """``[K, 4]`` boxes around an atom, and ``[K]`` what their distances cost."""
    x, y = drawn.atoms[atom]
    left, bottom, right, top = x - DISC, y - DISC, x + DISC, y + DISC
    for box in drawn.labels[drawn.label_atoms == atom]:
        left, bottom, right, top = min(left, box[0]), min(bottom, box[1]), max(right, box[2]), max(top, box[3])
    half = np.array(size) / 2
    boxes, costs = [], []
    for gap in _GAPS:
        for angle in _ANGLES:
            way = np.array([np.cos(angle), np.sin(angle)])
            # So far out that the box leaves that of the disc and the letters, at a corner or a side.
            reach = np.where(way > 0, np.array([right - x, top - y]), np.array([x - left, y - bottom])) + half
            away = np.min(reach / np.maximum(np.abs(way), 1e-9)) + gap
            centre = np.array([x, y]) + way * away
            boxes.append([*(centre - half), *(centre + half)])
            costs.append(away + gap)
    return np.array(boxes), np.array(costs)


def _fixed_costs(drawn: Depiction, atom: int, boxes: np.ndarray) -> np.ndarray:
    """``[K]``: what boxes cover that stays where it is."""
    reach = np.abs(boxes - np.tile(drawn.atoms[atom], 2)).max()
    near = (np.abs(drawn.segments - drawn.atoms[atom]).max(axis=2) < reach + 1).any(axis=1)
    costs = _ON_LINE * _intersects(_expand(boxes, 0.06), drawn.segments[near]).sum(axis=1).astype(float)
    costs += _ON_TEXT * (_overlap(_expand(boxes, 0.03), drawn.labels) > 0).sum(axis=1)
    discs = np.hstack([drawn.atoms - DISC, drawn.atoms + DISC])
    costs += _ON_DISC * (_overlap(boxes, np.delete(discs, atom, axis=0)) > 0.01).sum(axis=1)
    centres = (boxes[:, :2] + boxes[:, 2:]) / 2
    own = np.linalg.norm(centres - drawn.atoms[atom], axis=1)
    others = np.linalg.norm(centres[:, None] - np.delete(drawn.atoms, atom, axis=0), axis=2)
    nearer = np.maximum(0, own - others.min(axis=1, initial=np.inf))  # it would be read as another atom's
    return costs + 3.0 * nearer


def _expand(boxes: np.ndarray, by: float) -> np.ndarray:
    return boxes + np.array([-by, -by, by, by])


def _overlap(boxes: np.ndarray, others: np.ndarray) -> np.ndarray:
    """``[K, M]``: the area that each of K boxes shares with each of M."""
    low = np.maximum(boxes[:, None, :2], others[None, :, :2])
    high = np.minimum(boxes[:, None, 2:], others[None, :, 2:])
    return np.prod(np.clip(high - low, 0, None), axis=2)


def _intersects(boxes: np.ndarray, segments: np.ndarray) -> np.ndarray:
    """``bool [K, M]``: whether each of M segments ``[M, 2, 2]`` meets each of K boxes."""
    start, way = segments[:, 0], segments[:, 1] - segments[:, 0]
    way = np.where(np.abs(way) < 1e-9, 1e-9, way)
    one = (boxes[:, None, :2] - start) / way
    other = (boxes[:, None, 2:] - start) / way
    enters = np.minimum(one, other).max(axis=2)
    leaves = np.maximum(one, other).min(axis=2)
    return (enters <= leaves) & (leaves >= 0) & (enters <= 1)
