"""The tutorial: all cells run, and the committed notebook, text and figures agree."""

import re
from pathlib import Path

import pandas as pd
import pytest

nbformat = pytest.importorskip("nbformat")
pytest.importorskip("nbclient")
pytest.importorskip("ipykernel")

ROOT = Path(__file__).parents[1]
_NUMBER = re.compile(r"(?<![\w.])\d+(?:[.,]\d+)*(?!\w)")
_LOCAL_PATH = re.compile(r"(?<![\w.])(/home/|/root/|/tmp/|/usr/|/var/|/Users/|[A-Z]:\\)")


@pytest.fixture
def tutorial(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "scripts"))
    import tutorial

    return tutorial


@pytest.fixture
def committed(tutorial):
    return nbformat.read(tutorial.NOTEBOOK, 4)


def output_texts(notebook) -> list[str]:
    """List the texts of all outputs; of figures, only those in SVG."""
    texts = []
    for output in (output for cell in notebook.cells for output in cell.get("outputs", ())):
        parts = [text for kind, text in output.get("data", {}).items() if kind != "image/png"]
        texts += ["".join(part) for part in (output.get("text", ""), *parts)]
    return texts


def unsupported_numbers(prose: str, texts: list[str]) -> list[str]:
    """List the numbers in prose that occur in none of the texts; code spans and link targets are ignored."""
    prose = re.sub(r"`[^`]*`|\]\([^)]*\)", "", prose)
    known = {number for text in texts for number in _NUMBER.findall(text)}
    return [number for number in _NUMBER.findall(prose) if number not in known]


@pytest.mark.slow
def test_all_cells_run(tutorial, child_environment, monkeypatch, tmp_path):
    for name in ("PYTHONPATH", "OMP_NUM_THREADS"):
        monkeypatch.setenv(name, child_environment[name])
    notebook = tutorial.cells_of(tutorial.TEXT.read_text())
    settings, *_ = (cell for cell in notebook.cells if cell.cell_type == "code")
    settings.source, changed = re.subn(r"ROWS, EPOCHS = \d+, \d+", "ROWS, EPOCHS = 60, 1", settings.source)
    assert changed == 1
    expected = [(cell.cell_type, cell.source) for cell in notebook.cells]
    tutorial.execute(notebook, tmp_path)
    assert [cell.execution_count for cell in notebook.cells if cell.cell_type == "code"][-1] > 15
    assert not any("Warning" in text for text in output_texts(notebook))
    runs = tmp_path / "runs"
    assert {path.name for path in runs.iterdir()} >= {"gap", "saved", "molecules.csv", "predictions.csv"}
    assert (runs / "gap" / "report.html").is_file() and [path.name for path in tmp_path.iterdir()] == ["runs"]
    predictions = pd.read_csv(runs / "predictions.csv")
    assert predictions["gap_ev_pred"].notna().tolist() == predictions["error"].isna().tolist() == [True, True, False]
    text, pictures = tutorial.text_of(notebook)
    assert len(pictures) == 2
    assert [(cell.cell_type, cell.source) for cell in tutorial.cells_of(text).cells] == expected


def test_committed_notebook_matches_source_text(tutorial, committed):
    """If this fails, run ``python scripts/tutorial.py`` to execute the tutorial again."""
    source = tutorial.TEXT.read_text()
    assert [(cell.cell_type, cell.source, cell.id) for cell in committed.cells] == [
        (cell.cell_type, cell.source, cell.id) for cell in tutorial.cells_of(source).cells
    ]
    text, pictures = tutorial.text_of(committed)
    assert text == source
    figures = {path.name: path.read_bytes() for path in (tutorial.DOCS / "figures").glob("tutorial-*")}
    assert figures == pictures and len(pictures) == 2
    counts = [cell.execution_count for cell in committed.cells if cell.cell_type == "code"]
    assert counts == list(range(1, len(counts) + 1))
    assert tutorial.NOTEBOOK.stat().st_size < 400_000
    nbformat.validate(committed)


def test_outputs_have_no_errors_warnings_or_local_paths(committed):
    assert all(output.output_type != "error" for cell in committed.cells for output in cell.get("outputs", ()))
    for text in output_texts(committed):
        assert not re.search(r"Traceback|Warning|\x1b", text), text
        assert not _LOCAL_PATH.search(text), text
    assert set(committed.metadata) == {"kernelspec", "language_info"}
    assert set(committed.metadata.language_info) == {"name"}


def test_numbers_in_prose_occur_in_cells(committed):
    known = [*output_texts(committed), *(cell.source for cell in committed.cells if cell.cell_type == "code")]
    prose = [cell.source for cell in committed.cells if cell.cell_type == "markdown"]
    assert unsupported_numbers("\n".join(prose), known) == []
