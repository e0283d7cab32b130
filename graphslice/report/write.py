"""The page of a run, put together and written."""

from __future__ import annotations

from pathlib import Path

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup
from rich.console import Console

from graphslice._version import __version__
from graphslice.atomic_write import atomic_write
from graphslice.data.datamodule import MoleculeData
from graphslice.errors import InputError
from graphslice.report.load_run import Run, read_run
from graphslice.report.sections.data import data_section
from graphslice.report.sections.predictions import prediction_sections
from graphslice.report.sections.run import (
    dataset_name,
    facts,
    main_score,
    reproduction_section,
    scores_section,
    target_names,
    training_command,
    training_section,
)
from graphslice.training.run_directory import REPORT


def write_report(folder: str | Path, data: MoleculeData | None = None) -> Path:
    """Write ``report.html`` into the folder of a finished run: a page that opens from disk, and needs nothing else.

    Args:
        folder: of the run.
        data: its molecules, as ``RunResult.data`` has them; needed for a run on PyG graphs, which no file holds. Else
            they are read again; where that cannot be, the page says so and has what the folder holds.

    Returns:
        The path of the page.

    Raises:
        InputError: if the folder holds no finished run, or cannot be written.
    """
    folder = Path(folder)
    if data is not None and not isinstance(data, MoleculeData):
        raise InputError(
            f"the data of a report is RunResult.data of its training, not {type(data).__name__}: leave it out, and the "
            "molecules are read again"
        )
    text = page(read_run(folder, data))
    path = folder / REPORT
    with atomic_write(path) as temporary:
        # What is no text in a table, such as half of a surrogate pair, is shown as a question mark.
        temporary.write_text(text, encoding="utf-8", errors="replace")
    return path


def report_after_training(folder: Path, data: MoleculeData | None, console: Console) -> None:
    """Write the report of a run that was just trained, and say so; whatever goes wrong, the run is as good.

    Args:
        folder: of the run.
        data: its molecules; None in all but the first process, which alone writes.
        console: where to report.
    """
    if data is None:
        return
    try:
        with console.status("writing the report"):
            path = write_report(folder, data)
    except Exception as error:
        said = f"no report: {type(error).__name__}: {error}; graphslice report {folder} tries again"
        console.print(" ".join(said.split()), highlight=False, markup=False, soft_wrap=True)
        return
    console.print(f"report: {path}", highlight=False, markup=False, soft_wrap=True)


def page(run: Run) -> str:
    """The HTML of the report of a run."""
    environment = Environment(
        loader=PackageLoader("graphslice.report"),
        autoescape=True,  # names of columns, classes and molecules may hold anything
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.globals["style"] = Markup(environment.get_template("style.css").render())
    sections = [scores_section(run), data_section(run), training_section(run), *prediction_sections(run)]
    targets = target_names(run)
    title = dataset_name(run) + (f": {targets[0]}" if len(targets) == 1 else "")
    return environment.get_template("report.html").render(
        title=title,
        score=main_score(run),
        facts=facts(run),
        command=training_command(run),
        sections=[*sections, reproduction_section(run)],
        version=__version__,
    )
