from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time

import numpy as np
import pandas as pd
import pytest
from filelock import FileLock

from graphslice.compare.runner import by_arm, compare, parse_arms, parse_budget, table
from graphslice.errors import InputError

FILES = {"comparison.json", "comparison.md", "comparison.png"}


# --- what a user writes -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "settings"),
    [
        ("90s", {"max_minutes": 1.5}),
        ("10m", {"max_minutes": 10}),
        ("0.5h", {"max_minutes": 30}),
        ("5000steps", {"max_steps": 5000, "max_minutes": None}),
        ("1step", {"max_steps": 1}),
        ("20 epochs", {"max_epochs": 20, "max_steps": None, "max_minutes": None}),
    ],
)
def test_budget(text, settings):
    found = parse_budget(text)
    assert {key: found[key] for key in settings} == settings


@pytest.mark.parametrize("text", ["", "10", "m", "10 min", "-3m", "0s", "1.5epochs", "1.2.3m", "10x"])
def test_bad_budget(text):
    with pytest.raises(InputError, match="budget"):
        parse_budget(text)


def test_arms(tiny_config):
    arms = parse_arms("softmax, csp:groups=2:shifts=linear", ["model.layers=1,2", "optimizer.peak_lr=1e-3"])
    assert [arm.label for arm in arms] == [
        "softmax layers=1 peak_lr=1e-3",
        "softmax layers=2 peak_lr=1e-3",
        "csp:groups=2:shifts=linear layers=1 peak_lr=1e-3",
        "csp:groups=2:shifts=linear layers=2 peak_lr=1e-3",
    ]
    config = arms[3].config(tiny_config(), seed=7)
    assert config.model.mixer == "csp" and config.model.mixer_settings == {"groups": 2, "shifts": "linear"}
    assert config.model.layers == 2 and config.optimizer.peak_lr == 1e-3 and config.trainer.seed == 7
    assert config.model.dim == tiny_config().model.dim
    assert len({arm.folder for arm in arms}) == 4 and all("/" not in arm.folder for arm in arms)


def test_rivals_differ_in_what_is_tuned_alone():
    arms = parse_arms("softmax,csp", ["model.layers=1,2"], ["optimizer.peak_lr=1e-3,2e-3"])
    assert [(arm.rivals, arm.label) for arm in arms[2:5]] == [
        ("softmax layers=2", "softmax layers=2 peak_lr=1e-3"),
        ("softmax layers=2", "softmax layers=2 peak_lr=2e-3"),
        ("csp layers=1", "csp layers=1 peak_lr=1e-3"),
    ]
    assert len({arm.rivals for arm in arms}) == 4 and len({arm.folder for arm in arms}) == 8


@pytest.mark.parametrize(
    ("mixers", "varied", "said"),
    [
        ("slice-mex", [], "did you mean 'slice-max'"),
        ("", [], "at least one"),
        ("csp:2", [], "csp:groups=2"),
        ("csp,csp", [], "twice"),
        ("csp", ["model.laiers=1"], "cannot vary"),
        ("csp", ["model.layers"], "cannot vary"),
        ("csp", ["trainer.seed=1,2"], "cannot vary"),
    ],
)
def test_bad_arms(mixers, varied, said):
    with pytest.raises(InputError, match=said):
        parse_arms(mixers, varied)


def test_bad_settings_are_refused_before_anything_starts(tmp_path, tiny_config, demo_csv):
    for mixers, said in (
        ("csp:grups=2", "grups"),
        ("slice-max:groups=2", "it has none"),
        ("csp:groups=two", "must be of type int"),
        ("csp:groups=0", "at least 1 group"),
    ):
        with pytest.raises(InputError, match=said):
            compare(tiny_config(demo_csv), parse_arms(mixers), 1, "1epochs", tmp_path / "c")
    with pytest.raises(InputError, match="at least 1"):
        compare(tiny_config(demo_csv), parse_arms("csp"), 0, "1epochs", tmp_path / "c")
    assert not (tmp_path / "c").exists()


def test_two_comparisons_in_one_folder(tmp_path, tiny_config, demo_csv):
    with FileLock(tmp_path / ".lock"), pytest.raises(InputError, match=f"another comparison works in {tmp_path}: wait"):
        compare(tiny_config(demo_csv), parse_arms("csp"), 1, "1epochs", tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == [".lock"]
    with pytest.raises(InputError, match="cannot write the folder"):
        compare(tiny_config(demo_csv), parse_arms("csp"), 1, "1epochs", tmp_path / ".lock" / "c")


# --- runs ---------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def compared(demo_csv, tiny_config, tmp_path_factory):
    out = tmp_path_factory.mktemp("comparison") / "c"
    result = compare(tiny_config(demo_csv), parse_arms("slice-max,map-only"), 1, "2epochs", out, jobs=2)
    return out, result


@pytest.mark.slow
def test_result(compared, tiny_config, demo_csv):
    out, result = compared
    assert result == json.loads((out / "comparison.json").read_text())
    assert {path.name for path in out.iterdir()} == FILES | {".lock", "slice-max", "map-only"}
    assert (out / "comparison.png").read_bytes().startswith(b"\x89PNG")
    assert [(run["arm"], run["seed"]) for run in result["runs"]] == [("slice-max", 0), ("map-only", 0)]
    for run in result["runs"]:
        folder = out / run["arm"] / "seed-0"
        metrics = json.loads((folder / "metrics.json").read_text())
        assert (run["valid"], run["test"]) == (metrics["valid"]["mae"], metrics["test"]["mae"])
        assert run["steps"] == 6 and run["parameters"] > 1000
        log = pd.read_csv(next(folder.glob("logs/version_0/metrics.csv")))["val_mae"].dropna()
        assert [point[2] for point in run["curve"]] == pytest.approx(log.tolist(), abs=1e-5)
        assert [point[1] for point in run["curve"]] == [3, 6]


@pytest.mark.slow
def test_a_finished_comparison_is_only_read(compared, tiny_config, demo_csv):
    out, result = compared
    before = {path: path.stat().st_mtime_ns for path in out.glob("*/seed-0/*")}
    assert compare(tiny_config(demo_csv), parse_arms("slice-max,map-only"), 1, "2epochs", out)["runs"] == result["runs"]
    assert {path: path.stat().st_mtime_ns for path in out.glob("*/seed-0/*")} == before


@pytest.mark.slow
def test_continued_and_added_to(compared, tiny_config, demo_csv, tmp_path):
    """One run finished, one stopped before its end, one new, and one that cannot be finished."""
    out = tmp_path / "c"
    shutil.copytree(compared[0], out)
    (out / "slice-max" / "seed-0" / "metrics.json").unlink()
    kept = (out / "map-only" / "seed-0" / "metrics.json").stat().st_mtime_ns
    config = tiny_config(demo_csv)
    again = compare(config, parse_arms("slice-max,map-only,softmax"), 1, "2epochs", out, jobs=2)
    assert [run["arm"] for run in again["runs"]] == ["slice-max", "map-only", "softmax"]
    assert again["runs"][0]["test"] == compared[1]["runs"][0]["test"]
    assert (out / "map-only" / "seed-0" / "metrics.json").stat().st_mtime_ns == kept
    with pytest.raises(InputError, match=r"holds a run with trainer.max_epochs 2, not 3: choose another --out"):
        compare(config, parse_arms("slice-max"), 1, "3epochs", out)


@pytest.mark.slow
def test_other_data_of_the_same_name(tiny_config, demo_csv, tmp_path):
    """Other targets, or other labels in the same file: no run of the folder may pass for one of them."""
    table = pd.read_csv(demo_csv)
    table["other"] = np.arange(len(table)) * 0.1
    table.to_csv(tmp_path / "my.csv", index=False)
    name = next(name for name in table if name not in ("smiles", "split", "other") and table[name].dtype == float)
    config = tiny_config(tmp_path / "my.csv")
    config.data.targets = name
    compare(config, parse_arms("map-only"), 1, "1epochs", tmp_path / "c")
    config.data.targets = "other"
    with pytest.raises(InputError, match=f"holds a run with data.targets {name}, not other"):
        compare(config, parse_arms("map-only"), 1, "1epochs", tmp_path / "c")
    config.data.targets = name
    table.assign(**{name: table[name] + 1}).to_csv(tmp_path / "my.csv", index=False)
    with pytest.raises(InputError, match="has changed since it was trained"):
        compare(config, parse_arms("map-only"), 1, "1epochs", tmp_path / "c")


BROKEN = """
import os
from graphslice.nn.mixers import MIXERS

def mixed(self, x, structure):
    if {die}:
        os._exit(7)
    raise ZeroDivisionError("a mixer that is being written")

MIXERS["csp"].mixed = mixed
"""


@pytest.mark.slow
@pytest.mark.parametrize(("die", "reason"), [(False, "ZeroDivisionError: a mixer that is"), (True, "ended with 7")])
def test_a_run_that_breaks_does_not_stop_the_others(tiny_config, demo_csv, tmp_path, monkeypatch, die, reason):
    (tmp_path / "sitecustomize.py").write_text(BROKEN.format(die=die))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    result = compare(tiny_config(demo_csv), parse_arms("csp,map-only"), 1, "1epochs", tmp_path / "c")
    bad, good = result["runs"]
    assert reason in bad["error"] and good["test"] > 0
    monkeypatch.delenv("PYTHONPATH")
    again = compare(tiny_config(demo_csv), parse_arms("csp,map-only"), 1, "1epochs", tmp_path / "c")
    assert all("error" not in run for run in again["runs"])


@pytest.mark.slow
def test_a_run_that_fails_does_not_stop_the_others(tiny_config, demo_csv, tmp_path):
    arms = parse_arms("map-only", ["optimizer.peak_lr=1e-3,1e30"])
    result = compare(tiny_config(demo_csv), arms, 1, "1epochs", tmp_path / "c", jobs=2)
    good, bad = result["runs"]
    assert good["test"] > 0 and "diverged" in bad["error"]
    text = (tmp_path / "c" / "comparison.md").read_text()
    assert "peak_lr=1e30, seed 0: the training diverged" in text and text.count("| `map-only") == 1
    with pytest.raises(InputError, match="none of the runs could be finished"):
        compare(tiny_config(demo_csv), arms[1:], 1, "1epochs", tmp_path / "d")


@pytest.mark.slow
def test_each_mixer_is_tuned_with_the_first_seed(tiny_config, demo_csv, tmp_path):
    """1e-9 learns nothing, 1e30 diverges; the other seed is trained with what is left."""
    arms = parse_arms("map-only,slice-max", [], ["optimizer.peak_lr=1e-9,3e-3,1e30"])
    result = compare(tiny_config(demo_csv), arms, 2, "2epochs", tmp_path / "c", jobs=2)
    found = {(run["arm"], run["seed"]): run for run in result["runs"]}
    for mixer in ("map-only", "slice-max"):
        good, slow, wild = (f"{mixer} peak_lr={rate}" for rate in ("3e-3", "1e-9", "1e30"))
        assert {seed for arm, seed in found if arm == good} == {0, 1}
        assert {seed for arm, seed in found if arm in (slow, wild)} == {0}
        assert found[slow, 0]["valid"] > found[good, 0]["valid"] and "diverged" in found[wild, 0]["error"]
        assert found[slow, 0]["passed_over"] and "passed_over" not in found[good, 0]
    assert set(by_arm(result)) == {"map-only peak_lr=3e-3", "slice-max peak_lr=3e-3"}
    text = (tmp_path / "c" / "comparison.md").read_text()
    assert "among those above: `map-only peak_lr=1e-9` " in text
    assert text.count("peak_lr=1e30, seed 0: the training") == 2
    again = compare(tiny_config(demo_csv), arms[:2] + arms[3:5], 2, "2epochs", tmp_path / "c")  # nothing to train
    assert [run for run in result["runs"] if "error" not in run] == again["runs"]


def test_table():
    """The arm of the smaller validation error first; mean and deviation over the seeds."""
    common = {
        "parameters": 1234,
        "steps": 1500,
        "molecules_per_second": 100.0,
        "peak_memory_bytes": 2**30,
        "curve": [[1.0, 5, 0.5]],
    }
    runs = [{"arm": arm, "seed": s, "valid": v, "test": t} | common for arm, s, v, t in (
        ("a", 0, 0.4, 0.31), ("a", 1, 0.4, 0.35), ("b", 0, 0.2, 0.5), ("b", 1, 0.3, 0.5),
    )]  # fmt: skip
    result = {"runs": [*runs, {"arm": "c", "seed": 0, "error": "no"}]}
    assert list(by_arm(result)) == ["b", "a"]
    lines = table(result).splitlines()
    assert lines[2].startswith("| `b` | 0.5000 ± 0.0000 | 0.2500 ± 0.0707 | 1,234 | 1,500 | 100 | 1.00 GiB | 2 |")
    assert f"0.3300 ± {np.std([0.31, 0.35], ddof=1):.4f}" in lines[3] and lines[-1] == "c, seed 0: no"


@pytest.mark.slow
def test_command(cli, demo_csv, tiny_config, compared, tmp_path):
    shutil.copytree(compared[0], tmp_path / "c")
    (tmp_path / "tiny.yaml").write_text(tiny_config(demo_csv).to_yaml())
    command = ["compare", "--config", tmp_path / "tiny.yaml", "--mixers", "slice-max,map-only", "--seeds", 1]
    code, out, err = cli(*command, "--budget", "2epochs", "--out", tmp_path / "c")
    assert code == 0 and "`slice-max`" in out and "2 runs of 2epochs, 0 to do" in err
    code, out, err = cli(*command, "--budget", "soon", "--out", tmp_path / "c")
    assert code == 2 and "cannot read the budget 'soon'" in err


@pytest.mark.slow
@pytest.mark.parametrize("how", ["terminal", "interrupt", "terminate", "kill", "kill-background"])
def test_one_interrupt_stops_everything(demo_csv, tiny_config, tmp_path, how):
    """Ctrl-C in a terminal reaches the whole group of processes; the others the first alone."""
    (tmp_path / "tiny.yaml").write_text(tiny_config(demo_csv).to_yaml())
    command = [sys.executable, "-m", "graphslice.cli", "compare", "--config", tmp_path / "tiny.yaml", "--jobs", 1]
    command += ["--mixers", "slice-max,map-only,csp", "--seeds", 1, "--budget", "9999steps", "--out", tmp_path / "c"]
    process = subprocess.Popen(
        [str(part) for part in command],
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        # As a shell does with what runs in the background.
        preexec_fn=(lambda: signal.signal(signal.SIGINT, signal.SIG_IGN)) if how == "kill-background" else None,
    )
    deadline = time.monotonic() + 120
    while not (tmp_path / "c" / "slice-max" / "seed-0" / "last.ckpt").exists():
        assert process.poll() is None and time.monotonic() < deadline
        time.sleep(0.1)
    ways = {"terminate": signal.SIGTERM, "kill": signal.SIGKILL, "kill-background": signal.SIGKILL}
    sent = ways.get(how, signal.SIGINT)
    (os.killpg if how == "terminal" else os.kill)(process.pid, sent)
    _, said = process.communicate(timeout=60)  # until no process holds the pipe
    assert process.returncode == (130 if sent == signal.SIGINT else -sent)
    assert "Traceback" not in said
    assert not (tmp_path / "c" / "map-only").exists() and not (tmp_path / "c" / "csp").exists()
