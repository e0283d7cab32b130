"""Spectra, residuals and attention maps of molecules, for ``graphslice inspect --all``."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
from rdkit import Chem

from graphslice.analysis import figures
from graphslice.analysis.activations import Activations
from graphslice.analysis.rank_collapse import rank_one_residual, singular_spectrum
from graphslice.feature_dims import UNREACHABLE


@dataclass
class MoleculeActivations:
    """Activations of a model for one molecule.

    Attributes:
        number: position among the input molecules, from 1.
        smiles: SMILES of the molecule.
        atom_rows: ``int64 [N]``, row in the graph of each atom of the SMILES.
        activations: activations in the atom order of the graph.
    """

    number: int
    smiles: str
    atom_rows: np.ndarray
    activations: Activations


def write_internals(molecules: list[MoleculeActivations], out: Path) -> Iterable[Path]:
    """Write tables and figures of the activations into a directory.

    The tables are ``spectra.csv``, ``residuals.csv``, ``map_distances.csv``, ``map_atoms.csv`` (attention weights of
    the central atom) and ``map_bonds.csv``. Figures have the same names; ``map_atoms`` and ``map_bonds`` have one
    figure per molecule.

    Args:
        molecules: the molecules.
        out: an existing directory.

    Yields:
        Paths of the written files.
    """
    yield from _tables(molecules, out)
    yield from _figures(molecules, out)


# --- numbers ------------------------------------------------------------------------------------


def attention_by_distance(activations: Activations) -> np.ndarray:
    """Compute the mean share of an atom's attention at each distance, ``[H, D + 1]``, with the graph token last."""
    near, weights = np.where(activations.distances < UNREACHABLE, activations.distances, -1), activations.attn_weights
    shares = [np.where(near == d, weights[:, 1:, 1:], 0).sum(2).mean(1) for d in range(near.max() + 1)]
    return np.stack([*shares, weights[:, 1:, 0].mean(1)], axis=1)


def attention_by_bond(one: MoleculeActivations) -> tuple[np.ndarray, np.ndarray]:
    """Compute the attention weights along bonds, averaged over both directions.

    Returns:
        Atom indices ``[bonds, 2]`` and weights ``[H, bonds]``, in RDKit's order of the bonds of the SMILES.
    """
    mol = Chem.MolFromSmiles(one.smiles)
    ends = np.array([(b.GetBeginAtomIdx(), b.GetEndAtomIdx()) for b in mol.GetBonds()], np.int64).reshape(-1, 2)
    first, second = 1 + one.atom_rows[ends.T]
    return ends, (one.activations.attn_weights[:, first, second] + one.activations.attn_weights[:, second, first]) / 2


def attention_from_centre(one: MoleculeActivations) -> tuple[int, np.ndarray, np.ndarray]:
    """Compute the attention weights of the central atom: the first one with the smallest eccentricity.

    Returns:
        Index of the central atom, its distances in bonds ``[N]``, and its attention weights ``[H, N]``, all in the atom
        order of the SMILES.
    """
    distances = one.activations.distances[np.ix_(one.atom_rows, one.atom_rows)]
    centre = int(np.where(distances < UNREACHABLE, distances, -1).max(1).argmin())
    return centre, distances[centre], one.activations.attn_weights[:, 1 + one.atom_rows[centre], 1 + one.atom_rows]


Row = dict[str, object]


def _tables(molecules: list[MoleculeActivations], out: Path) -> Iterable[Path]:
    tables = {
        "spectra": _spectrum_rows,
        "residuals": _residual_rows,
        "map_distances": _distance_rows,
        "map_atoms": _atom_attention_rows,
        "map_bonds": _bond_rows,
    }
    for name, table_rows in tables.items():
        rows = [{"molecule": one.number, "smiles": one.smiles} | row for one in molecules for row in table_rows(one)]
        # Only map_bonds can be empty: if no molecule has a bond. It still gets its header.
        columns = list(rows[0]) if rows else ["molecule", "smiles", "head", "atom_a", "atom_b", "weight"]
        path = out / f"{name}.csv"
        pd.DataFrame(rows, columns=columns).to_csv(path, index=False)
        yield path


def _spectrum_rows(one: MoleculeActivations) -> Iterable[Row]:
    for layer, outputs in enumerate(one.activations.mixed, 1):
        for i, value in enumerate(singular_spectrum(outputs), 1):
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
            length = distance if distance < UNREACHABLE else None  # None: in another fragment
            yield {"head": head, "from_atom": centre, "atom": atom, "distance": length, "weight": value}


def _bond_rows(one: MoleculeActivations) -> Iterable[Row]:
    ends, weights = attention_by_bond(one)
    for head, values in enumerate(weights, 1):
        for (a, b), value in zip(ends, values, strict=True):
            yield {"head": head, "atom_a": a, "atom_b": b, "weight": value}


# --- figures ------------------------------------------------------------------------------------


def _figures(molecules: list[MoleculeActivations], out: Path) -> Iterable[Path]:
    names = [one.smiles for one in molecules]
    spectra = [[singular_spectrum(mixed) for mixed in one.activations.mixed] for one in molecules]
    yield from figures.draw_spectra(spectra, names, out / "spectra")
    residuals = [[rank_one_residual(rows) for rows in one.activations.rows] for one in molecules]
    yield from figures.draw_residuals(residuals, names, out / "residuals")
    shares = [attention_by_distance(one.activations) for one in molecules]
    yield from figures.draw_distances(_mean_attention_by_distance(shares), out / "map_distances")
    for one in molecules:
        centre, _, weights = attention_from_centre(one)
        yield from figures.draw_atom_attention(one.smiles, centre, weights, out / f"map_atoms-{one.number}")
        weights = attention_by_bond(one)[1]
        if weights.size:
            yield from figures.draw_bonds(one.smiles, weights, out / f"map_bonds-{one.number}")


def _mean_attention_by_distance(shares: list[np.ndarray]) -> np.ndarray:
    """Average :func:`attention_by_distance` over molecules, ``[H, D + 1]``; 0 beyond the diameter of a molecule."""
    width = max(values.shape[1] for values in shares)
    padded = np.zeros((len(shares), len(shares[0]), width))
    for row, values in zip(padded, shares, strict=True):
        row[:, : values.shape[1] - 1] = values[:, :-1]
        row[:, -1] = values[:, -1]  # the graph token
    return padded.mean(axis=0)
