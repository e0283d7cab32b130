"""Pictures of atom contributions: colours, texts and files."""

import io
import re
from xml.etree import ElementTree

import numpy as np
import pytest
from PIL import Image
from rdkit import Chem
from test_formatting import ACTIVE, LOGP, explanation_of

from graphslice.explain.pictures import draw_atoms, draw_overview
from graphslice.tasks import Task

ODD = {
    "one atom": "C",
    "salt": "[Na+].[Cl-]",
    "hydrogens": "[H]C([H])([H])C([H])([H])O[H]",
    "hydrogen": "[H][H]",
    "chain": "C" * 100,
    "stereo": "C[C@]12CC[C@H]3[C@@H](CCC4=CC(=O)CC[C@@]43C)[C@@H]1CC[C@@H]2O",
    "metal": "[Fe]",
    "dollar": "C$[Cr]",
    "atom map": "[CH3:1][OH:2]",
    "crowded": "F[P-](F)(F)(F)(F)F.CCCC[n+]1ccn(C)c1",
    "sulfonamide": "CCN(C(=O)Cc1ccc(S(C)(=O)=O)cc1)C1CCN(CCC(c2ccccc2)N2CCN(c3cccc(F)c3)CC2)CC1",
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


def test_picture_states_what_the_explanation_says():
    explanation = explanation_of(ACTIVE, [0.5, -0.25, 1], [0.7], weight=0.25, models=3)
    texts = " ".join(texts_of(draw_atoms("CCO", explanation)[0]))
    assert "contribution to the logit of active = yes: red towards yes, blue towards no" in texts
    assert "model prediction: active yes, P(yes) 0.70" in texts
    assert all(note in texts for note in explanation.notes) and len(explanation.notes) == 2


def test_names_are_escaped_and_equal_pictures_are_identical():
    first, second = (draw_atoms("CCO", explanation_of(Task("<b>溶解度 µM"), [0.5, -0.25, 1], [2.0])) for _ in range(2))
    assert first == second and any(text.startswith("<b>溶解度 µM: ") for text in texts_of(first[0]))


def test_overview_is_one_image_of_all_molecules():
    smiles = list(ODD.values())
    explanations = [explanation_of(LOGP, values_of(text), [1.0]) for text in smiles]
    image = Image.open(io.BytesIO(draw_overview(smiles, explanations, range(1, len(smiles) + 1))))
    assert image.width > 4 * 250 and image.height > 3 * 200
