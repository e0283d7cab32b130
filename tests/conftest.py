"""Fixtures shared by several test files."""

import csv
import itertools
import os
import pickle
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import settings
from tiny import TINY

import graphslice
from graphslice.stacking import trees as fit_trees
from graphslice.system.machine import DEMO_CSV
from graphslice.tasks import regression_tasks

# Seconds after which a process is considered hanging, even on a busy machine.
HANG = 300

# No deadline: the first example may compile kernels, which takes seconds, and the machine may be busy.
settings.register_profile("untimed", deadline=None)
settings.register_profile("thorough", settings.get_profile("untimed"), max_examples=35_000)
settings.load_profile("untimed")

if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")  # read when triton is first imported


@pytest.fixture(scope="session")
def demo_smiles() -> list[str]:
    """SMILES of the demo dataset, in the order of the file."""
    with open(DEMO_CSV) as file:
        return [row["smiles"] for row in csv.DictReader(file)]


@pytest.fixture(scope="session")
def smiles2graph():
    """``ogb.utils.smiles2graph``, imported without OGB's look-up of its newest version on the network."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "outdated", None)
        from ogb.utils import smiles2graph
    return smiles2graph


@pytest.fixture
def full_disk():
    """``with full_disk():`` limits the size of files to 4 kB, to simulate a full disk."""
    resource = pytest.importorskip("resource")

    @contextmanager
    def full():
        before = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (4_000, before[1]))
        try:
            yield
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)

    return full


# --- small dataset, small run, OGB folders, command line ------------------------------------------


# Faster for tiny models, especially on busy machines, and sums have a fixed order.
torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Return to one thread after a test that changed their number."""
    yield
    torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def cpu_only(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run models on the CPU unless a test is marked ``gpu``: results of a GPU are not bitwise equal."""
    if torch.cuda.is_available() and request.node.get_closest_marker("gpu") is None:
        for module in ("inference.predictor", "training.devices"):
            monkeypatch.setattr(f"graphslice.{module}.default_device", lambda: "cpu")


@pytest.fixture(scope="session", autouse=True)
def plain_terminal() -> Iterator[None]:
    """Make the output of the command line independent of the user's terminal: no colours, fixed width."""
    with pytest.MonkeyPatch.context() as patch:
        for name in ("FORCE_COLOR", "COLUMNS", "TTY_COMPATIBLE", "TTY_INTERACTIVE"):
            patch.delenv(name, raising=False)
        patch.setattr(
            "graphslice.system.compile_note.announce_compilation", lambda: None
        )  # of the first test that compiles
        yield


@pytest.fixture(scope="session", autouse=True)
def cache(tmp_path_factory) -> Iterator[Path]:
    """Use a temporary cache for featurized molecules instead of the user's."""
    folder = tmp_path_factory.mktemp("cache")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("GRAPHSLICE_CACHE", str(folder))
        yield folder


@pytest.fixture(scope="session", autouse=True)
def few_trees() -> Iterator[None]:
    """Give base models a tenth of their trees, which take most of the time of a tiny training."""
    with pytest.MonkeyPatch.context() as patch:
        for name in ("_FEWEST_TREES", "_MOST_TREES", "_BOOSTING_TREES"):
            patch.setattr(fit_trees, name, getattr(fit_trees, name) // 10)
        yield


@pytest.fixture(scope="session")
def demo_rows() -> pd.DataFrame:
    """Sixty rows of the demo dataset: 47 for training, 7 for validation, 6 for testing."""
    return pd.read_csv(DEMO_CSV).head(60)


@pytest.fixture(scope="session")
def demo_csv(demo_rows, tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("demo") / "demo60.csv"
    demo_rows.to_csv(path, index=False)
    return path


@pytest.fixture(scope="session")
def tiny_config():
    """``tiny_config(dataset, trainer={...}, ...)`` returns the configuration of a 1-layer, 16-channel model."""
    from graphslice.config import RunConfig

    def make(dataset: str | Path = "demo", **sections: dict) -> RunConfig:
        values = {
            "data": {"dataset": str(dataset)},
            "model": dict(TINY),
            "trainer": {"max_epochs": 2, "batch_size": 16, "accelerator": "cpu", "baselines": "off"},
        }
        for name, part in sections.items():
            values[name] = {**values.get(name, {}), **part}
        return RunConfig.from_dict(values)

    return make


@pytest.fixture(scope="session")
def tiny_flags() -> list[str]:
    """Command-line options that train an equally small model."""
    return [
        *(f"--model.{name}={value}" for name, value in TINY.items()),
        *("--trainer.max_epochs=2", "--trainer.batch_size=16", "--trainer.accelerator=cpu", "--trainer.baselines=off"),
    ]


@pytest.fixture(scope="session")
def run_directory(demo_csv, tiny_config, tmp_path_factory) -> Path:
    """A finished run on ``demo_csv``. Shared between tests: copy it to change it."""
    from graphslice.training import train

    folder = tmp_path_factory.mktemp("runs") / "tiny"
    train(tiny_config(demo_csv), folder)
    return folder


@pytest.fixture
def run_copy(run_directory, tmp_path) -> Path:
    """Copy of the run directory, which a test may change."""
    return shutil.copytree(run_directory, tmp_path / "run")


@pytest.fixture(scope="session")
def without_child_processes():
    """``with without_child_processes():`` trains ensembles and comparisons in this process, which takes a tenth."""
    from graphslice.system.processes import error_of_call

    def in_this_process(function, tasks, jobs, gpus=(), on_report=None):
        assert not gpus  # the configurations of these tests name the CPU
        for key, call in tasks.items():
            task, arguments = pickle.loads(pickle.dumps((function, call)))  # as on the way to another process
            yield key, error_of_call(task, *arguments)

    @contextmanager
    def replaced():
        with pytest.MonkeyPatch.context() as patch:
            for module in ("training.train_run", "search.compare"):
                patch.setattr(f"graphslice.{module}.in_processes", in_this_process)
            yield

    return replaced


@pytest.fixture
def in_this_process(without_child_processes) -> Iterator[None]:
    """Train the models of ensembles and comparisons in this process during a test."""
    with without_child_processes():
        yield


@pytest.fixture(scope="session")
def predictor(run_directory):
    from graphslice.inference.predictor import load

    return load(run_directory, "cpu")


@pytest.fixture(scope="session")
def make_predictor():
    """``make_predictor(scale, targets, **model)`` returns an untrained tiny model, weights multiplied by ``scale``."""
    from graphslice.config import ModelConfig, RunConfig
    from graphslice.inference.predictor import Predictor
    from graphslice.nn import GraphTransformer
    from graphslice.runs.checkpoint import Checkpoint

    def make(scale: float = 1.0, targets: tuple[str, ...] = ("y",), **model) -> Predictor:
        config = RunConfig(model=ModelConfig(**{**TINY, "tasks": len(targets), **model}))
        torch.manual_seed(0)
        net = GraphTransformer(config.model)
        with torch.no_grad():
            for parameter in net.parameters():
                if parameter.dim() > 1:
                    parameter.mul_(scale)
        return Predictor(Checkpoint(config, regression_tasks(targets), net.state_dict()), "cpu")

    return make


@pytest.fixture(scope="session")
def make_ogb():
    """``make_ogb(root, name)`` creates the OGB folder of PCQM4M-LSC v1 or v2 with 40 molecules."""

    def make(root: Path, name: str = "pcqm4m", rows: int = 40) -> Path:
        table = pd.read_csv(DEMO_CSV).head(rows)
        folder = root / {"pcqm4m": "pcqm4m_kddcup2021", "pcqm4mv2": "pcqm4m-v2"}[name]
        (folder / "raw").mkdir(parents=True)
        (folder / "RELEASE_v1.txt").touch()
        tests = {"pcqm4m": ["test"], "pcqm4mv2": ["test-dev", "test-challenge"]}[name]
        order = np.random.default_rng(0).permutation(rows)  # so that sorting the indices would show
        bounds = [rows // 2, 3 * rows // 4, 7 * rows // 8][: 1 + len(tests)]
        split = dict(zip(["train", "valid", *tests], np.split(order, bounds), strict=True))
        gaps = table["gap_ev"].to_numpy(copy=True)
        for part in tests:
            gaps[split[part]] = np.nan
        data = pd.DataFrame({"idx": np.arange(rows), "smiles": table["smiles"], "homolumogap": gaps})
        data.to_csv(folder / "raw" / "data.csv.gz", index=False)
        torch.save(split, folder / "split_dict.pt")
        return folder

    return make


@pytest.fixture
def offline(monkeypatch):
    """Disable the network and interactive input."""

    def unreachable(*_, **__):
        raise OSError("network is unreachable")

    def no_input(*_, **__):
        raise AssertionError("a question on stdin")

    for name in ("socket", "getaddrinfo", "create_connection"):
        monkeypatch.setattr(socket, name, unreachable)
    monkeypatch.setattr("builtins.input", no_input)


@pytest.fixture
def cli(capsys):
    """``cli(*arguments)`` runs a command in this process and returns its exit code, stdout and stderr."""
    from graphslice.cli.main import main

    def run(*arguments: object) -> tuple[int, str, str]:
        capsys.readouterr()
        before = signal.getsignal(signal.SIGTERM)
        try:
            code = main([str(argument) for argument in arguments])
        except SystemExit as error:
            code = error.code or 0
        finally:
            signal.signal(signal.SIGTERM, before)
        return code, *capsys.readouterr()

    return run


@pytest.fixture
def clock(monkeypatch):
    """``clock(seconds)`` makes every look at the clock take some seconds."""

    def set_clock(seconds):
        ticks = itertools.count(1_000, seconds)
        monkeypatch.setattr("graphslice.system.console.monotonic", lambda: next(ticks))

    return set_clock


@pytest.fixture
def reports(monkeypatch) -> list[tuple[float | None, str]]:
    """What is reported to a line of progress: fractions and statuses."""
    from graphslice.system.console import WorkProgress

    taken: list[tuple[float | None, str]] = []
    monkeypatch.setattr(WorkProgress, "update", lambda self, *report: taken.append(report))
    return taken


@pytest.fixture
def training_of(monkeypatch):
    """``training_of(fit, *arguments)``: the configuration, folder and options of the training that a call begins."""
    from graphslice.errors import InputError

    def arguments_of(function, *arguments, **keywords) -> SimpleNamespace:
        trainings = []

        def record(config, folder, **options):
            trainings.append(SimpleNamespace(config=config, folder=folder, **options))
            raise InputError("recorded, not trained")

        with monkeypatch.context() as patch, suppress(InputError):
            patch.setattr("graphslice.training.train_run.train", record)
            function(*arguments, **keywords)
        [training] = trainings
        return training

    return arguments_of


@pytest.fixture(scope="session")
def child_environment(cache, plain_terminal) -> dict[str, str]:
    """Environment of child processes: they import the same copy of the package and use one thread."""
    paths = [str(Path(graphslice.__file__).parents[1]), os.environ.get("PYTHONPATH", "")]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths)), "OMP_NUM_THREADS": "1"}


@pytest.fixture
def start_process(child_environment):
    """``start_process(*command, background=False)`` starts a process that ends with the test.

    It leads its own process group and handles Ctrl-C as in a terminal, however the tests were started. With
    ``background`` it ignores Ctrl-C, like a process that a shell starts with ``&``.
    """
    processes: list[subprocess.Popen] = []

    def start(*command: object, background: bool = False) -> subprocess.Popen:
        handler = signal.SIG_IGN if background else signal.SIG_DFL
        pipes = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        process = subprocess.Popen(
            [str(part) for part in command],
            **pipes,
            env=child_environment,
            start_new_session=True,
            preexec_fn=(lambda: signal.signal(signal.SIGINT, handler)) if os.name == "posix" else None,
        )
        processes.append(process)
        return process

    yield start
    for process in processes:
        if process.poll() is None:
            (os.killpg if os.name == "posix" else os.kill)(process.pid, signal.SIGKILL)
            process.communicate()


@pytest.fixture
def start(start_process):
    """``start(*arguments)`` starts the command line in a child process, which ends with the test."""
    return lambda *arguments: start_process(sys.executable, "-m", "graphslice", *arguments)


@pytest.fixture(scope="session")
def wait_for():
    """``wait_for(process, *paths)`` returns when the paths exist, and fails if the process ends before."""

    def wait(process: subprocess.Popen, *paths: Path) -> None:
        deadline = time.monotonic() + HANG
        while not all(path.exists() for path in paths):
            assert process.poll() is None, process.communicate()[1]
            assert time.monotonic() < deadline, f"none of {paths} in {HANG} s"
            time.sleep(0.002)

    return wait


@pytest.fixture(scope="session")
def wait_for_exit():
    """``wait_for_exit(process)`` returns exit code, stdout and stderr, once its child processes have ended too."""

    def wait(process: subprocess.Popen) -> tuple[int, str, str]:
        out, err = process.communicate(timeout=HANG)
        return process.returncode, out, err

    return wait


@pytest.fixture(scope="session")
def weights_of():
    """``weights_of(folder, name)`` returns the weights in a checkpoint of a run."""
    from graphslice.runs.checkpoint import read_checkpoint

    def weights_of(folder, name="last.ckpt"):
        if name == "last.ckpt":
            state = torch.load(Path(folder) / name, weights_only=True)["state_dict"]
            return {key.removeprefix("model."): value for key, value in state.items() if key.startswith("model.")}
        weights = read_checkpoint(Path(folder) / name).weights
        return {name: torch.from_numpy(weight) for name, weight in weights.items()}

    return weights_of


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    """A headless browser; tests are skipped if there is none."""
    from headless import BROWSER, Browser

    if BROWSER is None:
        pytest.skip("Chromium is not installed")
    try:
        one = Browser(tmp_path_factory.mktemp("profile"))
    except (OSError, RuntimeError, TimeoutError) as error:
        pytest.skip(f"{BROWSER} does not start: {error}")
    yield one
    one.close()
