"""Components of reports: errors, axes, plots, drawings and number formats."""

import math
import re
import sys
from xml.etree import ElementTree

import numpy as np
import pytest

from graphslice.errors import InputError
from graphslice.evaluation.format_scores import number, plain
from graphslice.report.drawing import draw_molecule, drawing_module
from graphslice.report.figures import confusion_matrix, error_by_similarity, target_figures
from graphslice.report.predictions import error_scales, errors_by_target
from graphslice.tasks import Task

SVG = "{http://www.w3.org/2000/svg}"


def test_errors_of_all_task_kinds_match_manual_computation():
    tasks = [Task("a"), Task("b", "binary", ("no", "yes")), Task("c", "multiclass", ("x", "y", "z"))]
    tasks.append(Task("d", transform="log"))
    true = np.array([[1.0, 1, 2, 100], [3.0, 0, np.nan, 0.1], [np.nan] * 4])
    values = np.array([[1.5, 0.9, 0.1, 0.2, 0.7, 10], [1, 0.25, 0, 1, 0, 0.1], [0] * 6], np.float32)
    errors = errors_by_target(tasks, true, values)
    expected = [[0.5, 0.1, 0.3, 1], [2, 0.25, np.nan, 0], [np.nan] * 4]
    np.testing.assert_allclose(errors, expected, atol=1e-6)
    scales = error_scales(tasks, true)
    np.testing.assert_allclose(scales, [1, 1, 1, 1.5])
    assert error_scales(tasks[3:], true[:, 3:]) == [1]


def test_bars_show_mean_error_of_each_similarity_bin():
    similarity = np.array([0.05, 0.31, 0.39, 1.0, 1 - 1e-9, 0.999])
    error = np.array([1.0, 2.0, 4.0, 0.5, 1.5, 7.0])
    svg = re.sub(r"\s+", " ", error_by_similarity(similarity, error).svg)
    bars = re.findall(r'd="M [\d.]+ ([\d.]+) L [^"]* ([\d.]+) L [^"]* z "[^>]*fill: #0072b2', svg)
    heights = sorted(abs(float(bottom) - float(top)) for bottom, top in bars)
    assert np.divide(heights, heights[0]) == pytest.approx([1, 1, 3, 7], rel=0.02)


@pytest.mark.parametrize(("values", "transform"), [([3.0], "log"), ([-1e300, 1e300], "none"), ([1e-3, 1e200], "log")])
def test_axes_of_extreme_values_are_finite(values, transform):
    task, y = Task("y", transform=transform), np.array(values)
    svg = target_figures(task, y, y[:, None], "test")[0].svg
    assert not re.search(r"[ =\">](nan|inf)", svg) and len([*ElementTree.fromstring(svg).iter(f"{SVG}text")]) >= 4


def test_logarithmic_axes_have_scores_that_no_single_molecule_decides():
    y, values = np.array([1.0, 10.0, 100.0]), np.array([[2.0], [13.0], [1e6]])
    svg = target_figures(Task("y", transform="log"), y, values, "test")[0].svg
    assert "n = 3, median error 3.00, Spearman 1.00<" in svg


@pytest.mark.parametrize("name", ['<b "a&$x$', "C_{max} $/$ (mg·L⁻¹)"])
def test_axes_have_the_header_with_its_unit(name):
    y = np.array([0.0, 1.0, 2.0])
    svg = target_figures(Task(name), y, y[:, None], "test")[0].svg
    texts = [text.text for text in ElementTree.fromstring(svg).iter(f"{SVG}text")]
    assert f"true {name}" in texts and f"predicted {name}" in texts


def test_number_formats():
    assert (number(0.5), number(123.0), number(-0.25), number(math.nan)) == ("0.500", "123", "\u22120.250", "\u2013")
    assert (number(123456.0), plain(-3.64), plain(10.0)) == ("123,456", "\u22123.64", "10")


@pytest.mark.parametrize("smiles", ["[Na+].[Cl-]", "C", "C[C@H](N)C(=O)O"])
def test_drawing_is_self_contained(smiles):
    svg = draw_molecule(smiles)
    assert not ElementTree.fromstring(svg).findall(f"{SVG}image") and len(svg) < 40_000


@pytest.mark.parametrize("smiles", ["not a molecule", "", "C" * 200, "\udcff", "*" * 3 + ")"])
def test_invalid_or_large_molecule_gives_no_drawing(smiles):
    assert draw_molecule(smiles) is None


def test_missing_system_library_leaves_a_molecule_undrawn_and_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "rdkit.Chem.Draw.rdMolDraw2D", None)
    monkeypatch.delattr("rdkit.Chem.Draw.rdMolDraw2D")
    assert draw_molecule("CCO") is None
    with pytest.raises(InputError, match=r"RDKit cannot draw molecules here .*apt-get install libxrender1"):
        drawing_module()


@pytest.mark.parametrize("name", ["溶解度 $x_$\n😀", "\udcff", ""])
@pytest.mark.filterwarnings("error")
def test_names_that_a_font_lacks_are_drawn(name):
    tasks = [Task(name), Task(name, "binary", (name + "1", "no")), Task(name, "multiclass", (name + "1", "b", "c"))]
    y, values = np.array([[0.0] * 3, [1.0] * 3]), np.array([[0.2, 0.2, 0.5, 0.3, 0.2], [0.9, 0.9, 0, 1, 0]], np.float32)
    for task, true, where in zip(tasks, y.T, (slice(1), slice(1, 2), slice(2, 5)), strict=True):
        assert all(figure.svg for figure in target_figures(task, true, values[:, where], "test"))


@pytest.mark.parametrize("count", [3, 11])
def test_confusion_matrix_of_many_classes_counts_every_molecule(count):
    task = Task("kind", "multiclass", tuple(f"class number {k}" for k in range(count)))
    draw = np.random.default_rng(0)
    y = draw.integers(0, count, 500).astype(float)
    probabilities = draw.dirichlet(np.ones(count), 500).astype(np.float32)
    matrix, _ = (figure.svg for figure in target_figures(task, y, probabilities, "test"))
    names, cells = confusion_matrix(task, y, probabilities)
    size = min(count, 10)
    assert re.findall(r">(\d+)</text>", matrix) == [str(cell) for cell in cells.ravel()]
    assert len(names) == size and cells.shape == (size, size) and cells.sum() == 500
    counts, rows = np.bincount(y.astype(int)), cells.sum(axis=1)
    assert sorted(rows[:-1] if count > 10 else rows) == sorted(np.sort(counts)[::-1][: 9 if count > 10 else count])
