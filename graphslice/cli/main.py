"""The command line: each command joins functions that a notebook could call too."""

from __future__ import annotations

import argparse
import os

# OpenMP's threads spin while they wait, which brings a busy machine to a halt: on two cores, training
# beside one other process took four times as long. Read when torch is loaded, so set before.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

import ctypes
import re
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from jsonargparse import ArgumentParser, Namespace
from rich.console import Console

from graphslice._version import __version__
from graphslice.config import (
    PRESETS,
    GraphConfig,
    ModelConfig,
    OptimizerConfig,
    RunConfig,
    TrainerConfig,
    check_keys,
    read_preset,
    read_yaml,
)
from graphslice.errors import InputError, nearest
from graphslice.progress import molecule_progress

_SECTIONS = {"graph": GraphConfig, "model": ModelConfig, "optimizer": OptimizerConfig, "trainer": TrainerConfig}
_DATA_FLAGS = ("dataset", "root", "smiles_column", "targets", "split", "seed", "cache")
_DEFAULT_PRESETS = {"pcqm4m": "pcqm4m-slice", "pcqm4mv2": "pcqm4m-slice"}


def main(arguments: list[str] | None = None) -> int:
    """Run a command; returns its exit code: 0, 2 for input that cannot be used, 130 for Ctrl-C."""
    arguments = sys.argv[1:] if arguments is None else arguments
    keep_memory()
    try:
        parser, commands = _parser(arguments)
        options = parser.parse_args(arguments)
        commands[options.command](options[options.command], arguments)
        sys.stdout.flush()
        return 0
    except InputError as error:
        return _fail(str(error))
    except argparse.ArgumentError as error:
        return _fail(_explain(str(error), parser, arguments))
    except KeyboardInterrupt:
        print("graphslice: stopped", file=sys.stderr)
        return 130
    except BrokenPipeError:  # the reader, such as head, has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except OSError as error:  # a full disk, say
        return _fail(f"{error.strerror or error}{f': {error.filename}' if error.filename else ''}")


def keep_memory() -> None:
    """Let glibc keep what was freed: every batch asks for the same again, and new pages cost time."""
    with suppress(OSError, AttributeError):
        mallopt = ctypes.CDLL(None).mallopt
        for option, size in ((-1, 1 << 30), (-2, 1 << 26), (-3, 1 << 25)):  # trim threshold, top pad, mmap threshold
            mallopt(option, size)


def _fail(message: str) -> int:
    print(f"graphslice: {' '.join(message.split())}", file=sys.stderr)
    return 2


def _parser(arguments: list[str]) -> tuple[ArgumentParser, dict[str, Callable[[Namespace, list[str]], None]]]:
    parser = ArgumentParser(
        prog="graphslice",
        description="Predict properties of molecules with a graph transformer whose attention can be a sort.",
        exit_on_error=False,
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"graphslice {__version__}")
    subcommands = parser.add_subcommands(dest="command", required=True)
    commands = {}
    for name, describe, command in (
        ("train", _train_parser, _train),
        ("compare", _compare_parser, _compare),
        ("predict", _predict_parser, _predict),
        ("evaluate", _evaluate_parser, _evaluate),
        ("submit", _submit_parser, _submit),
        ("featurize", _featurize_parser, _featurize),
        ("inspect", _inspect_parser, _inspect),
        ("import-checkpoint", _import_parser, _import),
    ):
        subparser = ArgumentParser(exit_on_error=False, allow_abbrev=False)
        describe(subparser, arguments[1:] if arguments[:1] == [name] else [])
        subcommands.add_subcommand(name, subparser, help=subparser.description)
        commands[name] = command
    return parser, commands


def _explain(message: str, parser: ArgumentParser, arguments: list[str]) -> str:
    """The parser's complaint, in one sentence with the nearest right name."""
    known = [option for action in _actions(parser, arguments) for option in action.option_strings]
    if match := re.search(r"[Uu]nrecognized arguments: (\S+)", message):
        option = match.group(1).split("=")[0]
        return f"unknown option {option!r}{nearest(option, known)}"
    if match := re.search(r'Parser key "([\w.]+)":\s*(.*)', message, re.DOTALL):
        return f"--{match.group(1)}: {match.group(2)}"
    if arguments and not arguments[0].startswith("-") and "command" in message.lower():
        commands = [name for action in _subcommands(parser) for name in action.choices]
        if arguments[0] not in commands:
            return (
                f"unknown command {arguments[0]!r}{nearest(arguments[0], commands)}: choose from {', '.join(commands)}"
            )
    return message


def _actions(parser: ArgumentParser, arguments: list[str]) -> list[argparse.Action]:
    actions = list(parser._actions)
    for action in _subcommands(parser):
        if arguments and arguments[0] in action.choices:
            actions += action.choices[arguments[0]]._actions
    return actions


def _subcommands(parser: ArgumentParser) -> list[argparse._SubParsersAction]:
    return [action for action in parser._actions if isinstance(action, argparse._SubParsersAction)]


def _value_of(arguments: list[str], option: str) -> str | None:
    """The value given to an option, before the parser that depends on it is built."""
    value = None  # the last one counts, as for the parser
    for i, argument in enumerate(arguments):
        if argument == option and i + 1 < len(arguments):
            value = arguments[i + 1]
        elif argument.startswith(option + "="):
            value = argument.split("=", 1)[1]
    return value


# --- train --------------------------------------------------------------------------------------


def _train_parser(parser: ArgumentParser, arguments: list[str]) -> None:
    parser.description = "Train a model into a run folder."
    parser.add_argument("-o", "--out", help="the run folder (default: runs/ and the name of the data)")
    parser.add_argument("--overwrite", action="store_true", help="replace the run that the folder holds")
    parser.add_argument("--profile", action="store_true", help="report at the end where the time of training went")
    parser.add_argument("--resume", metavar="DIR", help="continue the run in this folder; takes no other option")
    _config_options(parser, arguments)


def _config_options(parser: ArgumentParser, arguments: list[str]) -> None:
    """All that makes a :class:`RunConfig`: a preset, a file and flags."""
    parser.add_argument("--preset", help=f"published or ready-made settings: {', '.join(PRESETS)}")
    parser.add_argument("--config", help="a YAML file with the same sections as config.yaml of a run folder")
    _data_options(parser)
    parser.add_argument(
        "--split", help="random, scaffold or the name of a column; the column 'split' where there is one"
    )
    parser.add_argument("--seed", type=int | None, help="seed of the random split (default: 0)")
    parser.add_argument("--cache", help="folder that keeps featurized molecules (default: the user's cache folder)")
    for name, kind in _SECTIONS.items():
        parser.add_argument(f"--{name}", type=kind)
    base = _base_config(*(_value_of(arguments, option) for option in ("--preset", "--config", "--dataset")))
    parser.set_defaults({key: value for key, value in _flat(base).items() if key.split(".")[0] in _SECTIONS})


def _config(options: Namespace) -> RunConfig:
    config = _base_config(options.preset, options.config, options.dataset)
    given = {key: options[key] for key in _DATA_FLAGS if options[key] is not None}
    sections = {name: kind(**options[name].as_dict()) for name, kind in _SECTIONS.items()}
    return replace(config, data=replace(config.data, **given), **sections)


def _data_options(parser: ArgumentParser) -> None:
    parser.add_argument(
        "--dataset", help="demo, pcqm4m, pcqm4mv2, a CSV, TSV or Parquet file, a folder of such, or a store"
    )
    parser.add_argument("--root", help="where OGB's data folders lie or are downloaded to (default: dataset)")
    parser.add_argument("--smiles_column", "--smiles-column", help="column of the SMILES; found by its name")
    parser.add_argument("--targets", help="columns to predict, separated by commas")


def _base_config(preset: str | None, file: str | None, dataset: str | None) -> RunConfig:
    """The configuration before the flags: a preset, then a file."""
    from_file = read_yaml(Path(file)) if file is not None else {}
    check_keys(from_file, RunConfig)
    dataset = dataset or (from_file.get("data") or {}).get("dataset", "demo")
    merged = read_preset(preset or _DEFAULT_PRESETS.get(dataset, "small"))
    for section, values in from_file.items():
        merged[section] = {**merged.get(section, {}), **values}
    return RunConfig.from_dict(merged)


def _flat(config: RunConfig) -> dict[str, object]:
    return {f"{section}.{key}": value for section, values in config.to_dict().items() for key, value in values.items()}


def _only_resume(arguments: list[str]) -> None:
    others = [a for i, a in enumerate(arguments) if a.startswith("-") and not a.startswith("--resume")]
    if others:
        raise InputError(f"--resume continues a run as it was begun, and takes no other option such as {others[0]}")


def _train(options: Namespace, arguments: list[str]) -> None:
    from graphslice.training.run import Interrupted, default_out, resume, train

    console = Console(stderr=True)
    folder = Path(options.resume) if options.resume else None
    try:
        if folder is not None:
            _only_resume(arguments)
            resume(folder, console=console)
            return
        config = _config(options)
        folder = Path(options.out) if options.out else default_out(config.data)
        train(config, folder, overwrite=options.overwrite, profile=options.profile, console=console)
    except Interrupted:
        console.print(f"stopped; continue with: graphslice train --resume {folder}", highlight=False, soft_wrap=True)
        raise SystemExit(130) from None


# --- compare ------------------------------------------------------------------------------------


def _compare_parser(parser: ArgumentParser, arguments: list[str]) -> None:
    parser.description = "Train several mixers on the same data, with the same budget and the same seeds."
    parser.add_argument("--mixers", help="names separated by commas; settings of their own as csp:groups=2 (all)")
    parser.add_argument("--seeds", type=int, default=3, help="runs of each mixer")
    parser.add_argument("--budget", default="10m", help="of each run: 90s, 10m, 2h, 5000steps or 20epochs")
    parser.add_argument(
        "--vary",
        action="append",
        metavar="OPTION=A,B",
        help="try every mixer with each of these values, as model.distance_start=false,true; can be repeated",
    )
    parser.add_argument(
        "--tune",
        action="append",
        metavar="OPTION=A,B",
        help="let every mixer choose among these values by the validation error of its first seed, as "
        "optimizer.peak_lr=2e-3,4e-3; can be repeated",
    )
    parser.add_argument("--jobs", type=int, default=1, help="runs at a time, each with its share of the cores")
    parser.add_argument("-o", "--out", help="the folder (default: comparisons/ and the name of the data)")
    _config_options(parser, arguments)


def _compare(options: Namespace, arguments: list[str]) -> None:
    from graphslice.compare import compare, parse_variants, table
    from graphslice.nn.mixers import MIXERS
    from graphslice.training.run import default_out

    config, console = _config(options), Console(stderr=True)
    variants = parse_variants(options.mixers or ",".join(MIXERS), options.vary or [], options.tune or [])
    out = Path(options.out) if options.out else Path("comparisons") / default_out(config.data).name
    try:
        result = compare(config, variants, options.seeds, options.budget, out, jobs=options.jobs, console=console)
    except KeyboardInterrupt:
        console.print("stopped; the same command continues", highlight=False)
        raise
    print(table(result), end="")


# --- predict ------------------------------------------------------------------------------------


def _predict_parser(parser: ArgumentParser, arguments: list[str]) -> None:
    parser.description = "Predict a file of molecules, or some SMILES."
    parser.add_argument("model", help="a run folder or a checkpoint")
    parser.add_argument(
        "molecules", nargs="+", help="a CSV, TSV, Parquet or .smi file, a folder of such, a store, or SMILES"
    )
    parser.add_argument("-o", "--out", help="a CSV, TSV or Parquet file; standard output when not given")
    parser.add_argument("--smiles_column", "--smiles-column", help="column of the SMILES; found by its name")
    parser.add_argument("--device", help="cpu, cuda, mps; a GPU where there is one")
    _engine_options(parser)


def _engine_options(parser: ArgumentParser) -> None:
    parser.add_argument("--workers", type=int | None, help="processes; every core by default")
    parser.add_argument(
        "--engine", choices=("local", "ray"), default="local", help="ray: on a cluster (pip install graphslice[ray])"
    )


def _predict(options: Namespace, arguments: list[str]) -> None:
    import pyarrow as pa

    from graphslice.data.tables import count_rows, is_table_name, write_table
    from graphslice.inference.files import predict_file

    predictor = _load(options)
    molecules = options.molecules
    out = Path(options.out) if options.out else None
    if len(molecules) == 1 and (is_table_name(molecules[0]) or os.path.exists(molecules[0])):
        console = Console(stderr=True)
        total = count_rows(Path(molecules[0])) if console.is_terminal else None
        with molecule_progress("predicting", total, console) as advance:
            report = predict_file(
                predictor,
                molecules[0],
                out,
                smiles_column=options.smiles_column,
                engine=options.engine,
                workers=options.workers,
                progress=advance,
            )
        rows, failed, reason = report.rows, report.failed, report.first_reason
    else:
        answers = predictor.predict(molecules, details=True)
        columns = {"smiles": pa.array(molecules)}
        for name, values in zip(answers.targets, answers.values.T, strict=True):
            columns[f"{name}_pred"] = pa.array(values, pa.float32())
        columns["error"] = pa.array(answers.errors, pa.string())
        with write_table(out) as sink:
            sink.write(pa.table(columns))
        failures = [reason for reason in answers.errors if reason]
        rows, failed, reason = len(molecules), len(failures), failures[0] if failures else None
    sys.stdout.flush()
    if failed == rows:
        raise InputError(f"none of the {rows:,} rows could be predicted; the first: {reason}")
    if failed:
        print(f"{failed:,} of {rows:,} rows have no prediction: the column 'error' says why", file=sys.stderr)


def _load(options: Namespace):
    import torch

    from graphslice.inference.predictor import load

    try:
        device = torch.device(options.device) if options.device else None
        if device is not None:
            torch.empty(1, device=device)
    except (RuntimeError, AssertionError):
        raise InputError(f"this machine has no device {options.device!r}") from None
    return load(options.model, device)


# --- evaluate and submit ------------------------------------------------------------------------


def _evaluate_parser(parser: ArgumentParser, arguments: list[str]) -> None:
    parser.description = "Judge a model on labelled molecules; on PCQM4M-LSC by OGB's evaluator."
    parser.add_argument("model", help="a run folder or a checkpoint")
    _data_options(parser)
    parser.add_argument(
        "--split", help="which part: train, valid, test or all (default: test, or all of an unsplit file)"
    )
    parser.add_argument("--device", help="cpu, cuda, mps; a GPU where there is one")


def _evaluate(options: Namespace, arguments: list[str]) -> None:
    from graphslice.evaluation.evaluate import evaluate, load_labelled

    predictor = _load(options)
    given = {key: options[key] for key in ("dataset", "root", "smiles_column", "targets") if options[key] is not None}
    source, split = load_labelled(predictor, Path(options.model), given)
    part = options.split or ("all" if split is None else "valid" if source.is_pcqm4m else "test")
    result = evaluate(predictor, source, part, split)
    print(f"{source.name} {part}: MAE {result['mae']:.6f} on {result['molecules']:,} molecules")
    if len(result["targets"]) > 1:
        for name, score in result["targets"].items():
            print(f"  {name}: MAE {score['mae']:.6f}, RMSE {score['rmse']:.6f}, R2 {score['r2']:.4f}")
    if result["unanswered"]:
        print(f"{result['unanswered']:,} molecules have no prediction and are left out", file=sys.stderr)


def _submit_parser(parser: ArgumentParser, arguments: list[str]) -> None:
    parser.description = "Write the files that OGB-LSC takes."
    parser.add_argument("model", help="a run folder or a checkpoint")
    parser.add_argument("--dataset", required=True, help="pcqm4m (part test) or pcqm4mv2 (test-dev and test-challenge)")
    parser.add_argument("--root", default="dataset", help="where OGB's data folders lie or are downloaded to")
    parser.add_argument("-o", "--out", default="submission", help="the folder of the files")
    parser.add_argument("--device", help="cpu, cuda, mps; a GPU where there is one")


def _submit(options: Namespace, arguments: list[str]) -> None:
    from graphslice.evaluation.submission import submit

    for path in submit(_load(options), options.dataset, options.root, options.out):
        print(path)


# --- featurize ----------------------------------------------------------------------------------


def _featurize_parser(parser: ArgumentParser, arguments: list[str]) -> None:
    parser.description = "Turn the SMILES of a data set into a file that train and evaluate read at once."
    parser.add_argument("dataset", help="demo, pcqm4m, pcqm4mv2, a CSV, TSV, Parquet or .smi file, or a folder of such")
    parser.add_argument("-o", "--out", required=True, help="the file, NAME.arrow; an interrupted call is continued")
    parser.add_argument("--overwrite", action="store_true", help="replace a file of that name")
    parser.add_argument("--root", default="dataset", help="where OGB's data folders lie or are downloaded to")
    parser.add_argument("--smiles_column", "--smiles-column", help="column of the SMILES; found by its name")
    parser.add_argument("--targets", help="columns that are labels, separated by commas (default: none)")
    parser.add_argument("--split", help="the column that says train, valid or test; 'split' where there is one")
    _engine_options(parser)
    parser.add_argument("--graph", type=GraphConfig)


def _featurize(options: Namespace, arguments: list[str]) -> None:
    from graphslice.config import DataConfig
    from graphslice.data.featurize import featurize_dataset
    from graphslice.data.tables import count_rows

    names = ("dataset", "root", "smiles_column", "targets", "split")
    data = DataConfig(**{name: options[name] for name in names})
    console = Console(stderr=True)
    total = count_rows(Path(options.dataset)) if console.is_terminal else None
    with molecule_progress("featurizing", total, console) as advance:
        graph = GraphConfig(**options.graph.as_dict())
        report = featurize_dataset(
            data,
            graph,
            options.out,
            workers=options.workers,
            engine=options.engine,
            overwrite=options.overwrite,
            progress=advance,
        )
    rows, size = len(report.store), Path(options.out).stat().st_size
    print(f"{options.out}: {rows:,} rows, {size / rows:.0f} bytes each")
    if report.failed:
        print(f"{report.failed:,} of {rows:,} rows cannot be used: the column 'error' says why", file=sys.stderr)


# --- inspect ------------------------------------------------------------------------------------


def _inspect_parser(parser: ArgumentParser, arguments: list[str]) -> None:
    parser.description = "Look into a model: what each atom adds, spectra, residuals and the structure map."
    parser.add_argument("model", help="a run folder or a checkpoint")
    parser.add_argument("--smiles", nargs="+", required=True, help="the molecules to look at it with")
    parser.add_argument("-o", "--out", help="the folder of tables and figures (default: inspect in the run folder)")
    parser.add_argument("--target", help="whose contributions are drawn (default: the first)")
    parser.add_argument("--orders", type=int, default=256, help="in which the atoms appear: more for smaller errors")
    parser.add_argument("--device", help="cpu, cuda, mps; a GPU where there is one")


def _inspect(options: Namespace, arguments: list[str]) -> None:
    from graphslice.analysis.inspection import inspect
    from graphslice.analysis.spectra import rank_one_residual

    if options.orders < 2:
        raise InputError(f"--orders must be at least 2, not {options.orders}")
    model = Path(options.model)
    out = Path(options.out) if options.out else (model if model.is_dir() else model.parent) / "inspect"
    predictor = _load(options)
    found, reasons, files = inspect(predictor, options.smiles, out, target=options.target, orders=options.orders)
    for smiles, reason in reasons.items():
        print(f"left out {smiles!r}: {reason}", file=sys.stderr)
    for one in found:
        print(one.smiles)
        gave = one.attribution
        for t, target in enumerate(predictor.targets):
            values, error = gave.values[one.places, t], gave.errors[:, t].max()
            print(
                f"  {target}: {gave.prediction[t]:.4f} = {gave.baseline[t]:.4f} of blank atoms "
                f"{values.sum():+.4f} of its atoms: {' '.join(f'{value:+.3f}' for value in values)}"
                + (f" (each ± {error:.1g} or less)" if error > 0 else "")
            )
        print(f"  rank-1 residual by depth: {' '.join(f'{rank_one_residual(rows):.3f}' for rows in one.trace.rows)}")
    print(f"{len(files)} files in {out}")


# --- import-checkpoint --------------------------------------------------------------------------


def _import_parser(parser: ArgumentParser, arguments: list[str]) -> None:
    parser.description = "Make a run folder of a checkpoint of Graphormer v1 or Sliceformer."
    parser.add_argument("file", help="a Lightning checkpoint with state_dict, or a plain state dict")
    parser.add_argument("-o", "--out", required=True, help="the run folder")
    parser.add_argument("--mixer", help="softmax is recognised; for Sliceformer slice-released is assumed")
    parser.add_argument("--target", default="homolumogap", help="name of the predicted column")


def _import(options: Namespace, arguments: list[str]) -> None:
    from graphslice.checkpoint import import_checkpoint, write_run_folder

    checkpoint = import_checkpoint(options.file, mixer=options.mixer, target=options.target)
    write_run_folder(checkpoint, Path(options.out))
    config = checkpoint.config.model
    print(f"{options.out}: {config.mixer}, {config.layers} layers, {config.dim} channels, {config.heads} heads")
    if options.mixer is None and config.mixer != "softmax":
        print(
            "the weights do not tell which sort they were trained with: --mixer slice-ascend would be the other",
            file=sys.stderr,
        )


def console() -> None:
    """Entry point of the command ``graphslice``."""
    sys.exit(main())


if __name__ == "__main__":
    console()
