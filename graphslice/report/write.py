"""Assemble and write the HTML report of a run."""

from __future__ import annotations

from pathlib import Path

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup
from rich.console import Console

from graphslice._version import __version__
from graphslice.data.datamodule import MoleculeData
from graphslice.report import sections
from graphslice.report.figures import image
from graphslice.report.load_run import Run, read_run
from graphslice.report.predictions import prediction_sections
from graphslice.runs.run_files import REPORT
from graphslice.system.console import remark, result, status
from graphslice.system.files import atomic_write


def write_report(folder: str | Path, data: MoleculeData | None = None) -> Path:
    """Write ``report.html``, one self-contained HTML page, into the directory of a finished run.

    Args:
        folder: the run directory.
        data: molecules of the run, as in ``RunResult.data``. Required for a run on PyG graphs, which are not stored on
            disk. Otherwise the molecules are read again; if that fails, the page says why and shows only what the run
            directory contains.

    Returns:
        Path of the page.

    Raises:
        InputError: if the directory holds no finished run, or cannot be written.
    """
    folder = Path(folder)
    text = page(read_run(folder, data))
    path = folder / REPORT
    with atomic_write(path) as temporary:
        # Characters that UTF-8 cannot encode, such as unpaired surrogates, become question marks.
        temporary.write_text(text, encoding="utf-8", errors="replace")
    return path


def report_after_training(folder: Path, data: MoleculeData | None, console: Console) -> None:
    """Write the report of a run after training, and print its path; an error here never fails the run. Only the first
    process writes it; ``data`` is None in the rest."""
    if data is None:
        return
    try:
        with status("writing the report", console):
            path = write_report(folder, data)
    except Exception as error:
        message = f"report not written: {type(error).__name__}: {error}; retry with: graphslice report {folder}"
        remark(" ".join(message.split()), console, "warning")
        return
    result(f"report: {path}", console)


def page(run: Run) -> str:
    """Render the HTML report of a run."""
    environment = Environment(
        loader=PackageLoader("graphslice.report"),
        autoescape=True,  # names of columns, classes and molecules may contain markup
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.globals["image"] = image
    environment.globals["style"] = Markup(environment.get_template("style.css").render())
    of_run = sections.scores_section(run), sections.data_section(run), sections.training_section(run)
    targets = run.checkpoints[0].targets
    title = Path(run.config.data.dataset).name + (f": {targets[0]}" if len(targets) == 1 else "")
    return environment.get_template("report.html").render(
        title=title,
        headlines=sections.headlines(run),
        more_targets=max(0, len(targets) - sections.MAX_TARGETS),
        facts=sections.facts(run),
        command=run.start.get("command"),  # none if it was started from Python
        settings=run.config.to_yaml(),
        sections=[*of_run, *prediction_sections(run)],
        version=__version__,
    )
