"""Molecule layout from RDKit as lines and areas for any drawing library, and placement of labels at the atoms."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from xml.etree import ElementTree

import numpy as np
from matplotlib.path import Path as Curve
from rdkit import Chem

from graphslice.report.drawing import drawing_module

# Pixels per ångström in RDKit's drawing, whose coordinates have one decimal.
_SCALE = 100.0
_CODES = {"M": int(Curve.MOVETO), "L": int(Curve.LINETO), "Q": int(Curve.CURVE3), "C": int(Curve.CURVE4)}
#: Radius of the coloured disc around an atom, in bond lengths.
DISC = 0.3
# Candidate label positions: angles, and gaps beyond the disc or the atom label in bond lengths.
_ANGLES = np.arange(32) * (2 * np.pi / 32)
_GAPS = (0.03, 0.12, 0.25, 0.4, 0.6, 0.85, 1.15, 1.5, 1.9, 2.4)
# Costs of overlaps of a label, relative to a distance of one bond length.
_ON_LINE, _ON_DISC, _ON_TEXT = 40.0, 12.0, 400.0


@dataclass
class Depiction:
    """Layout of a molecule with N atoms; the unit is one bond length, and the y axis points upwards.

    Attributes:
        atoms: ``float64 [N, 2]``, in SMILES order.
        segments: ``float64 [S, 2, 2]``, end points of the bonds and of all drawn lines.
        lines: outlines to draw as lines.
        areas: outlines to fill: letters and wedges.
        labels: ``float64 [L, 4]``, boxes (left, bottom, right, top) of the atom labels.
        label_atoms: ``int64 [L]``, atom of each label.
    """

    atoms: np.ndarray
    segments: np.ndarray
    lines: list[Curve]
    areas: list[Curve]
    labels: np.ndarray
    label_atoms: np.ndarray

    @property
    def box(self) -> tuple[float, float, float, float]:
        """Bounding box (left, bottom, right, top), including the discs around the atoms."""
        corners = [self.atoms - DISC, self.atoms + DISC, self.labels[:, :2], self.labels[:, 2:]]
        points = np.concatenate(corners)
        return *points.min(axis=0), *points.max(axis=0)


def depict(smiles: str) -> Depiction:
    """Compute the layout of a molecule, without element colours, as colours show atom contributions."""
    module, mol = drawing_module(), Chem.MolFromSmiles(smiles)
    # RDKit would add explicit hydrogens at some stereocentres: atoms without a value.
    try:
        mol = module.PrepareMolForDrawing(mol, addChiralHs=False)
    except Chem.KekulizeException:
        mol = module.PrepareMolForDrawing(mol, kekulize=False, addChiralHs=False)
    drawing = module.MolDraw2DSVG(-1, -1)
    options: Any = drawing.drawOptions()
    options.useBWAtomPalette()
    options.scalingFactor = _SCALE
    options.fixedFontSize = 44 if mol.GetNumBonds() else 30
    options.clearBackground = False
    options.prepareMolsBeforeDrawing = False
    drawing.DrawMolecule(mol)
    coordinates = [drawing.GetDrawCoords(i) for i in range(mol.GetNumAtoms())]
    drawing.FinishDrawing()
    atoms = np.array([(point.x, -point.y) for point in coordinates])
    ends = np.array([(b.GetBeginAtomIdx(), b.GetEndAtomIdx()) for b in mol.GetBonds()], np.int64).reshape(-1, 2)
    lengths = np.linalg.norm(atoms[ends[:, 0]] - atoms[ends[:, 1]], axis=1)
    unit = float(np.median(lengths)) if len(lengths) else _SCALE
    lines, areas, labels, label_atoms = _parts(drawing.GetDrawingText(), unit)
    corners = [np.asarray(line.vertices, np.float64) for line in lines]
    curve_segments = [np.stack([points[:-1], points[1:]], axis=1) for points in corners]
    segments = np.concatenate([(atoms / unit)[ends], *curve_segments])
    long = np.linalg.norm(segments[:, 0] - segments[:, 1], axis=1) > 0.1  # shorter ones only round off corners
    return Depiction(atoms / unit, segments[long], lines, areas, labels, label_atoms)


def _parts(svg: str, unit: float) -> tuple[list[Curve], list[Curve], np.ndarray, np.ndarray]:
    """Extract lines, filled areas, label boxes and their atoms from RDKit's SVG."""
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
    labels = [(*np.min(extents, axis=0)[:2], *np.max(extents, axis=0)[2:]) for extents in boxes.values()]
    return lines, areas, np.array(labels, np.float64).reshape(-1, 4), np.array(list(boxes), np.int64)


def _curve(data: str, unit: float) -> Curve:
    """Convert a path of RDKit's SVG (commands M, L, Q, C and Z with absolute coordinates)."""
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


def place_boxes(layout: Depiction, sizes: Sequence[tuple[float, float]]) -> np.ndarray:
    """Place a label box at each atom, avoiding lines, atom labels and other boxes where possible.

    Greedy placement starts with the most crowded atoms; then every box is placed again, given all others.

    Args:
        layout: layout of the molecule.
        sizes: width and height of each box, in bond lengths.

    Returns:
        ``float64 [N, 4]``: boxes (left, bottom, right, top).
    """
    count = len(layout.atoms)
    candidates = [_candidates(layout, i, sizes[i]) for i in range(count)]
    fixed = [_fixed_costs(layout, i, boxes) + distances for i, (boxes, distances) in enumerate(candidates)]
    placed = np.full((count, 4), np.nan)
    order = np.argsort([-np.sort(costs)[:12].mean() for costs in fixed], kind="stable")
    for iteration in range(3):
        for i in order:
            others = np.delete(placed, i, axis=0)
            others = others[~np.isnan(others[:, 0])]
            overlaps = _overlap(_expand(candidates[i][0], 0.04), others).sum(axis=1)
            costs = fixed[i] + _ON_TEXT * overlaps + 20.0 * (overlaps > 0)
            placed[i] = candidates[i][0][costs.argmin()]
        if iteration and not _overlap(placed, placed)[~np.eye(count, dtype=bool)].any():
            break
    return placed


def _candidates(layout: Depiction, atom: int, size: tuple[float, float]) -> tuple[np.ndarray, np.ndarray]:
    """Compute candidate boxes around an atom, ``[K, 4]``, and the costs of their distances, ``[K]``."""
    x, y = layout.atoms[atom]
    left, bottom, right, top = x - DISC, y - DISC, x + DISC, y + DISC
    for box in layout.labels[layout.label_atoms == atom]:
        left, bottom, right, top = min(left, box[0]), min(bottom, box[1]), max(right, box[2]), max(top, box[3])
    half, directions = np.array(size) / 2, np.stack([np.cos(_ANGLES), np.sin(_ANGLES)], axis=1)
    # Distance at which the box just leaves the box of disc and label, at a side or a corner.
    limits = np.where(directions > 0, (right - x, top - y), (x - left, y - bottom)) + half
    nearest = (limits / np.maximum(np.abs(directions), 1e-9)).min(axis=1)
    distances = nearest + np.array(_GAPS)[:, None]
    centres = (np.array([x, y]) + directions * distances[:, :, None]).reshape(-1, 2)
    return np.hstack([centres - half, centres + half]), (distances + np.array(_GAPS)[:, None]).ravel()


def _fixed_costs(layout: Depiction, atom: int, boxes: np.ndarray) -> np.ndarray:
    """Compute the costs ``[K]`` of the overlaps of boxes with fixed elements: lines, labels and discs."""
    reach = np.abs(boxes - np.tile(layout.atoms[atom], 2)).max()
    near = (np.abs(layout.segments - layout.atoms[atom]).max(axis=2) < reach + 1).any(axis=1)
    costs = _ON_LINE * _intersects(_expand(boxes, 0.06), layout.segments[near]).sum(axis=1).astype(float)
    costs += _ON_TEXT * (_overlap(_expand(boxes, 0.03), layout.labels) > 0).sum(axis=1)
    discs = np.hstack([layout.atoms - DISC, layout.atoms + DISC])
    costs += _ON_DISC * (_overlap(boxes, np.delete(discs, atom, axis=0)) > 0.01).sum(axis=1)
    centres = (boxes[:, :2] + boxes[:, 2:]) / 2
    own = np.linalg.norm(centres - layout.atoms[atom], axis=1)
    others = np.linalg.norm(centres[:, None] - np.delete(layout.atoms, atom, axis=0), axis=2)
    nearer = np.maximum(0, own - others.min(axis=1, initial=np.inf))  # it would be read as the label of another atom
    return costs + 3.0 * nearer


def _expand(boxes: np.ndarray, by: float) -> np.ndarray:
    return boxes + np.array([-by, -by, by, by])


def _overlap(boxes: np.ndarray, others: np.ndarray) -> np.ndarray:
    """Compute the overlap areas of K boxes with M others, ``[K, M]``."""
    low = np.maximum(boxes[:, None, :2], others[None, :, :2])
    high = np.minimum(boxes[:, None, 2:], others[None, :, 2:])
    return np.prod(np.clip(high - low, 0, None), axis=2)


def _intersects(boxes: np.ndarray, segments: np.ndarray) -> np.ndarray:
    """Test which of K boxes intersect which of M segments ``[M, 2, 2]``, ``bool [K, M]``."""
    start, direction = segments[:, 0], segments[:, 1] - segments[:, 0]
    direction = np.where(np.abs(direction) < 1e-9, 1e-9, direction)
    low = (boxes[:, None, :2] - start) / direction
    high = (boxes[:, None, 2:] - start) / direction
    enters = np.minimum(low, high).max(axis=2)
    leaves = np.maximum(low, high).min(axis=2)
    return (enters <= leaves) & (leaves >= 0) & (enters <= 1)
