"""Command-line options that several commands share, and the configuration that they make."""

from __future__ import annotations

import argparse
import atexit
import os
import shutil
import sys
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from tempfile import NamedTemporaryFile
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NoReturn

from jsonargparse import ArgumentParser, Namespace
from rich.console import Console

from graphslice.cli import HELP_ALL
from graphslice.config import (
    FROM_SCRATCH,
    PRESETS,
    GraphConfig,
    ModelConfig,
    OptimizerConfig,
    RunConfig,
    TrainerConfig,
    read_yaml,
)
from graphslice.config.reading import check_keys, merge_sections, parse_value, read_preset
from graphslice.errors import InputError
from graphslice.package_data import MODELS, PRETRAINED_MODEL, is_packaged_model

if TYPE_CHECKING:
    from graphslice.cli.json_output import JsonOutput
    from graphslice.inference import Predictor
    from graphslice.inference.files import FileReport

_SECTIONS = {"graph": GraphConfig, "model": ModelConfig, "optimizer": OptimizerConfig, "trainer": TrainerConfig}
_DEFAULT_PRESETS = {"pcqm4m": "pcqm4m-slice", "pcqm4mv2": "pcqm4mv2-slice"}

_DECIMAL = "comma: read numbers such as 3,14"
# Endings of files that are no tables; a word with one of them is no SMILES.
_OTHER_FILES = (".txt", ".mol", ".xls", ".xlsm", ".xlsb", ".ods", ".zip", ".docx", ".pdf")

#: Help of --features.
FEATURES = "additional inputs: morgan, rdkit2d, numeric columns of the table; separated by commas"
# Options by group title and name; a name is that of the DataConfig field that it sets.
_DATA_OPTIONS = {
    "columns and tasks": {
        "targets": "target columns, separated by commas (default: the only column that can be a target)",
        "level": "molecule, atom or bond (default: molecule); cells of atoms or bonds are lists of numbers",
        "task": "regression, binary or multiclass, or TARGET=binary,... (default: inferred from the values)",
        "transform": "none or log, or TARGET=log,...: scale of training; predictions keep the unit of the target "
        "(default: chosen for each target by inner validation)",
        "decimal": f"{_DECIMAL} (default: such cells are errors)",
        "features": FEATURES,
        "smiles_column": "column of the SMILES (default: detected by its name, such as smiles)",
        "id_column": "columns that identify the rows in files and in the report, separated by commas",
        "weight_column": "column with the weight of each row, from 0 up (default: equal weights)",
        "rejected": "few: stop if fewer than half of the labelled rows are usable; any: train on those (default: few)",
    },
    "splitting": {
        "split": "random, scaffold, cluster, or a column of train, valid, test (default: the column named split, "
        "else random)",
        "split_sizes": "shares of the training, validation and test set in such a split (default: 0.8,0.1,0.1); "
        "0.9,0.1,0 keeps no test set",
        "valid_file": "table of the validation set",
        "test_file": "table of the test set",
        "folds": "cross-validation with this many folds, or 5x3 for three repeats of five; one model per fold",
        "seed": "random seed of the split (default: 0)",
    },
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
# Options of several names in one text.
_NAME_LISTS = ("targets", "features", "id_column")
#: Help of --standardize.
STANDARDIZE = (
    "none, or parent: read the largest organic fragment of each molecule, neutralised, in training and prediction, so "
    "that salts do not change predictions (default: none)"
)
_TRAINING_OPTIONS = {
    "epochs": "passes over the training set (default: depends on the number of molecules)",
    "batch_size": "molecules per optimizer step, over all devices (default: that of the preset)",
    "lr": "peak learning rate (default: that of the preset, or of the fine-tuned model)",
}
_TRAINER_OPTIONS = {
    "standardize": STANDARDIZE,
    "metric": "validation metric that selects the best epoch: mae, rmse, auroc, ... (default: depends on the tasks)",
    "ensemble": "number of ensemble members; their mean is predicted, their standard deviation reported (default: 1)",
    "baselines": "on or off: random forest, gradient boosting and a kernel machine in a weighted ensemble with the "
    "network (default: on up to 20,000 labels)",
    "refit": "on or off: train the final models on all rows, and hold out folds of them in place of a validation set "
    "(default: on with --baselines, up to 3,000 rows)",
}


def add_config_options(parser: ArgumentParser, arguments: list[str]) -> None:
    """Add every option of a :class:`RunConfig`: data, preset, YAML file, and each setting of its sections."""
    where = parser.add_argument_group("input")
    where.add_argument("--dataset", help=_DATASET)
    where.add_argument("--root", help=_ROOT)
    where.add_argument("--cache", help="directory of the cache of featurized molecules (default: the user's cache)")
    for title, options in _DATA_OPTIONS.items():
        group = parser.add_argument_group(title)
        for name, text in options.items():
            group.add_argument(*_option_strings(name), type=int | None if name == "seed" else str, help=text)
    add_settings(parser, arguments, _TRAINER_OPTIONS)


def add_settings(parser: ArgumentParser, arguments: list[str], more: Mapping[str, str] = MappingProxyType({})) -> None:
    """Add a preset, a YAML file, every setting of a :class:`RunConfig`, and ``more`` options with their help."""
    group = parser.add_argument_group("model and training")
    group.add_argument(
        "--preset",
        help="named settings, not weights (default: small; for pcqm4m and pcqm4mv2 theirs with -slice): "
        f"{', '.join(PRESETS)}",
    )
    group.add_argument("--config", help="YAML file with sections as in config.yaml of a run directory")
    kinds = {"ensemble": int | None, "epochs": int | None, "batch_size": int | None, "lr": float | None}
    for name, text in {**_TRAINING_OPTIONS, **more}.items():
        group.add_argument(*_option_strings(name), type=kinds.get(name, str), help=text)
    for name, kind in _SECTIONS.items():
        parser.add_argument(f"--{name}", type=kind)
    # The defaults of the settings depend on these, which are read before.
    first = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    for name in ("preset", "config", "dataset", "init_from"):
        first.add_argument(*_option_strings(name), nargs="?")
    base = _base_config(**vars(first.parse_known_args(arguments)[0]))
    parser.set_defaults({key: value for key, value in base.options().items() if key.split(".")[0] in _SECTIONS})
    if HELP_ALL not in arguments:
        _hide_sections(parser)


def _option_strings(name: str) -> list[str]:
    """Return both forms of an option: with underscores, as in a YAML file, and with dashes."""
    return list(dict.fromkeys([f"--{name}", f"--{name.replace('_', '-')}"]))


def check_given_once(arguments: list[str]) -> None:
    """Raise InputError if a list of names is given by several options; of other repeated ones the last counts."""
    given = Counter(one.split("=")[0][2:].replace("-", "_") for one in arguments if one.startswith("--"))
    for name in (name for name in _NAME_LISTS if given[name] > 1):
        option = f"--{name.replace('_', '-')}"
        raise InputError(f"{option} is given twice: separate the names by commas, as in {option} a,b")


def hide_options(parser: ArgumentParser, names: Collection[str]) -> None:
    """Hide options, and all settings of a section, from the help."""
    for action in parser._actions:
        if action.dest.split(".")[0] in names:
            action.help = argparse.SUPPRESS


def _hide_sections(parser: ArgumentParser) -> None:
    """Hide the settings of the sections from the help; a line at its end says how to list them."""
    hide_options(parser, _SECTIONS)
    for group in parser._action_groups:
        if all(action.help is argparse.SUPPRESS for action in group._group_actions):
            group.title = group.description = None
    parser.epilog = (
        f"{HELP_ALL} lists every setting of the graph, the model, the optimizer and the trainer, such as "
        "--model.mixer, --optimizer.weight_decay and --trainer.max_minutes. graphslice compare trains several mixers "
        "or values of a setting, and graphslice tune searches for the best settings."
    )


def build_config(options: Namespace) -> RunConfig:
    """Build the configuration from the options of :func:`add_config_options` or :func:`add_settings`."""
    config = _base_config(options.preset, options.config, options.get("dataset"), options.get("init_from"))
    names = ["dataset", "root", "cache", *(name for group in _DATA_OPTIONS.values() for name in group)]
    given = {key: options[key] for key in names if options.get(key) is not None}
    sections: dict[str, Any] = {name: kind(**options[name].as_dict()) for name, kind in _SECTIONS.items()}
    if settings := sections["model"].mixer_settings:  # --model.mixer_settings.groups 2 arrives as a string
        typed = {key: parse_value(value) if isinstance(value, str) else value for key, value in settings.items()}
        sections["model"] = replace(sections["model"], mixer_settings=typed)
    named = {f"data.{name}": name for name in given}
    try:
        for name, setting in SHORT_OPTIONS.items():
            section, key = setting.split(".")
            if options.get(name) is not None:
                named[setting] = name
                sections[section] = replace(sections[section], **{key: options[name]})
        return replace(config, data=replace(config.data, **given), **sections)
    except InputError as error:  # names the option that was given, not the setting
        setting, _, rest = str(error).partition(" ")
        raise InputError(f"--{named[setting].replace('_', '-')} {rest}" if setting in named else str(error)) from None


def add_init_from(group: Any) -> None:
    """Add --init-from to an argument group."""
    group.add_argument(
        *_option_strings("init_from"),
        metavar="RUN",
        help=f"fine-tune from the weights of a run or checkpoint, or of a packaged model ({', '.join(MODELS)}); "
        "none trains from scratch (default: small, for up to 50,000 molecules like those it was trained on)",
    )


def check_only_resume(arguments: list[str]) -> None:
    """Raise InputError if an option that decides the run is given in addition to --resume."""
    others = [a for a in arguments if a.startswith("-") and not a.startswith("--resume") and a != "--json"]
    if others:
        raise InputError(f"--resume continues with its own settings: leave out {others[0]}")


def last_start(folder: Path) -> int | None:
    """Return when the run in a folder was started, as the time of its configuration; None if there is none."""
    from graphslice.run_files import CONFIG

    return (folder / CONFIG).stat().st_mtime_ns if (folder / CONFIG).is_file() else None


def exit_stopped(command: str, console: Console) -> NoReturn:
    """Print the command that continues a run that the user stopped, and exit with code 130."""
    from graphslice.processes import is_first_process

    if is_first_process():
        console.out(f"stopped; continue with: {command}", highlight=False)
    raise SystemExit(130)


_DATASET = (
    "demo, pcqm4m, pcqm4mv2, a CSV, TSV, Excel, Parquet or SDF file, a folder of these, or a preprocessed dataset "
    "(default: demo)"
)
_ROOT = "directory of OGB's data, downloaded if missing (default: ./dataset)"


def add_data_options(parser: ArgumentParser) -> None:
    """Add the options that name a labelled dataset."""
    parser.add_argument("--dataset", help=_DATASET.replace(" (default: demo)", ""))
    parser.add_argument("--root", help=_ROOT)
    add_smiles_column(parser)
    add_decimal_option(parser, "as in training")
    parser.add_argument(
        "--targets",
        help="label columns, separated by commas: some of the model's targets, or one column per target in its order",
    )


def add_smiles_column(parser: Any, where: str = "default: as in training, else detected by its name") -> None:
    """Add --smiles-column; ``parser`` may be an argument group."""
    parser.add_argument(*_option_strings("smiles_column"), help=f"column of the SMILES ({where})")


def add_decimal_option(parser: ArgumentParser, default: str = "such cells are errors") -> None:
    """Add --decimal; ``default`` describes its default."""
    parser.add_argument("--decimal", help=f"{_DECIMAL} (default: {default})")


def _base_config(
    preset: str | None, config: str | None, dataset: str | None, init_from: str | None = None
) -> RunConfig:
    """Build the configuration before flags: preset, then the run that weights are taken from, then the YAML file."""
    from_file = read_yaml(Path(config)) if config is not None else {}
    check_keys(from_file, RunConfig)
    if init_from is not None:  # the flag overrides the file
        from_file = {name: value for name, value in from_file.items() if name != "init_from"}
    dataset = dataset or (from_file.get("data") or {}).get("dataset", "demo")
    merged = read_preset(preset or _usual_preset(dataset))
    if init_from is not None and init_from != FROM_SCRATCH:
        if preset is not None:
            raise InputError("--init-from sets the architecture: leave out --preset")
        from graphslice.checkpoint import fine_tuning_preset

        merged = fine_tuning_preset(merged, init_from)
    base = RunConfig.from_dict(merge_sections(merged, from_file))
    return replace(base, init_from=FROM_SCRATCH) if init_from == FROM_SCRATCH else base


def _usual_preset(dataset: object) -> str:
    """Return the preset of a dataset; that of a preprocessed dataset is that of its source."""
    if isinstance(dataset, str) and dataset.lower().endswith(".arrow"):
        from graphslice.data.store import stored_source  # imports numba

        dataset = stored_source(Path(dataset))
    return _DEFAULT_PRESETS.get(dataset, "small") if isinstance(dataset, str) else "small"


def add_engine_options(parser: ArgumentParser) -> None:
    """Add --workers and --engine."""
    parser.add_argument("--workers", type=int | None, help="number of processes (default: one per core)")
    parser.add_argument(
        "--engine",
        choices=("local", "ray"),
        default="local",
        help="local, or ray for a Ray cluster, which needs graphslice[ray] (default: local)",
    )


def add_model(parser: ArgumentParser) -> None:
    """Add the model argument, which :func:`load_model` reads."""
    parser.add_argument(
        "model", help=f"run directory, checkpoint, hf://user/name, or a packaged model: {', '.join(MODELS)}"
    )


def molecule_source(molecules: list[str]) -> Path | list[str]:
    """Return the file or folder that holds the molecules, of ``-`` standard input; or the arguments if they are SMILES.

    Raises:
        InputError: if a file is given together with other arguments.
    """
    from graphslice.data.tables import is_table_name

    if len(molecules) == 1:
        name = _standard_input() if molecules[0] == "-" else molecules[0]
        if name.lower().endswith(_OTHER_FILES) and not os.path.exists(name):
            raise InputError(f"there is no file {name}")
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


def file_progress(what: str, source: Path | list[str]) -> AbstractContextManager[Callable[[int], None]]:
    """Return the progress bar of a command that reads a table; on a terminal the rows are counted for it."""
    from graphslice.data.tables import count_rows
    from graphslice.progress import molecule_progress

    console = Console(stderr=True)
    total = count_rows(source) if isinstance(source, Path) and console.is_terminal else None
    return molecule_progress(what, total, console)


def add_output_file(parser: ArgumentParser, text: str) -> None:
    """Add --out with the help ``text``, and --overwrite."""
    parser.add_argument("-o", "--out", help=text)
    parser.add_argument("--overwrite", action="store_true", help="replace an existing file")


def output_file(options: Namespace) -> Path | JsonOutput | None:
    """Return the path of --out; without it the document of --json, else None for standard output."""
    return options.json if options.out is None else Path(options.out)


def report_rows(options: Namespace, report: FileReport, failed: str, **more: Any) -> dict[str, Any]:
    """Print the notes and failed rows of a command that wrote a table, and return its document without the rows.

    Args:
        options: options of the command.
        report: what was written.
        failed: says what the failed rows are.
        more: further keys of the document.

    Raises:
        InputError: if all rows failed.
    """
    sys.stdout.flush()
    for note in report.notes:
        print(f"note: {note}", file=sys.stderr)
    if report.failed == report.rows:
        raise no_usable_row(report.first_error)
    if report.failed:
        print(f"{report.failed:,} of {report.rows:,} rows {failed}", file=sys.stderr)
    out = {} if options.out is None else {"out": options.out}
    return {**out, **more, "total": report.rows, "failed": report.failed, "notes": report.notes}


def no_usable_row(reason: str | None) -> InputError:
    """Return the error of a command that can use none of its input."""
    return InputError(f"no row can be used; the first: {reason}")


def reject_pretrained(model: str) -> None:
    """Raise InputError for the packaged model that is for fine-tuning only."""
    if model == PRETRAINED_MODEL and is_packaged_model(model):
        raise InputError(f"{model} is a pretrained model for fine-tuning and predicts no property: use gap or adme")


def load_model(options: Namespace) -> Predictor:
    """Load the model of the command line onto its device."""
    from graphslice.inference import load
    from graphslice.run_files import unfinished_note

    predictor = load(options.model, options.device or None)
    if note := unfinished_note(predictor.folder):
        print(note, file=sys.stderr)
    return predictor
