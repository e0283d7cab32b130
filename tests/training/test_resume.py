import json
import shutil
import signal

import numpy as np
import pytest
import torch

import graphslice as gs
from graphslice.errors import InputError
from graphslice.runs.checkpoint import read_checkpoint
from graphslice.training import resume, train
from graphslice.training.loop import Interrupted, TrainingLoop
from graphslice.training.module import PropertyModule


def settings(batch_size: int = 8, **trainer) -> dict:
    return {"model": {"dropout": 0.1}, "trainer": {"max_epochs": 3, "batch_size": batch_size, **trainer}}


@pytest.fixture(scope="module")
def uninterrupted(demo_csv, tiny_config, tmp_path_factory):
    """``uninterrupted(batch_size)``: a finished run that was never stopped."""
    folders = {}

    def run(batch_size: int = 8):
        if batch_size not in folders:
            folders[batch_size] = tmp_path_factory.mktemp("whole") / "run"
            train(tiny_config(demo_csv, **settings(batch_size)), folders[batch_size])
        return folders[batch_size]

    return run


def state_of(folder) -> dict[str, torch.Tensor]:
    return torch.load(folder / "last.ckpt", weights_only=True)["state_dict"]


def assert_same_run(folder, other) -> None:
    best, last = (
        [read(run) for run in (folder, other)] for read in (lambda run: read_checkpoint(run).weights, state_of)
    )
    for found, expected in (best, last):
        assert found.keys() == expected.keys()
        assert all(np.array_equal(found[key], expected[key]) for key in expected)
    assert json.loads((folder / "metrics.json").read_text()) == json.loads((other / "metrics.json").read_text())


def test_best_epoch_is_known_after_moving_the_run_directory(uninterrupted, tiny_config, demo_csv, tmp_path):
    """A resumed run replaces ``model.safetensors`` only by a better epoch."""
    folder = tmp_path / "moved"
    shutil.copytree(uninterrupted(), folder)
    (folder / "metrics.json").unlink()
    config = (folder / "config.yaml").read_text()
    (folder / "config.yaml").write_text(config.replace("max_epochs: 3", "max_epochs: 5"))
    contents = torch.load(folder / "last.ckpt", weights_only=True)
    contents["training"]["best"] = 0.0
    torch.save(contents, folder / "last.ckpt")
    before = read_checkpoint(folder / "model.safetensors").weights
    resume(folder)
    after = read_checkpoint(folder / "model.safetensors").weights
    assert all(np.array_equal(before[name], after[name]) for name in before)


def test_run_killed_within_an_epoch_is_resumed(cli, demo_csv, tiny_config, uninterrupted, tmp_path, monkeypatch):
    """A checkpoint is written every 20 steps, whenever the clock is read; an epoch has 24."""
    step, killed = TrainingLoop._step, tmp_path / "killed"

    def copy_files(loop, batch):
        if loop.state.step == 47:
            shutil.copytree(tmp_path / "run", killed)  # what a killed process leaves behind
        return step(loop, batch)

    with monkeypatch.context() as patch:
        patch.setattr(TrainingLoop, "_step", copy_files)
        train(tiny_config(demo_csv, **settings(batch_size=2, checkpoint_minutes=1e-9)), tmp_path / "run")
    done = torch.load(killed / "last.ckpt", weights_only=True)["training"]["step"]
    assert 24 < done < 48
    assert cli("train", "--resume", killed)[0] == 0
    assert_same_run(killed, uninterrupted(batch_size=2))
    assert_same_run(tmp_path / "run", killed)


def test_run_killed_before_the_first_checkpoint_is_resumed(uninterrupted, tmp_path):
    """The run directory holds only what is written before the first step."""
    (tmp_path / "run").mkdir()
    for name in ("config.yaml", "split.csv", "rejected.csv"):
        shutil.copy(uninterrupted() / name, tmp_path / "run")
    resume(tmp_path / "run")
    assert_same_run(tmp_path / "run", uninterrupted())


@pytest.mark.slow
def test_run_stopped_by_the_user_is_resumed(
    start, wait_for, wait_for_exit, cli, demo_csv, tiny_config, uninterrupted, tmp_path
):
    """By Ctrl-C; test_devices.py has SIGTERM."""
    folder = tmp_path / "run"
    (tmp_path / "c.yaml").write_text(tiny_config(demo_csv, **settings()).to_yaml())
    process = start("train", "--config", tmp_path / "c.yaml", "--out", folder)
    wait_for(process, folder / "last.ckpt")
    process.send_signal(signal.SIGINT)
    code, _, err = wait_for_exit(process)
    assert code == 130 and "Traceback" not in err
    assert any(line.endswith(f"graphslice train --resume {folder}") for line in err.splitlines()), err
    assert not (folder / "metrics.json").exists() and not list(folder.glob(".*"))
    assert cli("train", "--resume", folder)[0] == 0
    assert_same_run(folder, uninterrupted())


@pytest.mark.parametrize(
    ("owner", "method", "call", "step"),
    [(TrainingLoop, "_step", 10, 10), (PropertyModule, "validate", 1, 24)],
)
def test_last_step_before_a_stop_is_kept(
    owner, method, call, step, demo_csv, tiny_config, uninterrupted, tmp_path, monkeypatch
):
    """Also one within an epoch of 24 steps, or before the validation at its end."""
    calls, original = [], getattr(owner, method)

    def interrupted(*args):
        calls.append(args)
        if len(calls) == call:
            signal.raise_signal(signal.SIGTERM)  # from the scheduler, as all processes of the job
            signal.raise_signal(signal.SIGINT)  # from the parent, which got it too
        return original(*args)

    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # it is ignored in the background
    try:
        with monkeypatch.context() as patch:
            patch.setattr(owner, method, interrupted)
            with pytest.raises(Interrupted):
                train(tiny_config(demo_csv, **settings(batch_size=2)), tmp_path / "run")
    finally:
        signal.signal(signal.SIGINT, before)
    assert torch.load(tmp_path / "run" / "last.ckpt", weights_only=True)["training"]["step"] == step
    resume(tmp_path / "run")
    assert_same_run(tmp_path / "run", uninterrupted(batch_size=2))


def test_stopped_run_predicts_with_a_note(uninterrupted, cli, tmp_path):
    folder = tmp_path / "my run"
    shutil.copytree(uninterrupted(), folder)
    (folder / "metrics.json").unlink()
    note = f"{folder} is not finished (it has no metrics.json), and its model may be that of the best epoch so far; "
    code, _, err = cli("predict", folder, "CCO")
    assert code == 0 and f"{note}continue with graphslice train --resume '{folder}'" in err
    with pytest.warns(UserWarning, match="is not finished"):
        gs.load(folder)


def test_run_stopped_between_its_trainings_says_how_to_continue(cli, demo_csv, tiny_config, tmp_path, monkeypatch):
    (tmp_path / "c.yaml").write_text(tiny_config(demo_csv, trainer={"max_epochs": 1}).to_yaml())
    stopped = lambda *arguments: signal.raise_signal(signal.SIGTERM)  # noqa: E731
    monkeypatch.setattr("graphslice.training.run.evaluate_run", stopped)
    code, _, err = cli("train", "--config", tmp_path / "c.yaml", "--out", tmp_path / "my run")
    assert code == 130 and err.endswith(f"stopped; continue with: graphslice train --resume '{tmp_path / 'my run'}'\n")


@pytest.fixture
def short_run(demo_rows, tiny_config, tmp_path):
    demo_rows.to_csv(tmp_path / "data.csv", index=False)
    train(tiny_config(tmp_path / "data.csv", trainer={"max_epochs": 1}), tmp_path / "run")
    return tmp_path / "run"


def test_changed_data_is_rejected(short_run, demo_rows, cli):
    """Else, with a changed split, molecules of the test set would be trained on."""
    before = {path: path.read_bytes() for path in short_run.glob("*.*")}
    for change in ("gap_ev", "smiles", "split"):
        table = demo_rows.assign(**{change: demo_rows[change].to_numpy()[::-1]})
        table.to_csv(short_run.parent / "data.csv", index=False)
        code, _, err = cli("train", "--resume", short_run)
        assert code == 2 and "has changed since the run was started" in " ".join(err.split())
    assert {path: path.read_bytes() for path in short_run.glob("*.*")} == before


def test_damaged_last_checkpoint_is_reported(short_run):
    last = short_run / "last.ckpt"
    last.write_bytes(last.read_bytes()[:1000])
    (short_run / "metrics.json").unlink()
    with pytest.raises(InputError, match=r"cannot read .*last\.ckpt"):
        resume(short_run)
