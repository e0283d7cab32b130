"""Methods of ``benchmark.py tables``: commands that train on one table and predict the SMILES of another."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pandas as pd

import graphslice
from benchmarks.table_tasks import Table
from graphslice.data.featurize import graph_input_rows
from graphslice.stacking.stacking import predict_base_models

ROOT = Path(__file__).parents[2]

#: Options of ``graphslice train`` for each of our methods, in addition to dataset and seed.
GRAPHSLICE = {
    "graphslice": [],
    "graphslice-ensemble": ["--ensemble", "5"],
    "scratch": ["--init-from", "none"],
}
#: Components of a run, which are also evaluated separately. The base models do not depend on the initial network.
COMPONENTS_OF = {
    "graphslice": ("graphslice-network", "graphslice-forest", "graphslice-boosting", "graphslice-kernel"),
    "scratch": ("scratch-network",),
}
METHODS = ("chemprop", *GRAPHSLICE)


class CommandError(Exception):
    """A command failed; the message contains the last lines of its output."""


@dataclass
class Commands:
    """Runs the commands of one method on one task, with files in a folder, and adds up their times."""

    folder: Path
    threads: int
    seconds: float = field(default=0.0, init=False)  # wall-clock time
    cpu_seconds: float = field(default=0.0, init=False)  # processor time, which depends less on other work

    def run(self, *words: object) -> None:
        command = [str(word) for word in words]
        names = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS", "LOKY_MAX_CPU_COUNT")
        paths = [str(ROOT), str(ROOT / "scripts"), os.environ.get("PYTHONPATH", "")]
        environment = os.environ | dict.fromkeys(names, str(self.threads))
        environment["PYTHONPATH"] = os.pathsep.join(filter(None, paths))
        output = self.folder / "output.txt"
        begin = time.perf_counter()
        with output.open("w") as log:
            process = subprocess.Popen(
                [sys.executable, "-S", str(Path(__file__).with_name("with_orphans.py")), *command],
                stdout=log,
                stderr=subprocess.STDOUT,
                env=environment,
                start_new_session=True,
            )
            try:
                _, status, usage = os.wait4(process.pid, 0)
            except BaseException:
                os.killpg(process.pid, signal.SIGKILL)
                raise
            process.returncode = os.waitstatus_to_exitcode(status)
        self.seconds += time.perf_counter() - begin
        self.cpu_seconds += usage.ru_utime + usage.ru_stime
        if process.returncode:
            last = "\n".join(output.read_text(errors="replace").splitlines()[-8:])
            raise CommandError(f"{' '.join(command)}: exit code {process.returncode}\n{last}")

    def train(self, dataset: Path, *options: object) -> Path:
        """Train GraphSlice with these options; return the run directory."""
        run = self.folder / "run"
        words = ("train", "--dataset", dataset, "--cache", self.folder / "cache", "--out", run)
        self.run(sys.executable, "-m", "graphslice", *words, *options)
        return run


class Chemprop:
    """chemprop with its default settings: a command in a separate environment (``pip install chemprop==2.3.1``)."""

    name = "chemprop"

    def __init__(self, command: str) -> None:
        self.command = command
        self.version = subprocess.run([command, "--version"], check=True, capture_output=True, text=True).stdout.strip()

    def predict(self, table: Table, molecules: pd.DataFrame, seed: int, commands: Commands) -> dict[str, np.ndarray]:
        """As :meth:`GraphSlice.predict`."""
        fit, ask = _write(table, molecules, commands.folder, valid="val")
        model, out = commands.folder / "model", commands.folder / "predictions.csv"
        commands.run(
            *(self.command, "train", "--data-path", fit, "--smiles-columns", "smiles"),
            *("--target-columns", *table.targets, "--splits-column", "split"),
            *("--pytorch-seed", seed, "--data-seed", seed, "--output-dir", model),
            *("--task-type", "classification" if table.task.classes else "regression"),
        )
        commands.run(
            *(self.command, "predict", "--test-path", ask, "--smiles-columns", "smiles"),
            *("--model-paths", model, "--output", out),
        )
        return {self.name: pd.read_csv(out)[table.targets].to_numpy(dtype=np.float64)}


class GraphSlice:
    """GraphSlice with the options of a name in :data:`GRAPHSLICE`."""

    def __init__(self, name: str) -> None:
        self.name, self.version = name, version()

    def predict(self, table: Table, molecules: pd.DataFrame, seed: int, commands: Commands) -> dict[str, np.ndarray]:
        """Train on the training and validation rows of a table, and predict other molecules (column smiles).

        Returns ``float64 [R, T]`` by the names of the method and its components: for classes the probability of 1, nan
        where there is no prediction.
        """
        # It chooses its own validation rows, or folds, among all that are given.
        fit, ask = _write(table, molecules, commands.folder, valid="train")
        out = commands.folder / "predictions.csv"
        options = ("--targets", ",".join(table.targets), "--trainer.seed", seed, *GRAPHSLICE[self.name])
        run = commands.train(fit, *options)
        commands.run(sys.executable, "-m", "graphslice", "predict", run, ask, "--overwrite", "-o", out)
        ending = "prob_1" if table.task.classes else "pred"
        columns = [f"{target}_{ending}" for target in table.targets]
        predictions = {self.name: pd.read_csv(out)[columns].to_numpy(dtype=np.float64)}
        names = COMPONENTS_OF.get(self.name, ())
        return predictions | (component_predictions(run, molecules["smiles"].tolist(), names) if names else {})


def _write(table: Table, molecules: pd.DataFrame, folder: Path, valid: str) -> tuple[Path, Path]:
    """Write the labelled rows and the molecules to predict; no method gets a label of the test set."""
    fit, ask = folder / "fit.csv", folder / "ask.csv"
    table.frame("train", "valid").replace({"split": {"valid": valid}}).to_csv(fit, index=False)
    molecules.to_csv(ask, index=False)
    return fit, ask


def component_predictions(run: Path, smiles: list[str], names: Sequence[str]) -> dict[str, np.ndarray]:
    """Return separate predictions of the network and the base models of a run, by these names.

    With fewer names, only the first components are returned.
    """
    predictor = graphslice.load(run, "cpu")
    (stacking,) = predictor.stackings
    if stacking is None:  # the prediction is that of the network alone
        return {names[0]: np.asarray(predictor.predict(smiles), np.float64)}
    store = predictor.featurize_molecules(smiles)
    x = graph_input_rows(store, np.arange(len(store)))
    predictor.stackings = [None]
    predictions = [predictor.predict(smiles), *(predict_base_models(each, x) for each in stacking.models.values())]
    return {name: np.asarray(values, np.float64) for name, values in zip(names, predictions, strict=False)}


def version() -> str:
    """Return version and commit of GraphSlice."""
    return f"graphslice {graphslice.__version__} {commit()}"


def commit() -> str:
    """Return the commit of the checkout, with a + if files were changed since; empty outside a checkout."""

    def git(*words: str) -> subprocess.CompletedProcess:
        return subprocess.run(["git", "-C", str(ROOT), *words], capture_output=True, text=True)

    revision = git("rev-parse", "--short", "HEAD").stdout.strip()
    changed = git("status", "--porcelain", "--", "graphslice", "configs").stdout.strip() if revision else ""
    return revision + ("+" if changed else "")


def fill_missing(predictions: np.ndarray, table: Table) -> tuple[np.ndarray, int]:
    """Replace missing predictions by the mean training label; return them and the number of rows with a missing one."""
    missing = np.isnan(predictions)
    means: Sequence[float] = np.nanmean(table.labels[table.split == "train"], axis=0)
    return np.where(missing, means, predictions), int(missing.any(axis=1).sum())
