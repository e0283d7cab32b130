"""The tutorial runs, cell by cell, and what is kept of it belongs to its source."""

import re
from pathlib import Path

import pandas as pd
import pytest

nbformat = pytest.importorskip("nbformat")
pytest.importorskip("nbclient")
pytest.importorskip("ipykernel")

ROOT = Path(__file__).parents[1]
_NUMBER = re.compile(r"(?<![\w.])\d+(?:[.,]\d+)*(?!\w)")
_OF_A_MACHINE = re.compile(r"(?<![\w.])(/home/|/root/|/tmp/|/usr/|/var/|/Users/|[A-Z]:\\)")


@pytest.fixture
def tutorial(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "scripts"))
    import tutorial

    return tutorial


@pytest.fixture
def kept(tutorial):
    return nbformat.read(tutorial.NOTEBOOK, 4)


def shown(notebook) -> list[str]:
    """All texts that the outputs hold; of pictures those of SVG."""
    found = []
    for output in (output for cell in notebook.cells for output in cell.get("outputs", ())):
        parts = [
            output.get("text", ""),
            *(text for kind, text in output.get("data", {}).items() if kind != "image/png"),
        ]
        found += ["".join(part) for part in parts]
    return found


def unsupported_numbers(prose: str, texts: list[str]) -> list[str]:
    """The numbers of some prose that none of the texts hold; names in code and links are no prose."""
    prose = re.sub(r"`[^`]*`|\]\([^)]*\)", "", prose)
    known = {number for text in texts for number in _NUMBER.findall(text)}
    return [number for number in _NUMBER.findall(prose) if number not in known]


@pytest.mark.slow
def test_every_cell_runs(tutorial, child_environment, monkeypatch, tmp_path):
    for name in ("PYTHONPATH", "OMP_NUM_THREADS"):
        monkeypatch.setenv(name, child_environment[name])
    notebook = tutorial.cells_of(tutorial.TEXT.read_text())
    settings, *_ = (cell for cell in notebook.cells if cell.cell_type == "code")
    settings.source, changed = re.subn(r"ROWS, EPOCHS = \d+, \d+", "ROWS, EPOCHS = 60, 1", settings.source)
    assert changed == 1
    asked = [(cell.cell_type, cell.source) for cell in notebook.cells]
    tutorial.execute(notebook, tmp_path)
    assert [cell.execution_count for cell in notebook.cells if cell.cell_type == "code"][-1] > 15
    assert not any("Warning" in text for text in shown(notebook))
    runs = tmp_path / "runs"
    assert {path.name for path in runs.iterdir()} >= {"gap", "saved", "molecules.csv", "answers.csv"}
    assert (runs / "gap" / "report.html").is_file() and [path.name for path in tmp_path.iterdir()] == ["runs"]
    answers = pd.read_csv(runs / "answers.csv")
    assert answers["gap_ev_pred"].notna().tolist() == answers["error"].isna().tolist() == [True, True, False]
    text, pictures = tutorial.text_of(notebook)
    assert len(pictures) == 2
    assert [(cell.cell_type, cell.source) for cell in tutorial.cells_of(text).cells] == asked


def test_what_is_kept_is_of_one_source(tutorial, kept):
    """Else ``python scripts/tutorial.py`` was forgotten after a change."""
    source = tutorial.TEXT.read_text()
    assert [(cell.cell_type, cell.source, cell.id) for cell in kept.cells] == [
        (cell.cell_type, cell.source, cell.id) for cell in tutorial.cells_of(source).cells
    ]
    text, pictures = tutorial.text_of(kept)
    assert text == source
    figures = {path.name: path.read_bytes() for path in (tutorial.DOCS / "figures").glob("tutorial-*")}
    assert figures == pictures and len(pictures) == 2
    counts = [cell.execution_count for cell in kept.cells if cell.cell_type == "code"]
    assert counts == list(range(1, len(counts) + 1))
    assert tutorial.NOTEBOOK.stat().st_size < 400_000
    nbformat.validate(kept)


def test_outputs_are_clean(kept):
    assert all(output.output_type != "error" for cell in kept.cells for output in cell.get("outputs", ()))
    for text in shown(kept):
        assert not re.search(r"Traceback|Warning|\x1b", text), text
        assert not _OF_A_MACHINE.search(text), text
    assert set(kept.metadata) == {"kernelspec", "language_info"} and set(kept.metadata.language_info) == {"name"}


def test_numbers_in_prose_are_those_of_cells(kept):
    known = [*shown(kept), *(cell.source for cell in kept.cells if cell.cell_type == "code")]
    prose = [cell.source for cell in kept.cells if cell.cell_type == "markdown"]
    assert unsupported_numbers("\n".join(prose), known) == []


def test_a_number_from_nowhere_is_found():
    assert unsupported_numbers("0.418 eV of 1,200 molecules, `7` [link](8), R2", ["MAE 0.419 of 1,200"]) == ["0.418"]


def test_outputs_are_no_part_of_the_source(tutorial):
    text = "# A\n\n```python\nx = 1\nx\n```\n\nMore.\n\n```sh\nls\n```\n"
    with_output = text.replace("x\n```\n", "x\n```\n\n<!-- output -->\n```text\n1\n```\n<!-- /output -->\n", 1)
    found, again = (tutorial.cells_of(given).cells for given in (text, with_output))
    assert found == again and [cell.source for cell in found] == ["# A", "x = 1\nx", "More.\n\n```sh\nls\n```"]
    assert [cell.cell_type for cell in found] == ["markdown", "code", "markdown"]
