"""The pictures of an inspection, as PNG and as SVG."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from matplotlib import colormaps
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from rdkit import Chem
from rdkit.Chem.Draw import rdMolDraw2D

#: What a figure is drawn as.
FORMATS = ("png", "svg")

Colour = tuple[float, float, float]


def _figure(panels: int, size: tuple[float, float]) -> tuple[Figure, list]:
    columns = min(4, panels)
    lines = -(-panels // columns)
    figure = Figure(figsize=(size[0] * columns, size[1] * lines), layout="constrained")
    FigureCanvasAgg(figure)
    return figure, [figure.add_subplot(lines, columns, i + 1) for i in range(panels)]


def _save(figure: Figure, path: Path) -> list[Path]:
    paths = [path.with_suffix(f".{kind}") for kind in FORMATS]
    for name in paths:
        figure.savefig(name, dpi=120)
    return paths


def draw_spectra(spectra: Sequence[Sequence[np.ndarray]], names: Sequence[str], path: Path) -> list[Path]:
    """Singular values over the largest, a panel a molecule and a line a layer."""
    figure, axes = _figure(len(spectra), (4, 3.2))
    for panel, layers, name in zip(axes, spectra, names, strict=True):
        for number, values in enumerate(layers, 1):
            shown = values / max(values[0], 1e-30)
            panel.plot(np.arange(1, len(shown) + 1), shown, marker=".", label=f"layer {number}")
        panel.set(yscale="log", ylim=(1e-4, 1.5), xlabel="singular value", title=_short(name))
    axes[0].set_ylabel("share of the largest")
    axes[0].legend(fontsize=7)
    return _save(figure, path)


def draw_residuals(residuals: Sequence[Sequence[float]], names: Sequence[str], path: Path) -> list[Path]:
    """Rank-1 residual of the rows against depth, a line a molecule."""
    figure, (panel,) = _figure(1, (6, 4))
    for values, name in zip(residuals, names, strict=True):
        panel.plot(range(len(values)), values, marker=".", label=_short(name))
    panel.set(xlabel="blocks passed", ylabel="rank-1 residual", ylim=(0, None))
    panel.legend(fontsize=7)
    return _save(figure, path)


def draw_distances(weights: np.ndarray, path: Path) -> list[Path]:
    """The map by distance, ``[H, D]`` with the graph token last: what each head reads."""
    figure, (panel,) = _figure(1, (1 + 0.6 * weights.shape[1], 1 + 0.4 * len(weights)))
    image = panel.imshow(weights, cmap="viridis", vmin=0, aspect="auto")
    labels = [*map(str, range(weights.shape[1] - 1)), "token"]
    panel.set(xlabel="distance in bonds", ylabel="head", xticks=range(len(labels)), xticklabels=labels)
    panel.set(yticks=range(len(weights)), yticklabels=range(1, len(weights) + 1))
    figure.colorbar(image, label="share of the attention of an atom")
    return _save(figure, path)


def draw_atoms(smiles: str, values: np.ndarray, error: float, unit: str, path: Path) -> list[Path]:
    """The molecule, its atoms (in the order of the SMILES) coloured by what they add: red more, blue less.

    ``error``, the largest of their standard errors, is said below where there is one.
    """
    mol, most = _drawable(smiles), max(np.abs(values).max(), 1e-30)
    for atom, value in zip(mol.GetAtoms(), values, strict=True):
        atom.SetProp("atomNote", f"{value:+.2g}")
    colours = {i: _colour("RdBu_r", 0.5 + 0.4 * value / most) for i, value in enumerate(values.tolist())}
    within = f" (each ± {error:.1g} or less)" if error > 0 else ""
    legend = f"{_short(smiles)}: contribution to {unit}{within}"
    return _draw_molecules([mol], [colours], [{}], [legend], (520, 420), path)


def draw_bonds(smiles: str, weights: np.ndarray, path: Path) -> list[Path]:
    """The map along the bonds, ``[H, bonds]`` in RDKit's order, a panel a head: the darker, the more is read."""
    mol = _drawable(smiles)
    colours = [{i: _colour("Oranges", value) for i, value in enumerate(head.tolist())} for head in weights]
    legends = [f"head {i + 1}" for i in range(len(weights))]
    return _draw_molecules([mol] * len(weights), [{}] * len(weights), colours, legends, (280, 230), path)


def draw_reads(smiles: str, centre: int, weights: np.ndarray, path: Path) -> list[Path]:
    """What one atom reads of each, ``[H, N]`` in the order of the SMILES, a panel a head: the darker, the more."""
    mol = _drawable(smiles)
    mol.GetAtomWithIdx(centre).SetProp("atomNote", "*")
    most = np.maximum(weights.max(axis=1, keepdims=True), 1e-30)
    colours = [{i: _colour("Oranges", value) for i, value in enumerate(head.tolist())} for head in weights / most]
    legends = [f"head {i + 1}: * reads up to {share:.2g}" for i, share in enumerate(most[:, 0])]
    return _draw_molecules([mol] * len(weights), colours, [{}] * len(weights), legends, (280, 230), path)


def _drawable(smiles: str) -> Chem.Mol:
    # Without the hydrogens that RDKit puts at some stereocentres: they would be atoms without a value.
    return rdMolDraw2D.PrepareMolForDrawing(Chem.MolFromSmiles(smiles), kekulize=False, addChiralHs=False)


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
    whole = (size[0] * columns, size[1] * -(-len(mols) // columns))
    paths = []
    for kind, canvas in (("png", rdMolDraw2D.MolDraw2DCairo), ("svg", rdMolDraw2D.MolDraw2DSVG)):
        drawing = canvas(*whole, *size)
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


def _short(name: str) -> str:
    return name if len(name) <= 40 else name[:37] + "..."
