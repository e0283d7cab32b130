"""``graphslice inspect``: what a model makes of some molecules, in numbers and pictures."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
from rdkit import Chem, rdBase

from graphslice.analysis import figures
from graphslice.analysis.attribution import Attribution, attribute
from graphslice.analysis.spectra import rank_one_residual, singular_spectrum
from graphslice.analysis.trace import Trace, trace
from graphslice.chem.molecule import MoleculeError, MolGraph, canonical_ranks, smiles_to_graph
from graphslice.errors import InputError
from graphslice.feature_dims import UNREACHABLE
from graphslice.inference.predictor import Predictor
from graphslice.tasks import output_slices


@dataclass
class Inspected:
    """One molecule: its trace, its attribution, and where its atoms stand.

    Attributes:
        number: its place among the SMILES given, from 1.
        places: ``int64 [N]``: the row of each atom of the SMILES in the graph.
    """

    number: int
    smiles: str
    graph: MolGraph
    trace: Trace
    attribution: Attribution
    places: np.ndarray


def inspect(
    predictor: Predictor,
    smiles: Sequence[str],
    out: str | Path,
    *,
    target: str | None = None,
    orders: int = 256,
) -> tuple[list[Inspected], dict[str, str], list[Path]]:
    """Look into a model at some molecules, and write tables and figures.

    Args:
        predictor: the model.
        smiles: of the molecules; numbered from 1 in the tables and the names of the files.
        out: a folder, made where it is not there. ``atoms.csv`` (contributions), ``spectra.csv``,
            ``residuals.csv``, ``map_distances.csv``, ``map_atoms.csv`` (what the central atom reads of each)
            and ``map_bonds.csv`` go there, and figures of the same names as PNG and SVG; those of atoms
            and bonds one a molecule.
        target: whose contributions are drawn; the first one when not given. The table has all.
        orders: of :func:`~graphslice.analysis.attribute`.

    Returns:
        The molecules, for each other SMILES the reason why it is none, and the files written.

    Raises:
        InputError: if no SMILES is a molecule, or the target is not known; nothing is written then.
    """
    target = predictor.targets[0] if target is None else target
    if target not in predictor.targets:
        raise InputError(f"the model has no target {target!r}: it has {', '.join(predictor.targets)}")
    if not smiles:
        raise InputError("give at least one SMILES to inspect")
    graphs: dict[int, tuple[str, MolGraph, np.ndarray]] = {}
    reasons: dict[str, str] = {}
    for number, text in enumerate(smiles, 1):
        try:
            graphs[number] = (text, *_graph(text, predictor))
        except MoleculeError as error:
            reasons[text] = str(error)
    if not graphs:
        text, reason = next(iter(reasons.items()))
        raise InputError(f"cannot inspect {text!r}: {reason}")
    found = [_inspected(predictor, number, *given, orders) for number, given in graphs.items()]
    out = Path(out)
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"cannot write the folder {out}: {error.strerror}") from None
    outputs = [name for task in predictor.tasks for name in task.output_names]
    drawn = outputs[output_slices(predictor.tasks)[predictor.targets.index(target)].start]
    return found, reasons, [*_tables(found, outputs, out), *_pictures(found, outputs, drawn, out)]


def _inspected(
    predictor: Predictor, number: int, text: str, graph: MolGraph, places: np.ndarray, orders: int
) -> Inspected:
    known = predictor.descriptors(text)
    contributions = attribute(predictor, graph, orders=orders, descriptors=known)
    return Inspected(number, text, graph, trace(predictor, graph, known), contributions, places)


def _graph(smiles: str, predictor: Predictor) -> tuple[MolGraph, np.ndarray]:
    settings = predictor.config.graph
    graph = smiles_to_graph(smiles, atom_order=settings.atom_order, max_atoms=settings.max_atoms)
    with rdBase.BlockLogs():
        mol = Chem.MolFromSmiles(smiles)
    if settings.atom_order == "input":
        return graph, np.arange(graph.num_atoms)
    return graph, np.array(canonical_ranks(mol), np.int64)


# --- numbers ------------------------------------------------------------------------------------


def by_distance(found: Trace) -> np.ndarray:
    """``[H, D + 1]``: how much of its attention an atom gives to each distance, and last to the token."""
    near = np.where(found.distances < UNREACHABLE, found.distances, -1)
    shares = [np.where(near == d, found.attn_weights[:, 1:, 1:], 0).sum(2).mean(1) for d in range(near.max() + 1)]
    return np.stack([*shares, found.attn_weights[:, 1:, 0].mean(1)], axis=1)


def by_bond(one: Inspected) -> tuple[np.ndarray, np.ndarray]:
    """``[bonds, 2]`` atoms of the SMILES and ``[H, bonds]`` the map, mean of both directions, in RDKit's order."""
    mol = Chem.MolFromSmiles(one.smiles)
    ends = np.array([(b.GetBeginAtomIdx(), b.GetEndAtomIdx()) for b in mol.GetBonds()], np.int64).reshape(-1, 2)
    first, second = 1 + one.places[ends.T]
    return ends, (one.trace.attn_weights[:, first, second] + one.trace.attn_weights[:, second, first]) / 2


def from_centre(one: Inspected) -> tuple[int, np.ndarray, np.ndarray]:
    """The atom that is nearest to the farthest, how far it is from each ``[N]``, and what it reads of each ``[H, N]``.

    All in the order of the SMILES; of several such atoms the first.
    """
    distances = one.trace.distances[np.ix_(one.places, one.places)]
    centre = int(np.where(distances < UNREACHABLE, distances, -1).max(1).argmin())
    return centre, distances[centre], one.trace.attn_weights[:, 1 + one.places[centre], 1 + one.places]


Row = dict[str, object]


def _tables(found: list[Inspected], targets: list[str], out: Path) -> Iterable[Path]:
    tables = {
        "atoms": lambda molecule: _atom_rows(molecule, targets),
        "spectra": _spectrum_rows,
        "residuals": _residual_rows,
        "map_distances": _distance_rows,
        "map_atoms": _read_rows,
        "map_bonds": _bond_rows,
    }
    for name, rows_of in tables.items():
        rows = [{"molecule": one.number, "smiles": one.smiles} | row for one in found for row in rows_of(one)]
        # Molecules without a bond leave the last one empty, with its header.
        columns = list(rows[0]) if rows else ["molecule", "smiles", "head", "atom_a", "atom_b", "weight"]
        path = out / f"{name}.csv"
        pd.DataFrame(rows, columns=columns).to_csv(path, index=False)
        yield path


def _atom_rows(one: Inspected, targets: list[str]) -> Iterable[Row]:
    gave = one.attribution
    for atom, place in zip(Chem.MolFromSmiles(one.smiles).GetAtoms(), one.places, strict=True):
        for t, target in enumerate(targets):
            yield {
                "atom": atom.GetIdx(),
                "element": atom.GetSymbol(),
                "target": target,
                "contribution": gave.values[place, t],
                "standard_error": gave.errors[place, t],
                "prediction": gave.prediction[t],
                "baseline": gave.baseline[t],
            }


def _spectrum_rows(one: Inspected) -> Iterable[Row]:
    for layer, mixed in enumerate(one.trace.mixed, 1):
        for i, value in enumerate(singular_spectrum(mixed), 1):
            yield {"layer": layer, "index": i, "singular_value": value}


def _residual_rows(one: Inspected) -> Iterable[Row]:
    for depth, rows in enumerate(one.trace.rows):
        yield {"depth": depth, "residual": rank_one_residual(rows)}


def _distance_rows(one: Inspected) -> Iterable[Row]:
    for head, shares in enumerate(by_distance(one.trace), 1):
        for distance, share in zip([*range(len(shares) - 1), "token"], shares, strict=True):
            yield {"head": head, "distance": distance, "share": share}


def _read_rows(one: Inspected) -> Iterable[Row]:
    centre, distances, weights = from_centre(one)
    for head, values in enumerate(weights, 1):
        for atom, (distance, value) in enumerate(zip(distances.tolist(), values, strict=True)):
            apart = distance if distance < UNREACHABLE else None
            yield {"head": head, "from_atom": centre, "atom": atom, "distance": apart, "weight": value}


def _bond_rows(one: Inspected) -> Iterable[Row]:
    ends, weights = by_bond(one)
    for head, values in enumerate(weights, 1):
        for (a, b), value in zip(ends, values, strict=True):
            yield {"head": head, "atom_a": a, "atom_b": b, "weight": value}


# --- pictures -----------------------------------------------------------------------------------


def _pictures(found: list[Inspected], targets: list[str], target: str, out: Path) -> Iterable[Path]:
    names = [one.smiles for one in found]
    spectra = [[singular_spectrum(mixed) for mixed in one.trace.mixed] for one in found]
    yield from figures.draw_spectra(spectra, names, out / "spectra")
    residuals = [[rank_one_residual(rows) for rows in one.trace.rows] for one in found]
    yield from figures.draw_residuals(residuals, names, out / "residuals")
    shares = [by_distance(one.trace) for one in found]
    yield from figures.draw_distances(_mean_by_distance(shares), out / "map_distances")
    for one in found:
        of_target = targets.index(target)
        values = one.attribution.values[one.places, of_target]
        error = one.attribution.errors[one.places, of_target].max()
        yield from figures.draw_atoms(one.smiles, values, error, target, out / f"atoms-{one.number}")
        centre, _, weights = from_centre(one)
        yield from figures.draw_reads(one.smiles, centre, weights, out / f"map_atoms-{one.number}")
        weights = by_bond(one)[1]
        if weights.size:
            yield from figures.draw_bonds(one.smiles, weights, out / f"map_bonds-{one.number}")


def _mean_by_distance(shares: list[np.ndarray]) -> np.ndarray:
    """``[H, D + 1]``: the mean of what :func:`by_distance` gives of several molecules, 0 beyond the ends of each."""
    width = max(found.shape[1] for found in shares)
    padded = np.zeros((len(shares), len(shares[0]), width))
    for row, found in zip(padded, shares, strict=True):
        row[:, : found.shape[1] - 1] = found[:, :-1]
        row[:, -1] = found[:, -1]  # the token's
    return padded.mean(axis=0)
