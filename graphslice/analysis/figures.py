"""Figures of model internals, as PNG and SVG."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from matplotlib import colormaps
from matplotlib.figure import Figure
from rdkit import Chem
from rdkit.Chem.Draw import rdMolDraw2D

from graphslice.analysis.layout import prepare_molecule
from graphslice.evaluation.plots import new_figure, shortened

#: File formats of a figure.
FORMATS = ("png", "svg")

Colour = tuple[float, float, float]


def save(figure: Figure, path: Path, formats: Sequence[str] = FORMATS) -> list[Path]:
    """Write a figure in each of the formats, and return the paths."""
    paths = [path.with_suffix(f".{kind}") for kind in formats]
    for name in paths:
        # Without a date, so that equal figures give identical files.
        figure.savefig(name, dpi=120, metadata={"Date": None} if name.suffix == ".svg" else None)
    return paths


def draw_spectra(spectra: Sequence[Sequence[np.ndarray]], names: Sequence[str], path: Path) -> list[Path]:
    """Draw singular values relative to the largest: one panel per molecule, one line per layer."""
    figure, axes = new_figure(len(spectra), (4, 3.2))
    for panel, layers, name in zip(axes, spectra, names, strict=True):
        for number, values in enumerate(layers, 1):
            shown = values / max(values[0], 1e-30)
            panel.plot(np.arange(1, len(shown) + 1), shown, marker=".", label=f"layer {number}")
        panel.set(yscale="log", ylim=(1e-4, 1.5), xlabel="singular value", title=shortened(name))
    axes[0].set_ylabel("share of the largest")
    axes[0].legend(fontsize=7)
    return save(figure, path)


def draw_residuals(residuals: Sequence[Sequence[float]], names: Sequence[str], path: Path) -> list[Path]:
    """Draw the rank-1 residual of the rows against depth: one line per molecule."""
    figure, (panel,) = new_figure(1, (6, 4))
    for values, name in zip(residuals, names, strict=True):
        panel.plot(range(len(values)), values, marker=".", label=shortened(name))
    panel.set(xlabel="blocks passed", ylabel="rank-1 residual", ylim=(0, None))
    panel.legend(fontsize=7)
    return save(figure, path)


def draw_distances(weights: np.ndarray, path: Path) -> list[Path]:
    """Draw the attention of each head by distance, ``[H, D]``, with the graph token as the last column."""
    figure, (panel,) = new_figure(1, (1 + 0.6 * weights.shape[1], 1 + 0.4 * len(weights)))
    image = panel.imshow(weights, cmap="viridis", vmin=0, aspect="auto")
    labels = [*map(str, range(weights.shape[1] - 1)), "token"]
    panel.set(xlabel="distance in bonds", ylabel="head", xticks=range(len(labels)), xticklabels=labels)
    panel.set(yticks=range(len(weights)), yticklabels=range(1, len(weights) + 1))
    figure.colorbar(image, label="share of the attention of an atom")
    return save(figure, path)


def draw_bonds(smiles: str, weights: np.ndarray, path: Path) -> list[Path]:
    """Draw the attention weights along bonds, ``[H, bonds]`` in RDKit's order: one panel per head, darker for more."""
    mol = prepare_molecule(smiles, kekulize=False)
    colours = [{i: _colour("Oranges", value) for i, value in enumerate(head.tolist())} for head in weights]
    legends = [f"head {i + 1}" for i in range(len(weights))]
    return _draw_molecules([mol] * len(weights), [{}] * len(weights), colours, legends, (280, 230), path)


def draw_atom_attention(smiles: str, centre: int, weights: np.ndarray, path: Path) -> list[Path]:
    """Draw the attention weights of one atom, ``[H, N]`` in SMILES order: one panel per head, darker for more."""
    mol = prepare_molecule(smiles, kekulize=False)
    mol.GetAtomWithIdx(centre).SetProp("atomNote", "*")
    most = np.maximum(weights.max(axis=1, keepdims=True), 1e-30)
    colours = [{i: _colour("Oranges", value) for i, value in enumerate(head.tolist())} for head in weights / most]
    legends = [f"head {i + 1}: weights of * up to {share:.2g}" for i, share in enumerate(most[:, 0])]
    return _draw_molecules([mol] * len(weights), colours, [{}] * len(weights), legends, (280, 230), path)


def _colour(name: str, value: float) -> Colour:
    red, green, blue, _ = colormaps[name](value)
    return red, green, blue


def _draw_molecules(
    mols: list[Chem.Mol],
    atoms: list[dict[int, Colour]],
    bonds: list[dict[int, Colour]],
    legends: list[str],
    size: tuple[int, int],
    path: Path,
) -> list[Path]:
    columns = min(4, len(mols))
    total = (size[0] * columns, size[1] * -(-len(mols) // columns))
    paths = []
    for kind, canvas in (("png", rdMolDraw2D.MolDraw2DCairo), ("svg", rdMolDraw2D.MolDraw2DSVG)):
        drawing = canvas(*total, *size)
        drawing.drawOptions().highlightBondWidthMultiplier = 12  # type: ignore[assignment]
        drawing.DrawMolecules(
            mols,
            highlightAtoms=[list(colours) for colours in atoms],
            highlightBonds=[list(colours) for colours in bonds],
            highlightAtomColors=atoms,
            highlightBondColors=bonds,
            legends=legends,
        )
        drawing.FinishDrawing()
        text = drawing.GetDrawingText()
        paths.append(path.with_suffix(f".{kind}"))
        paths[-1].write_bytes(text if isinstance(text, bytes) else text.encode())
    return paths
