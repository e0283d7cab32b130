"""Command-line options that several commands share, and the configuration that they make."""

from __future__ import annotations

import argparse
import atexit
import os
import shutil
import sys
import textwrap
from collections.abc import Callable, Collection, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import TYPE_CHECKING, Any, get_args, get_type_hints

from jsonargparse import ArgumentParser, Namespace

from graphslice.cli import HELP_ALL
from graphslice.config import (
    FROM_SCRATCH,
    PRESETS,
    DataConfig,
    GraphConfig,
    ModelConfig,
    OptimizerConfig,
    RunConfig,
    TrainerConfig,
    read_yaml,
)
from graphslice.config.reading import check_keys, meanings, merge_sections, nested, parse_value, read_preset
from graphslice.errors import InputError, check_file, shell_command
from graphslice.system.console import remark
from graphslice.system.machine import MODELS, PRETRAINED_MODEL, is_packaged_model

if TYPE_CHECKING:
    from rich.console import Console

    from graphslice.cli.main import JsonOutput
    from graphslice.inference import Predictor
    from graphslice.inference.files import FileReport
    from graphslice.training.run import RunResult

_SECTIONS = {"graph": GraphConfig, "model": ModelConfig, "optimizer": OptimizerConfig, "trainer": TrainerConfig}
_DEFAULT_PRESETS = {"pcqm4mv2": "pcqm4mv2-slice", "pcqm4m": "pcqm4m-slice"}
# Endings of files that are no tables; a word with one of them is no SMILES.
_OTHER_FILES = (".txt", ".mol", ".xls", ".xlsm", ".xlsb", ".ods", ".zip", ".docx", ".pdf")

#: The files that hold molecules, in help texts.
MOLECULE_FILES = "CSV, TSV, Excel, Parquet, SDF or .smi file"
#: The files that are written, in help texts.
TABLE_FILES = "CSV, TSV, Excel or Parquet file"

# Settings of the data by the title of their group.
_DATA_OPTIONS = {
    "input": ("dataset", "root", "cache"),
    "columns and tasks": (
        *("targets", "long", "level", "task", "transform", "decimal", "features", "smiles_column", "id_column"),
        *("weight_column", "rejected"),
    ),
    "splitting": ("split", "split_sizes", "valid_file", "test_file", "folds", "seed"),
}
#: Short names of settings, by the option that they stand for.
SHORT_OPTIONS = {
    "epochs": "trainer.max_epochs",
    "batch_size": "trainer.batch_size",
    "lr": "optimizer.peak_lr",
    "metric": "trainer.metric",
    "ensemble": "trainer.ensemble",
    "baselines": "trainer.baselines",
    "refit": "trainer.refit",
    "standardize": "graph.standardize",
}


def add_config_options(parser: ArgumentParser, arguments: list[str]) -> None:
    """Add every option of a :class:`RunConfig`."""
    for title, names in _DATA_OPTIONS.items():
        group = parser.add_argument_group(title)
        for name in names:
            add_setting(group, f"data.{name}")
    add_settings(parser, arguments, SHORT_OPTIONS)


def add_settings(
    parser: ArgumentParser, arguments: list[str], short: Collection[str] = ("epochs", "batch_size", "lr")
) -> None:
    """Add a preset, a YAML file, every setting of a :class:`RunConfig` but the data, and ``short`` names of some."""
    group = parser.add_argument_group("model and training")
    group.add_argument(
        "--preset",
        help="named settings, not weights (default: small, or NAME-slice for pcqm4mv2 and pcqm4m): "
        f"{', '.join(PRESETS)}",
    )
    group.add_argument("--config", metavar="FILE", help="YAML file with sections as in config.yaml of a run directory")
    for name in short:
        add_setting(group, SHORT_OPTIONS[name], name)
    for name, kind in _SECTIONS.items():
        parser.add_argument(f"--{name}", type=kind)
    # The defaults of the settings depend on these, which are read before.
    first = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    for name in ("preset", "config", "dataset", "init_from"):
        first.add_argument(f"--{name.replace('_', '-')}", f"--data.{name}", nargs="?")
    base = _base_config(**vars(first.parse_known_args(arguments)[0]))
    parser.set_defaults({key: value for key, value in base.options().items() if key.split(".")[0] in _SECTIONS})
    if HELP_ALL in arguments:
        _describe_sections(parser)
    else:
        _hide_sections(parser)


def add_setting(parser: Any, key: str, name: str = "", default: str = "", **settings: Any) -> None:
    """Add the option of a setting such as ``data.targets`` under its name or another one, with the help of its class;
    ``default`` is the help of its default, where a command has another one."""
    section, _, field = key.partition(".")
    kind = DataConfig if section == "data" else _SECTIONS[section]
    hint = get_type_hints(kind)[field]
    kinds = get_args(hint) or (hint,)
    meaning = meanings(kind)[field].replace("%", "%%")
    if default:
        meaning = f"{meaning.partition('; default:')[0]}; default: {default}"
    is_column = field in ("targets", "long") or field.endswith("_column")
    is_number = not {int, float}.isdisjoint(kinds) or field in ("folds", "split_sizes")
    is_file, is_folder = field.endswith("_file") or field == "dataset", field in ("root", "cache")
    value = "COLUMN" if is_column else "N" if is_number else "FILE" if is_file else "FOLDER" if is_folder else None
    settings = {"help": meaning, "type": str if str in kinds else hint | None, "metavar": value} | settings
    long = [f"--{key}"] if section == "data" else []  # jsonargparse adds those of the other sections
    parser.add_argument(f"--{(name or field).replace('_', '-')}", *long, **settings)


def hide_options(parser: ArgumentParser, names: Collection[str]) -> None:
    """Hide options, or all settings of a section, from the help."""
    for action in parser._actions:
        if action.dest.split(".")[0] in names:
            action.help = argparse.SUPPRESS


def _describe_sections(parser: ArgumentParser) -> None:
    for action in parser._actions:
        section, _, name = action.dest.partition(".")
        if section in _SECTIONS and name:
            action.help = meanings(_SECTIONS[section])[name].replace("%", "%%")


def _hide_sections(parser: ArgumentParser) -> None:
    """Hide the settings of the sections from the help; its last group says how to list them."""
    hide_options(parser, _SECTIONS)
    for group in parser._action_groups:
        if all(action.help is argparse.SUPPRESS for action in group._group_actions):
            group.title = group.description = None
    text = (
        f"{HELP_ALL} lists every setting of the graph, the model, the optimizer and the trainer, such as "
        "--model.mixer, --optimizer.weight_decay and --trainer.max_minutes. graphslice compare trains several mixers "
        "or values of a setting, and graphslice tune searches for the best settings."
    )
    parser.add_argument_group("more settings", textwrap.fill(text, 76))


def build_config(options: Namespace) -> RunConfig:
    """Build the configuration of a run from the options of :func:`add_config_options` or :func:`add_settings`."""
    config = _base_config(options.preset, options.config, options.get("dataset"), options.get("init_from"))
    names = [name for group in _DATA_OPTIONS.values() for name in group]
    given = {name: options[name] for name in names if options.get(name) is not None}
    sections: dict[str, Any] = {name: kind(**options[name].as_dict()) for name, kind in _SECTIONS.items()}
    if settings := sections["model"].mixer_settings:  # --model.mixer_settings.groups 2 arrives as a string
        typed = {key: parse_value(value) if isinstance(value, str) else value for key, value in settings.items()}
        sections["model"] = replace(sections["model"], mixer_settings=typed)
    for name, setting in SHORT_OPTIONS.items():
        section, key = setting.split(".")
        if options.get(name) is not None:
            sections[section] = replace(sections[section], **{key: options[name]})
    return replace(config, data=replace(config.data, **given), **sections)


def add_init_from(group: Any) -> None:
    """Add --init-from to an argument group."""
    group.add_argument("--init-from", metavar="MODEL", help=meanings(RunConfig)["init_from"])


def check_only_resume(arguments: list[str]) -> None:
    """Raise InputError if an option that decides the run is given in addition to --resume."""
    allowed = ("--json", "-v", "--verbose")
    others = [a for a in arguments if a.startswith("-") and not a.startswith("--resume") and a not in allowed]
    if others:
        raise InputError(f"--resume continues with its own settings: leave out {others[0]}")


@contextmanager
def stoppable(started: Path, command: str, console: Console) -> Iterator[None]:
    """Context manager of a run that Ctrl-C stops: it prints the command that continues the run, and exits; not if there
    is no file ``started`` yet."""
    from graphslice.system.processes import is_first_process

    try:
        yield
    except KeyboardInterrupt:
        if not started.is_file():
            raise
        if is_first_process():
            console.out(f"stopped; continue with: {command}", highlight=False)
        raise SystemExit(130) from None


def report_run(result: RunResult, console: Console) -> None:
    """Write the report of a trained run, and print how to predict with its model."""
    from graphslice.report.write import report_after_training

    report_after_training(result.folder, result.data, console)
    if result.data is not None:  # in the first process
        command = shell_command(["graphslice", "predict", str(result.folder), "molecules.csv"])
        console.out(f"next: {command}", highlight=False)


def _base_config(
    preset: str | None, config: str | None, dataset: str | None, init_from: str | None = None
) -> RunConfig:
    """Build the configuration without flags: the preset, the run that weights are taken from, then the YAML file."""
    from_file = nested(read_yaml(Path(config))) if config is not None else {}
    check_keys(from_file, RunConfig)
    if init_from is not None:  # the flag overrides the file
        from_file = {name: value for name, value in from_file.items() if name != "init_from"}
    dataset = dataset or (from_file.get("data") or {}).get("dataset", "demo")
    merged = read_preset(preset or _usual_preset(dataset))
    if init_from is not None and init_from != FROM_SCRATCH:
        from graphslice.runs.checkpoint import fine_tuning_preset

        merged = fine_tuning_preset(merged, init_from, preset)
    base = RunConfig.from_dict(merge_sections(merged, from_file))
    return replace(base, init_from=FROM_SCRATCH) if init_from == FROM_SCRATCH else base


def _usual_preset(dataset: object) -> str:
    """Return the preset of a dataset; that of a preprocessed dataset is that of its source."""
    if isinstance(dataset, str) and dataset.lower().endswith(".arrow"):
        from graphslice.data.store import stored_info  # imports numba

        dataset = getattr(stored_info(Path(dataset)), "source", None)
    return _DEFAULT_PRESETS.get(dataset, "small") if isinstance(dataset, str) else "small"


def add_device(parser: ArgumentParser) -> None:
    """Add --device."""
    parser.add_argument("--device", help="cpu, cuda or mps (default: a GPU if there is one)")


def add_workers(parser: ArgumentParser) -> None:
    """Add --workers."""
    parser.add_argument("--workers", type=int | None, metavar="N", help="number of processes (default: one per core)")


def add_engine(parser: ArgumentParser) -> None:
    """Add --engine."""
    parser.add_argument(
        "--engine",
        choices=("local", "ray"),
        default="local",
        help="local, or ray for a Ray cluster, which needs graphslice[ray] (default: local)",
    )


def add_model(parser: ArgumentParser, several: bool = False) -> None:
    """Add the argument ``model``, which :func:`load_model` reads; ``several``: or a list, whose mean predicts."""
    nargs, average = ("+", "; predictions of several models are averaged") if several else (None, "")
    text = f"run directory, checkpoint, hf://user/name, or a packaged model: {', '.join(MODELS)}{average}"
    parser.add_argument("model", metavar="MODEL", nargs=nargs, help=text)


def add_molecules(parser: ArgumentParser, what: str) -> None:
    """Add the argument ``molecules``, ``what`` says its help, and the column of the SMILES."""
    parser.add_argument("molecules", metavar="FILE", nargs="+", help=what)
    add_setting(parser, "data.smiles_column", default="as in training, else detected by its name")


def molecule_source(molecules: list[str]) -> Path | list[str]:
    """Return the file or folder of the molecules, for ``-`` standard input; or the arguments, if they are SMILES."""
    from graphslice.data.tables import is_table_name

    if len(molecules) == 1:
        name = _standard_input() if molecules[0] == "-" else molecules[0]
        if name.lower().endswith(_OTHER_FILES):
            check_file(Path(name))
        return Path(name) if is_table_name(name) or os.path.exists(name) else molecules
    if files := [name for name in molecules if is_table_name(name) or os.path.isfile(name)]:
        raise InputError(
            f"{files[0]} is given together with other arguments: give one file, one folder of files, or SMILES only"
        )
    return molecules


def _standard_input() -> str:
    """Copy standard input, a table, to a temporary CSV file that is removed at exit, and return its path."""
    with NamedTemporaryFile(suffix=".csv", delete=False) as file:  # Windows opens no file twice
        atexit.register(Path(file.name).unlink, missing_ok=True)
        shutil.copyfileobj(sys.stdin.buffer, file)
    return file.name


def file_progress(what: str, source: Path | list[str], parts: int = 1) -> AbstractContextManager[Callable[[int], None]]:
    """Return the progress of a command that reads one of some parts of a table, whose rows are counted for it."""
    if not isinstance(source, Path):
        return nullcontext(lambda molecules: None)

    from graphslice.data.tables import count_rows
    from graphslice.system.console import molecule_progress, standard_error

    total = count_rows(source)
    return molecule_progress(what, total and total // parts, standard_error())


def add_output_file(parser: ArgumentParser, text: str, required: bool = False) -> None:
    """Add --out with the help ``text``, and --overwrite."""
    parser.add_argument("-o", "--out", metavar="FILE", required=required, help=text)
    parser.add_argument("--overwrite", action="store_true", help="replace an existing file")


def output_file(options: Namespace) -> Path | JsonOutput | None:
    """Return the path of --out; without it the document of --json, else None for standard output."""
    return options.json if options.out is None else Path(options.out)


def report_rows(options: Namespace, report: FileReport, failed: str, **more: Any) -> dict[str, Any]:
    """Print the notes and failed rows of a command that wrote a table, and return its document without the rows."""
    sys.stdout.flush()
    for note in report.notes:
        remark(note)
    if 0 < report.failed == report.rows:
        raise InputError(f"no row can be used; the first: {report.first_error}")
    if report.failed:
        remark(f"{report.failed:,} of {report.rows:,} rows {failed}", kind="warning")
    out = {} if options.out is None else {"out": options.out}
    return {**out, **more, "total": report.rows, "failed": report.failed, "notes": report.notes}


def reject_pretrained(model: str) -> None:
    """Raise InputError for the packaged model that predicts no property."""
    if model == PRETRAINED_MODEL and is_packaged_model(model):
        raise InputError(f"{model} is a pretrained model for fine-tuning and predicts no property: use gap or adme")


def load_model(options: Namespace) -> Predictor:
    """Load the model of the command line onto its device."""
    from graphslice.inference import load
    from graphslice.runs.run_files import run_directory_of, unfinished_note

    first, *others = options.model if isinstance(options.model, list) else [options.model]
    predictor = load(first, options.device or None, others)
    for model in (first, *others):
        if note := unfinished_note(run_directory_of(model)):
            remark(note)
    return predictor
