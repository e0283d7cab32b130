"""What ``graphslice inspect --all`` adds: spectra, residuals and attention maps of some molecules."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
from rdkit import Chem

from graphslice.analysis import figures
from graphslice.analysis.activations import Activations
from graphslice.analysis.spectra import rank_one_residual, singular_spectrum
from graphslice.feature_dims import UNREACHABLE


@dataclass
class MoleculeActivations:
    """One molecule on its way through a model.

    Attributes:
        number: its place among the molecules given, from 1.
        smiles: of it.
        places: ``int64 [N]``: the row of each atom of the SMILES in the graph.
        trace: what the model computed.
    """

    number: int
    smiles: str
    atom_rows: np.ndarray
    activations: Activations


def write_internals(found: list[MoleculeActivations], out: Path) -> Iterable[Path]:
    """Write ``spectra``, ``residuals``, ``map_distances``, ``map_atoms`` (what the central atom reads of each) and
    ``map_bonds`` into a folder: tables, and figures of the same names, those of atoms and bonds one a molecule."""
    yield from _tables(found, out)
    yield from _pictures(found, out)


# --- numbers ------------------------------------------------------------------------------------


def attention_by_distance(found: Activations) -> np.ndarray:
    """``[H, D + 1]``: how much of its attention an atom gives to each distance, and last to the token."""
    near = np.where(found.distances < UNREACHABLE, found.distances, -1)
    shares = [np.where(near == d, found.attn_weights[:, 1:, 1:], 0).sum(2).mean(1) for d in range(near.max() + 1)]
    return np.stack([*shares, found.attn_weights[:, 1:, 0].mean(1)], axis=1)


def attention_by_bond(one: MoleculeActivations) -> tuple[np.ndarray, np.ndarray]:
    """``[bonds, 2]`` atoms of the SMILES and ``[H, bonds]`` the map, mean of both directions, in RDKit's order."""
    mol = Chem.MolFromSmiles(one.smiles)
    ends = np.array([(b.GetBeginAtomIdx(), b.GetEndAtomIdx()) for b in mol.GetBonds()], np.int64).reshape(-1, 2)
    first, second = 1 + one.atom_rows[ends.T]
    return ends, (one.activations.attn_weights[:, first, second] + one.activations.attn_weights[:, second, first]) / 2


def attention_from_centre(one: MoleculeActivations) -> tuple[int, np.ndarray, np.ndarray]:
    """The atom that is nearest to the farthest, how far it is from each ``[N]``, and what it reads of each ``[H, N]``.

    All in the order of the SMILES; of several such atoms the first.
    """
    distances = one.activations.distances[np.ix_(one.atom_rows, one.atom_rows)]
    centre = int(np.where(distances < UNREACHABLE, distances, -1).max(1).argmin())
    return centre, distances[centre], one.activations.attn_weights[:, 1 + one.atom_rows[centre], 1 + one.atom_rows]


Row = dict[str, object]


def _tables(found: list[MoleculeActivations], out: Path) -> Iterable[Path]:
    tables = {
        "spectra": _spectrum_rows,
        "residuals": _residual_rows,
        "map_distances": _distance_rows,
        "map_atoms": _atom_attention_rows,
        "map_bonds": _bond_rows,
    }
    for name, rows_in_split in tables.items():
        rows = [{"molecule": one.number, "smiles": one.smiles} | row for one in found for row in rows_in_split(one)]
        # Molecules without a bond leave the last one empty, with its header.
        columns = list(rows[0]) if rows else ["molecule", "smiles", "head", "atom_a", "atom_b", "weight"]
        path = out / f"{name}.csv"
        pd.DataFrame(rows, columns=columns).to_csv(path, index=False)
        yield path


def _spectrum_rows(one: MoleculeActivations) -> Iterable[Row]:
    for layer, mixed in enumerate(one.activations.mixed, 1):
        for i, value in enumerate(singular_spectrum(mixed), 1):
            yield {"layer": layer, "index": i, "singular_value": value}


def _residual_rows(one: MoleculeActivations) -> Iterable[Row]:
    for depth, rows in enumerate(one.activations.rows):
        yield {"depth": depth, "residual": rank_one_residual(rows)}


def _distance_rows(one: MoleculeActivations) -> Iterable[Row]:
    for head, shares in enumerate(attention_by_distance(one.activations), 1):
        for distance, share in zip([*range(len(shares) - 1), "token"], shares, strict=True):
            yield {"head": head, "distance": distance, "share": share}


def _atom_attention_rows(one: MoleculeActivations) -> Iterable[Row]:
    centre, distances, weights = attention_from_centre(one)
    for head, values in enumerate(weights, 1):
        for atom, (distance, value) in enumerate(zip(distances.tolist(), values, strict=True)):
            apart = distance if distance < UNREACHABLE else None
            yield {"head": head, "from_atom": centre, "atom": atom, "distance": apart, "weight": value}


def _bond_rows(one: MoleculeActivations) -> Iterable[Row]:
    ends, weights = attention_by_bond(one)
    for head, values in enumerate(weights, 1):
        for (a, b), value in zip(ends, values, strict=True):
            yield {"head": head, "atom_a": a, "atom_b": b, "weight": value}


# --- pictures -----------------------------------------------------------------------------------


def _pictures(found: list[MoleculeActivations], out: Path) -> Iterable[Path]:
    names = [one.smiles for one in found]
    spectra = [[singular_spectrum(mixed) for mixed in one.activations.mixed] for one in found]
    yield from figures.draw_spectra(spectra, names, out / "spectra")
    residuals = [[rank_one_residual(rows) for rows in one.activations.rows] for one in found]
    yield from figures.draw_residuals(residuals, names, out / "residuals")
    shares = [attention_by_distance(one.activations) for one in found]
    yield from figures.draw_distances(_mean_attention_by_distance(shares), out / "map_distances")
    for one in found:
        centre, _, weights = attention_from_centre(one)
        yield from figures.draw_atom_attention(one.smiles, centre, weights, out / f"map_atoms-{one.number}")
        weights = attention_by_bond(one)[1]
        if weights.size:
            yield from figures.draw_bonds(one.smiles, weights, out / f"map_bonds-{one.number}")


def _mean_attention_by_distance(shares: list[np.ndarray]) -> np.ndarray:
    """Mean of :func:`attention_by_distance` over several molecules, ``[H, D + 1]``; 0 beyond the diameter of each."""
    width = max(found.shape[1] for found in shares)
    padded = np.zeros((len(shares), len(shares[0]), width))
    for row, found in zip(padded, shares, strict=True):
        row[:, : found.shape[1] - 1] = found[:, :-1]
        row[:, -1] = found[:, -1]  # the token's
    return padded.mean(axis=0)
