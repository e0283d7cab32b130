"""Pictures of atom contributions: colours, texts and files."""

import io
import re
from xml.etree import ElementTree

import numpy as np
import pytest
from PIL import Image
from rdkit import Chem
from test_formatting import ACTIVE, LOG, LOGP, explanation_of

from graphslice.explain.pictures import draw_atoms, draw_overview
from graphslice.tasks import Task

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

SVG = "{http://www.w3.org/2000/svg}"


def values_of(smiles: str) -> np.ndarray:
    return np.random.default_rng(0).normal(size=Chem.MolFromSmiles(smiles).GetNumAtoms())


def texts_of(svg: str) -> list[str]:
    return ["".join(element.itertext()) for element in ElementTree.fromstring(svg).iter(f"{SVG}text")]


@pytest.mark.parametrize("name", ODD)
def test_every_atom_is_red_or_blue_by_its_contribution(name):
    values = values_of(ODD[name])
    explanation = explanation_of(LOGP, values, [1.0], error=0.01)
    svg, png = draw_atoms(ODD[name], explanation)
    texts = " ".join(texts_of(svg))
    assert explanation.sum in texts and explanation.error_text in texts
    assert "contribution to logp, in its unit: red raises logp, blue lowers logp" in texts
    filled = {}
    for shape in ElementTree.fromstring(svg).iter(f"{SVG}ellipse"):
        red, blue = (int(re.search("fill:#(......)", shape.get("style"))[1][at : at + 2], 16) for at in (0, 4))
        filled[int(shape.get("class").removeprefix("atom-"))] = red - blue
    assert sorted(filled) == list(range(len(values)))
    assert all(np.sign(filled[i]) in (np.sign(value), 0) for i, value in enumerate(values))
    assert abs(filled[int(np.abs(values).argmax())]) > 80
    image = np.asarray(Image.open(io.BytesIO(png)).convert("L"))
    assert image[0].min() == image[-1].min() == image[:, 0].min() == image[:, -1].min() == 255  # nothing is clipped


LEGENDS = [
    (ACTIVE, 0.7, {}, ["contribution to the logit of active = yes: red towards yes, blue towards no"]),
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
def test_figure_has_legend(task, prediction, settings, expected):
    svg, _ = draw_atoms("CCO", explanation_of(task, [0.5, -0.25, 1], [prediction], **settings))
    texts = " ".join(texts_of(svg))
    assert all(text in texts for text in expected)


def test_names_are_escaped_and_equal_pictures_are_identical():
    first, second = (draw_atoms("CCO", explanation_of(Task("<b>溶解度 µM"), [0.5, -0.25, 1], [2.0])) for _ in range(2))
    assert first == second and any(text.startswith("<b>溶解度 µM: ") for text in texts_of(first[0]))


def test_overview_is_one_image_of_all_molecules():
    smiles = list(ODD.values())
    explanations = [explanation_of(LOGP, values_of(text), [1.0]) for text in smiles]
    image = Image.open(io.BytesIO(draw_overview(smiles, explanations, range(1, len(smiles) + 1))))
    assert image.width > 4 * 250 and image.height > 5 * 200
