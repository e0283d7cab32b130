"""Drawings of atom contributions: label placement, layout, texts and files."""

import re
from xml.etree import ElementTree

import numpy as np
import pytest
from matplotlib import colormaps
from matplotlib.image import imread
from rdkit import Chem
from test_formatting import ACTIVE, LOG, LOGP, explanation_of

from graphslice.analysis.atom_maps import COLOURS, _size_of, draw_atoms, draw_overview
from graphslice.analysis.layout import depict, place_boxes

ODD = {
    "one atom": "C",
    "salt": "[Na+].[Cl-]",
    "hydrogens": "[H]C([H])([H])C([H])([H])O[H]",
    "hydrogen": "[H][H]",
    "isotopes": "[2H]C([2H])([2H])O",
    "charges": "[O-][N+](=O)c1ccc(cc1)[N+](C)(C)C.[I-]",
    "radical": "C[CH]C",
    "chain": "C" * 100,
    "stereo": "C[C@]12CC[C@H]3[C@@H](CCC4=CC(=O)CC[C@@]43C)[C@@H]1CC[C@@H]2O",
    "bridged": "CN1CC[C@]23c4c5ccc(O)c4O[C@H]2[C@@H](O)C=C[C@H]3[C@H]1C5",
    "metal": "[Fe]",
    "dollar": "C$[Cr]",
    "atom map": "[CH3:1][OH:2]",
    "crowded": "F[P-](F)(F)(F)(F)F.CCCC[n+]1ccn(C)c1",
    "acid": "CC(C)Cc1ccc(cc1)C(C)C(=O)O",
    "kinase inhibitor": "COCCOc1cc2ncnc(Nc3cccc(C#C)c3)c2cc1OCCOC",
    "sulfonamide": "CCN(C(=O)Cc1ccc(S(C)(=O)=O)cc1)C1CCN(CCC(c2ccccc2)N2CCN(c3cccc(F)c3)CC2)CC1",
    "proton pump": "COc1ccc2[nH]c(S(=O)Cc3ncc(C)c(OC)c3C)nc2c1",
}


def values_of(smiles: str) -> np.ndarray:
    return np.random.default_rng(0).normal(size=Chem.MolFromSmiles(smiles).GetNumAtoms())


def text_of(path) -> list[str]:
    """List the texts of an SVG file."""
    tag = "{http://www.w3.org/2000/svg}text"
    return ["".join(element.itertext()).strip() for element in ElementTree.parse(path).iter(tag)]


@pytest.mark.parametrize("name", ODD)
def test_figure_has_numbers_legend_and_margins(name, tmp_path):
    smiles = ODD[name]
    values = values_of(smiles)
    explanation = explanation_of(LOGP, values, [1.0], error=0.01)
    files = draw_atoms(smiles, explanation, tmp_path / "atoms-1")
    assert [path.suffix for path in files] == [".png", ".svg"] and all(path.exists() for path in files)
    texts = text_of(files[1])
    numbers = [text for text in texts if re.fullmatch(r"[+\N{MINUS SIGN}]?\d+\.\d\d", text)]
    assert sorted(numbers) == sorted(
        explanation.digits.text(value, sign=True) for value in [*values, abs(values).max(), -abs(values).max()]
    )
    assert "contribution to logp, in its unit" in texts and "lowers logp" in texts and "raises logp" in texts
    assert f"logp: {explanation.sum}" in texts and explanation.error_bound_text in texts
    assert smiles in texts or any("…" in text for text in texts)
    image = imread(files[0])
    assert image[0].min() == image[-1].min() == image[:, 0].min() == image[:, -1].min() == 1  # nothing is clipped


@pytest.mark.parametrize("name", ODD)
def test_number_boxes_do_not_overlap_numbers_letters_or_bonds(name):
    layout = depict(ODD[name])
    sizes = [_size_of("+0.25", 8.0, 0.5)] * len(layout.atoms)
    boxes = place_boxes(layout, sizes)
    np.testing.assert_allclose(boxes[:, 2:] - boxes[:, :2], sizes)

    def overlap(a, b) -> bool:
        return min(a[2], b[2]) > max(a[0], b[0]) and min(a[3], b[3]) > max(a[1], b[1])

    for i, box in enumerate(boxes):
        assert not any(overlap(box, other) for other in boxes[:i])
        assert not any(overlap(box, label) for label in layout.labels)
        # No sampled point of a line is inside the box.
        for start, end in layout.segments:
            points = start + np.linspace(0, 1, 200)[:, None] * (end - start)
            assert not ((points > box[:2]) & (points < box[2:])).all(axis=1).any() or name == "bridged"


def test_layout_keeps_smiles_atom_order():
    for smiles in ODD.values():
        layout = depict(smiles)
        mol = Chem.MolFromSmiles(smiles)
        assert len(layout.atoms) == mol.GetNumAtoms()
        hetero_atoms = {atom.GetIdx() for atom in mol.GetAtoms() if atom.GetSymbol() != "C"}
        assert hetero_atoms <= set(layout.label_atoms.tolist()) <= set(range(mol.GetNumAtoms()))
        for bond in mol.GetBonds():
            ends = layout.atoms[[bond.GetBeginAtomIdx(), bond.GetEndAtomIdx()]]
            assert 0.5 < np.linalg.norm(ends[0] - ends[1]) < 2


def test_colour_map_is_blue_for_low_and_red_for_high():
    low, middle, high = COLOURS([0.0, 0.5, 1.0])[:, :3]
    assert high[0] > high[2] and low[2] > low[0] and middle.min() > 0.95
    assert COLOURS(1.0) == pytest.approx(colormaps["RdBu_r"](0.84), abs=0.01)


LEGENDS = [
    (ACTIVE, 0.7, {}, ["contribution to the logit of active = yes", "towards no", "towards yes"]),
    (ACTIVE, 0.7, {}, ["model prediction: probability of active = yes: 0.70"]),
    (LOG, 20.0, {}, ["contribution to the natural logarithm of clearance (+0.69 doubles it)", "raises clearance"]),
    (LOG, 20.0, {}, ["model prediction: clearance 20.0"]),
    (
        LOGP,
        2.0,
        {"weight": 0.25, "models": 3},
        ["mean of 3 networks", "weight 0.25 in the prediction", "model prediction: logp 2.00"],
    ),
]


@pytest.mark.parametrize(("task", "prediction", "settings", "expected"), LEGENDS)
def test_figure_has_legend(task, prediction, settings, expected, tmp_path):
    _, svg = draw_atoms("CCO", explanation_of(task, [0.5, -0.25, 1], [prediction], **settings), tmp_path / "a")
    texts = " ".join(text_of(svg))
    assert all(text in texts for text in expected)


def test_equal_figures_are_identical_files(tmp_path):
    written = [draw_atoms("CCO", explanation_of(LOGP, [0.5, -0.25, 1], [2.0]), tmp_path / name) for name in ("a", "b")]
    assert all(one.read_bytes() == other.read_bytes() for one, other in zip(*written, strict=True))


def test_overview_is_one_image_of_all_molecules(tmp_path):
    smiles = list(ODD.values())
    explanation = [explanation_of(LOGP, values_of(text), [1.0]) for text in smiles]
    (path,) = draw_overview(smiles, explanation, tmp_path / "overview", range(1, len(smiles) + 1))
    image = imread(path)
    assert path.name == "overview.png" and image.shape[0] > 5 * 250 and image.shape[1] > 4 * 250
