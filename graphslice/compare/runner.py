"""Mixers side by side: the same data, the same budget and the same seeds for each."""

from __future__ import annotations

import csv
import itertools
import json
import re
from collections.abc import Callable, Iterable, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from filelock import FileLock, Timeout
from rich.console import Console

from graphslice.checkpoint import CONFIG
from graphslice.compare.processes import each_in_a_process
from graphslice.config import DataConfig, RunConfig, read_yaml
from graphslice.data.sources import load_source, resolved
from graphslice.errors import InputError
from graphslice.machine import machine
from graphslice.nn.mixers import build_mixer, check_mixer, mixer_class

RESULT, TABLE, PICTURE = "comparison.json", "comparison.md", "comparison.png"

# More epochs than any budget of time or steps allows.
_ENDLESS = 10**6


@dataclass(frozen=True)
class Arm:
    """One of the things compared: a mixer, perhaps with other settings than the rest has.

    Attributes:
        label: as in the table, such as ``"csp:groups=2"``.
        changes: what it changes of the common configuration, by section and key.
        rivals: what it has in common with the arms that it is tuned against: of these, only the one with the
            smallest validation error with the first seed is run with the others.
    """

    label: str
    changes: dict[str, dict[str, Any]] = field(hash=False)
    rivals: str = ""

    @property
    def folder(self) -> str:
        """Of its runs, below that of the comparison."""
        return re.sub(r"[^\w.=-]+", "_", self.label)

    def config(self, base: RunConfig, seed: int) -> RunConfig:
        """The configuration of one of its runs."""
        values = base.to_dict()
        for section, changes in self.changes.items():
            values[section] = {**values[section], **changes}
        values["trainer"]["seed"] = seed
        return RunConfig.from_dict(values)


def parse_arms(mixers: str, varied: Sequence[str] = (), tuned: Sequence[str] = ()) -> list[Arm]:
    """The arms that a user names.

    Args:
        mixers: names separated by commas, with settings of their own after colons, such as
            ``"softmax,csp:groups=2:shifts=linear"``.
        varied: for each an option of the configuration and its values, such as
            ``"model.distance_start=false,true"``; every mixer is tried with every combination.
        tuned: options and values as these; every mixer keeps the combination that does best.

    Raises:
        InputError: if a mixer, a setting or an option is not known.
    """
    options = [_varied(text) for text in (*varied, *tuned)]
    arms = []
    for text in filter(None, (part.strip() for part in mixers.split(","))):
        name, *settings = text.split(":")
        mixer_class(name)
        own = {key: yaml.safe_load(value) for key, value in (_pair(setting, text) for setting in settings)}
        for chosen in itertools.product(*options):
            changes: dict[str, dict[str, Any]] = {"model": {"mixer": name, "mixer_settings": own or None}}
            for key, value in chosen:
                section, _, option = key.partition(".")
                changes.setdefault(section, {})[option] = yaml.safe_load(value)
            words = [text, *(f"{key.split('.')[-1]}={value}" for key, value in chosen)]
            arms.append(Arm(" ".join(words), changes, rivals=" ".join(words[: 1 + len(varied)])))
    if not arms:
        raise InputError("name at least one mixer to compare, such as --mixers softmax,slice-max")
    if len({arm.folder for arm in arms}) < len(arms):
        raise InputError("the same mixer with the same settings is named twice: name each once")
    return arms


def _pair(text: str, where: str) -> tuple[str, str]:
    key, sign, value = text.partition("=")
    if not (key and sign and value):
        raise InputError(f"{where!r}: write settings of a mixer as csp:groups=2:shifts=linear")
    return key, value


def _varied(text: str) -> list[tuple[str, str]]:
    key, sign, values = text.partition("=")
    known = [f"{section}.{name}" for section, part in RunConfig().to_dict().items() for name in part]
    if not sign or key not in known or key in ("model.mixer", "model.mixer_settings", "trainer.seed"):
        raise InputError(f"cannot vary {text!r}: write an option and its values, as model.distance_start=false,true")
    return [(key, value) for value in values.split(",")]


def parse_budget(text: str) -> dict[str, Any]:
    """Settings of the trainer for a budget such as ``90s``, ``10m``, ``2h``, ``5000steps`` or ``20epochs``."""
    match = re.fullmatch(r"([\d.]+)\s*(s|m|h|steps?|epochs?)", text.strip())
    try:
        amount = float(match.group(1)) if match else 0.0
    except ValueError:
        amount = 0.0
    if amount <= 0:
        raise InputError(f"cannot read the budget {text!r}: write 90s, 10m, 2h, 5000steps or 20epochs")
    unit = match.group(2)
    if unit in "smh":
        return {"max_minutes": amount * {"s": 1 / 60, "m": 1, "h": 60}[unit], "max_epochs": _ENDLESS, "max_steps": None}
    if amount != int(amount):
        raise InputError(f"the budget {text!r} must be a whole number of {unit}")
    if unit.startswith("step"):
        return {"max_steps": int(amount), "max_epochs": _ENDLESS, "max_minutes": None}
    return {"max_epochs": int(amount), "max_steps": None, "max_minutes": None}


def compare(
    base: RunConfig,
    arms: Sequence[Arm],
    seeds: int,
    budget: str,
    out: str | Path,
    *,
    jobs: int = 1,
    console: Console | None = None,
) -> dict:
    """Train every arm with every seed, each run in a process of its own, and put the results together.

    What is finished in ``out`` is kept and what was stopped is continued, so a call that was
    interrupted is continued by the same call, and a call with more mixers or seeds adds to it.

    Args:
        base: what the arms have in common.
        arms: what is compared.
        seeds: runs of each arm, with seeds from 0; of rivals, all but one are run with the first alone.
        budget: of each run: see :func:`parse_budget`. Time is that of training, validation included.
        out: a folder; a run folder for each run, ``comparison.json``, ``comparison.md`` and
            ``comparison.png`` go there.
        jobs: runs at a time, each with its share of the cores. They slow each other down: compare
            rates only within one setting, or use 1.
        console: where to report.

    Returns:
        What ``comparison.json`` holds: dataset, budget, machine, and for each run its arm, seed, mean
        absolute errors, parameters, rate, memory and curve (seconds, steps, validation error), or
        the reason why it has none, and whether it was passed over for a rival.

    Raises:
        InputError: if a run of ``out`` has other settings, another comparison works there, or no run
            could be finished.
    """
    out, console = Path(out), console or Console(stderr=True)
    if seeds < 1 or jobs < 1:
        raise InputError(f"seeds and jobs must be at least 1, not {min(seeds, jobs)}")
    base = replace(base, trainer=replace(base.trainer, **parse_budget(budget)))
    _check(arms, seeds, base, out)
    groups: dict[str, list[Arm]] = {}
    for arm in arms:
        groups.setdefault(arm.rivals or arm.label, []).append(arm)
    contests = [group for group in groups.values() if len(group) > 1]
    rivals = [arm for group in contests for arm in group]
    work = _Work(base, budget, out, jobs, console)
    with _alone(out):
        others = [group[0] for group in groups.values() if len(group) == 1]
        work.do(_runs(others, range(seeds), base, out) | _runs(rivals, [0], base, out))
        if contests:
            best = [min(group, key=lambda arm: _first_error(out / arm.folder)) for group in contests]
            chosen = [arm for arm in best if _first_error(out / arm.folder) < float("inf")]
            work.passed_over = {arm.label for arm in rivals} - {arm.label for arm in chosen}
            work.do(_runs(chosen, range(1, seeds), base, out))
        result = work.report()
    if len(work.reasons) == len(result["runs"]):
        raise InputError(f"none of the runs could be finished; the first: {next(iter(work.reasons.values()))}")
    return result


def _check(arms: Sequence[Arm], seeds: int, base: RunConfig, out: Path) -> None:
    """Say what is wrong with a mixer's settings, the data or the folder once, and before anything starts."""
    for arm in arms:
        model = arm.config(base, 0).model
        check_mixer(model.mixer, model.mixer_settings)
        build_mixer(model.mixer, model.dim, model.heads, **(model.mixer_settings or {}))
    wanted = _runs(arms, range(seeds), base, out)
    given = {repr(config.data): config.data for _, config in wanted.values()}
    data = {key: resolved(replace(base, data=one), load_source(one)).data for key, one in given.items()}
    for folder, (_, config) in wanted.items():
        _check_same(folder, config, data[repr(config.data)])


@dataclass
class _Work:
    """The runs of a comparison, as they are done.

    Attributes:
        plan: the folder of each run so far, with its arm and configuration.
        reasons: why those that failed did.
        passed_over: labels of the arms whose rivals did better.
    """

    base: RunConfig
    budget: str
    out: Path
    jobs: int
    console: Console
    plan: dict[Path, tuple[Arm, RunConfig]] = field(default_factory=dict)
    reasons: dict[Path, str] = field(default_factory=dict)
    passed_over: set[str] = field(default_factory=set)

    def do(self, runs: dict[Path, tuple[Arm, RunConfig]]) -> None:
        """Train what of these is not finished yet, and report after each."""
        self.plan |= runs
        waiting = [folder for folder in runs if not (folder / "metrics.json").exists()]
        tasks = {folder: runs[folder][1].to_dict() for folder in waiting}
        self.console.print(f"{len(self.plan)} runs of {self.budget}, {len(tasks)} to do", highlight=False)
        with closing(each_in_a_process(tasks, self.jobs)) as ended:
            for done, (folder, reason) in enumerate(ended, 1):
                if reason:
                    self.reasons[folder] = reason
                said = reason or f"test MAE {_scores(folder).get('test', {}).get('mae', float('nan')):.4f}"
                name = folder.relative_to(self.out)
                self.console.print(f"{done} of {len(tasks)}: {name}: {said}", highlight=False)
                self.report()

    def report(self) -> dict:
        """Write the result so far; runs that are still to come are not in it."""
        runs = []
        for folder, (arm, config) in self.plan.items():
            if run := _result(folder, arm, config, self.reasons.get(folder)):
                runs.append(run | ({"passed_over": True} if arm.label in self.passed_over else {}))
        common = self.base.to_dict()
        data = common.pop("data")  # its name and split: where it lies is no part of the result
        result = {"dataset": Path(data["dataset"]).name, "split": data["split"], "budget": self.budget}
        result |= {"jobs": self.jobs, "machine": machine(), "config": common, "runs": runs}
        _write(self.out, result)
        return result


def _runs(arms: Iterable[Arm], seeds: Iterable[int], base: RunConfig, out: Path) -> dict[Path, tuple[Arm, RunConfig]]:
    """The folders of these arms' runs, and what is trained there."""
    runs = itertools.product(seeds, arms)
    return {out / arm.folder / f"seed-{seed}": (arm, arm.config(base, seed)) for seed, arm in runs}


def _first_error(folder: Path) -> float:
    """Of an arm: the validation error with the first seed, which choices are made by."""
    return _scores(folder / "seed-0").get("valid", {}).get("mae", float("inf"))


@contextmanager
def _alone(out: Path):
    """Nothing else works in the folder: a run that two processes continued would be neither's."""
    lock = FileLock(out / ".lock")
    try:
        out.mkdir(parents=True, exist_ok=True)
        lock.acquire(timeout=0)
    except Timeout:
        raise InputError(f"another comparison works in {out}: wait for it, or choose another --out") from None
    except OSError as error:
        raise InputError(f"cannot write the folder {out}: {error.strerror}") from None
    try:
        yield
    finally:
        lock.release()


def _check_same(folder: Path, config: RunConfig, data: DataConfig) -> None:
    """Refuse a folder that holds a run of other settings, or of other data than ``data`` as it is now."""
    if not (folder / CONFIG).exists():
        return
    found, wanted = read_yaml(folder / CONFIG), config.to_dict()
    found["model"]["tasks"] = wanted["model"]["tasks"]  # what the data decides
    wanted["data"] = {key: getattr(data, key) for key in ("dataset", "targets", "split", "seed", "fingerprint")}
    for section, values in wanted.items():
        for key, value in values.items():
            if (there := found[section].get(key)) != value:
                if key == "fingerprint":
                    raise InputError(f"the data of {folder} has changed since it was trained: choose another --out")
                raise InputError(
                    f"{folder} holds a run with {section}.{key} {there}, not {value}: "
                    "choose another --out, or give the same settings"
                )


def _scores(folder: Path) -> dict:
    path = folder / "metrics.json"
    return json.loads(path.read_text()) if path.exists() else {}


def _result(folder: Path, arm: Arm, config: RunConfig, reason: str | None) -> dict | None:
    found: dict[str, Any] = {"arm": arm.label, "seed": config.trainer.seed}
    if reason is not None:
        return found | {"error": reason}
    scores = _scores(folder)
    if not scores:
        return None
    found |= {part: score["mae"] for part, score in scores.items()}
    found |= json.loads((folder / "training.json").read_text())
    return found | {"curve": _curve(folder)}


def _curve(folder: Path) -> list[list[float]]:
    """Seconds, steps and validation error of every validation, over all resumptions."""
    points: dict[int, list[float]] = {}
    for log in sorted(folder.glob("logs/version_*/metrics.csv")):
        with log.open(newline="") as file:
            for row in csv.DictReader(file):
                if row.get("val_mae") and row.get("seconds"):
                    steps = int(row["step"]) + 1
                    points[steps] = [round(float(row["seconds"]), 2), steps, round(float(row["val_mae"]), 6)]
    return [points[steps] for steps in sorted(points)]


def _write(out: Path, result: dict) -> None:
    out.mkdir(parents=True, exist_ok=True)
    for name, text in ((RESULT, json.dumps(result, indent=1) + "\n"), (TABLE, table(result))):
        temporary = out / (name + ".tmp")
        temporary.write_text(text)
        temporary.replace(out / name)
    draw(result, out / PICTURE)


def by_arm(result: dict) -> dict[str, list[dict]]:
    """The finished runs of each arm but those passed over, the arm of the smallest mean validation error first."""
    arms: dict[str, list[dict]] = {}
    for run in result["runs"]:
        if "error" not in run and "passed_over" not in run:
            arms.setdefault(run["arm"], []).append(run)
    return dict(sorted(arms.items(), key=lambda item: np.mean([run["valid"] for run in item[1]])))


def table(result: dict) -> str:
    """Markdown: a line an arm, with mean and standard deviation over its seeds."""
    lines = [
        "| mixer | test MAE | validation MAE | parameters | steps | molecules/s | peak memory | seeds |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for label, runs in by_arm(result).items():
        steps = np.mean([run["steps"] for run in runs])
        rate = np.mean([run["molecules_per_second"] for run in runs])
        memory = max(run["peak_memory_bytes"] or 0 for run in runs) / 2**30
        cells = [f"`{label}`", _spread(runs, "test"), _spread(runs, "valid"), f"{runs[0]['parameters']:,}"]
        cells += [f"{steps:,.0f}", f"{rate:,.0f}", f"{memory:.2f} GiB" if memory else "", str(len(runs))]
        lines.append("| " + " | ".join(cells) + " |")
    over = [run for run in result["runs"] if "passed_over" in run and "error" not in run]
    if over:
        errors = ", ".join(f"`{run['arm']}` {run['valid']:.4f}" for run in over)
        lines.append(f"\nPassed over by the validation error of the first seed, which is among those above: {errors}.")
    failed = [run for run in result["runs"] if "error" in run]
    lines += [f"\n{run['arm']}, seed {run['seed']}: {run['error']}" for run in failed]
    return "\n".join(lines) + "\n"


def _spread(runs: list[dict], part: str) -> str:
    values = [run[part] for run in runs if part in run]
    if not values:
        return ""
    deviation = f" ± {np.std(values, ddof=1):.4f}" if len(values) > 1 else ""
    return f"{np.mean(values):.4f}{deviation}"


def draw(result: dict, path: Path) -> None:
    """Validation error against time: the mean of the seeds, and all of them between the shades."""
    from matplotlib import colormaps
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    arms = {label: [run for run in runs if run["curve"]] for label, runs in by_arm(result).items()}
    figure = Figure(figsize=(8, 5), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    colours: Callable[[int], Any] = colormaps["tab10" if len(arms) <= 10 else "tab20"]
    for number, (label, runs) in enumerate(arms.items()):
        if not runs:
            continue
        curves = [np.array(run["curve"]) for run in runs]
        times = np.linspace(max(c[0, 0] for c in curves), min(c[-1, 0] for c in curves), 200)
        errors = np.stack([np.interp(times, c[:, 0], c[:, 2]) for c in curves])
        # Of one validation there is a point to see, not a line.
        single = "o" if np.ptp(times) == 0 else None
        axes.plot(times, errors.mean(0), color=colours(number), label=label, linewidth=1.4, marker=single)
        axes.fill_between(times, errors.min(0), errors.max(0), color=colours(number), alpha=0.15, linewidth=0)
    axes.set(xlabel="seconds of training", ylabel="validation MAE", yscale="log")
    if any(arms.values()):
        axes.legend(fontsize=8)
    figure.savefig(path, dpi=120)
