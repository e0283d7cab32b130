"""Pictures of the documentation: they show the present results, in both themes."""

import csv
import re
import sys
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "scripts"))
from docs_figures import benchmarks, hero, themes
from graphslice.report.figures import report_style

ROOT = Path(__file__).parents[1]
FIGURES = ROOT / "docs" / "figures"


def numbers(svg: str) -> np.ndarray:
    return np.array([float(number) for number in re.findall(r"-?\d+\.\d+", svg)])


@pytest.mark.parametrize("name", benchmarks.PICTURES)
def test_picture_shows_the_present_results(name):
    with report_style(), themes.style():
        drawn = numbers(themes.to_svg(benchmarks.draw(name), name))
    kept = numbers((FIGURES / f"{name}-dark.svg").read_text())
    assert drawn.shape == kept.shape, "run python scripts/pictures.py"
    np.testing.assert_allclose(drawn, kept, atol=0.5)


def test_picture_of_the_readme_shows_the_kept_predictions():
    with hero.PREDICTIONS.open(newline="") as file:
        rows = [[float(value) for value in row.values()] for row in csv.DictReader(file)]
    assert np.array_equal(hero.test_predictions(), rows)
    with report_style(), themes.style():
        svg = hero.hero()
    assert [numbers(svg).shape] * 2 == [
        numbers((FIGURES / f"hero{ending}.svg").read_text()).shape for ending in ("", "-dark")
    ]


def test_every_picture_of_a_document_exists_in_both_themes_or_is_a_bitmap():
    texts = "\n".join(page.read_text() for page in [*(ROOT / "docs").rglob("*.md"), ROOT / "README.md"])
    names = set(re.findall(r"figures/([\w-]+\.svg)", texts)) - {"tutorial-1.svg"}
    shown = {name.removesuffix(".svg").removesuffix("-dark") for name in names}
    drawn = {path.stem.removesuffix("-dark") for path in FIGURES.glob("*-dark.svg")}
    assert shown == drawn >= set(benchmarks.PICTURES)
