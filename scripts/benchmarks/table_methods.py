"""The methods of ``benchmark.py tables``: commands that train on a table and answer for SMILES of another."""

from __future__ import annotations

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
from graphslice.chem.descriptors import compute_descriptors
from graphslice.trees.stacking import predict_trees

ROOT = Path(__file__).parents[2]

#: What each of ours gives to ``graphslice train`` beside the table and the seed.
GRAPHSLICE = {
    "graphslice": [],
    "graphslice-features": ["--features", "morgan,rdkit2d"],
    "graphslice-ensemble": ["--ensemble", "5"],
    "scratch": ["--init-from", "none"],
    "scratch-features": ["--init-from", "none", "--features", "morgan,rdkit2d"],
    "scratch-ensemble": ["--init-from", "none", "--ensemble", "5"],
}
#: The network alone of a run that begins with a model which has not met the test rows; at the learning rate of small.
UNSEEN = "unseen-network"
_UNSEEN_OPTIONS = ["--optimizer.peak_lr", "1e-3", "--trainer.baselines", "off"]
#: What answers in a run, each judged alone too. The trees do not depend on where the network begins.
COMPONENTS_OF = {
    "graphslice": ("graphslice-network", "graphslice-forest", "graphslice-boosting"),
    "scratch": ("scratch-network",),
}
PARTS = tuple(name for names in COMPONENTS_OF.values() for name in names)


class CommandError(Exception):
    """A command failed; the text has its last lines."""


@dataclass
class Commands:
    """Runs the commands of one method on one task, and adds up what they took.

    Attributes:
        folder: where their files and what they say go.
        threads: that each may use.
        seconds: by the clock, all commands together.
        cpu_seconds: of the processors, which other work on the machine changes less.
    """

    folder: Path
    threads: int
    seconds: float = field(default=0.0, init=False)
    cpu_seconds: float = field(default=0.0, init=False)

    def run(self, *words: object) -> None:
        command = [str(word) for word in words]
        names = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS", "LOKY_MAX_CPU_COUNT")
        paths = [str(ROOT), str(ROOT / "scripts"), os.environ.get("PYTHONPATH", "")]
        environment = os.environ | dict.fromkeys(names, str(self.threads))
        environment["PYTHONPATH"] = os.pathsep.join(filter(None, paths))
        said = self.folder / "said.txt"
        begin = time.perf_counter()
        with said.open("w") as log:
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
            last = "\n".join(said.read_text(errors="replace").splitlines()[-8:])
            raise CommandError(f"{' '.join(command)}: exit code {process.returncode}\n{last}")


class Method:
    """Something that learns from a table.

    Attributes:
        name: in the results.
        version: of its software.
    """

    name: str
    version: str

    def answers(self, table: Table, asked: pd.DataFrame, seed: int, commands: Commands) -> dict[str, np.ndarray]:
        """Train on the rows train and valid of a table, and answer for others.

        Args:
            table: of a task.
            asked: R rows with the column smiles alone.
            seed: of the training.
            commands: runs them, in its folder.

        Returns:
            ``float64 [R, T]``, of classes the probability of 1; nan where there is no answer. By its name, and those of
            its parts.
        """
        raise NotImplementedError

    @staticmethod
    def _write(table: Table, asked: pd.DataFrame, folder: Path, valid: str = "valid") -> tuple[Path, Path]:
        """The labelled rows and those that are asked for: no method sees a label of the test."""
        fit, ask = folder / "fit.csv", folder / "ask.csv"
        table.frame("train", "valid").replace({"split": {"valid": valid}}).to_csv(fit, index=False)
        asked.to_csv(ask, index=False)
        return fit, ask


class Chemprop(Method):
    """chemprop with its defaults.

    Args:
        command: in an environment of its own (``pip install chemprop==2.3.1``).
    """

    name = "chemprop"

    def __init__(self, command: str) -> None:
        self.command = command
        self.version = subprocess.run([command, "--version"], check=True, capture_output=True, text=True).stdout.strip()

    def answers(self, table: Table, asked: pd.DataFrame, seed: int, commands: Commands) -> dict[str, np.ndarray]:
        fit, ask = self._write(table, asked, commands.folder, valid="val")
        model, out = commands.folder / "model", commands.folder / "answers.csv"
        kind = "classification" if table.task.classes else "regression"
        commands.run(
            *(self.command, "train", "--data-path", fit, "--smiles-columns", "smiles", "--target-columns"),
            *(*table.targets, "--splits-column", "split", "--task-type", kind),
            *("--pytorch-seed", seed, "--data-seed", seed, "--output-dir", model),
        )
        commands.run(
            *(self.command, "predict", "--test-path", ask, "--smiles-columns", "smiles"),
            *("--model-paths", model, "--output", out),
        )
        return {self.name: pd.read_csv(out)[table.targets].to_numpy(dtype=np.float64)}


class Forest(Method):
    """A random forest, ``benchmarks/table_forest.py``, on what the model ``small`` reads of a molecule."""

    name = "small-forest"

    def __init__(self) -> None:
        import sklearn

        self.version = f"scikit-learn {sklearn.__version__}, graphslice {commit()}"

    def answers(self, table: Table, asked: pd.DataFrame, seed: int, commands: Commands) -> dict[str, np.ndarray]:
        fit, ask = self._write(table, asked, commands.folder)
        out = commands.folder / "answers.csv"
        for path in (fit, ask):
            found = path.with_suffix(".npy")
            commands.run(sys.executable, "-m", "graphslice", "fingerprint", "small", path, "-o", found)
        kind = ["--classes"] if table.task.classes else []
        words = (fit, ask, out, "--seed", seed, "--threads", commands.threads, *kind)
        commands.run(sys.executable, "-m", "benchmarks.table_forest", *words)
        return {self.name: pd.read_csv(out)[table.targets].to_numpy(dtype=np.float64)}


class GraphSlice(Method):
    """One of :data:`GRAPHSLICE`, or another name with its options."""

    def __init__(self, name: str, options: Sequence[str] | None = None) -> None:
        self.name, self.options = name, list(GRAPHSLICE[name] if options is None else options)
        self.version = f"graphslice {graphslice.__version__} {commit()}"

    def answers(self, table: Table, asked: pd.DataFrame, seed: int, commands: Commands) -> dict[str, np.ndarray]:
        fit, ask = self._write(table, asked, commands.folder)
        run, out = commands.folder / "run", commands.folder / "answers.csv"
        command = (sys.executable, "-m", "graphslice")
        commands.run(
            *(*command, "train", "--dataset", fit, "--targets", ",".join(table.targets), "--out", run),
            *("--cache", commands.folder / "cache", "--trainer.seed", seed, *self.options),
        )
        commands.run(*command, "predict", run, ask, "-o", out)
        ending = "prob_1" if table.task.classes else "pred"
        columns = [f"{target}_{ending}" for target in table.targets]
        found = {self.name: pd.read_csv(out)[columns].to_numpy(dtype=np.float64)}
        names = COMPONENTS_OF.get(self.name, ())
        return found | (component_predictions(run, asked["smiles"].tolist(), names) if names else {})


def component_predictions(run: Path, smiles: list[str], names: Sequence[str]) -> dict[str, np.ndarray]:
    """What the network, the forest and the boosting of a run answer alone, of the first as many as there are names."""
    predictor = graphslice.load(run, "cpu")
    (stacking,) = predictor.stackings
    if stacking is None:  # the network has answered alone, and no trees were kept
        return {names[0]: np.asarray(predictor.predict(smiles), np.float64)}
    x = np.concatenate(list(compute_descriptors(smiles, stacking.kinds).values()), axis=1, dtype=np.float32)
    predictor.stackings = [None]
    answers = [predictor.predict(smiles), *(predict_trees(trees, x) for trees in stacking.trees.values())]
    return {name: np.asarray(values, np.float64) for name, values in zip(names, answers, strict=False)}


METHODS = ("chemprop", Forest.name, *GRAPHSLICE, UNSEEN)


def make_method(name: str, chemprop: str | None, unseen: str | None) -> Method:
    """The method of a name; ``chemprop`` is its command, and ``unseen`` the run that :data:`UNSEEN` begins with.

    Raises:
        SystemExit: if one of them is asked for and not given.
    """
    if name == UNSEEN:
        if unseen is None:
            raise SystemExit(f"the method {UNSEEN} needs the run that it begins with: --unseen RUN")
        return GraphSlice(name, ["--init-from", unseen, *_UNSEEN_OPTIONS])
    if name == "chemprop":
        if chemprop is None:
            raise SystemExit("the method chemprop needs its command: --chemprop ENV/bin/chemprop")
        return Chemprop(chemprop)
    return Forest() if name == Forest.name else GraphSlice(name)


def commit() -> str:
    """The commit that the package is at, with a + where its files were changed since; nothing outside a checkout."""

    def git(*words: str) -> subprocess.CompletedProcess:
        return subprocess.run(["git", "-C", str(ROOT), *words], capture_output=True, text=True)

    found = git("rev-parse", "--short", "HEAD").stdout.strip()
    changed = git("status", "--porcelain", "--", "graphslice", "configs").stdout.strip() if found else ""
    return found + ("+" if changed else "")


def fill_missing(answers: np.ndarray, table: Table) -> tuple[np.ndarray, int]:
    """Answers with the mean of the training labels for those that are missing, and the number of rows that lack one."""
    missing = np.isnan(answers)
    means: Sequence[float] = np.nanmean(table.labels[table.split == "train"], axis=0)
    return np.where(missing, means, answers), int(missing.any(axis=1).sum())
