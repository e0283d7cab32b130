"""``graphslice train``, and what is done with its run folder."""

import os
import re
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest
from jsonargparse import ArgumentParser

import graphslice as gs
from graphslice.cli.options import add_config_options, build_config


def test_train_flags_beat_the_file_which_beats_the_preset(cli, training_of, demo_csv, tmp_path):
    (tmp_path / "c.yaml").write_text(
        f"data:\n  dataset: {demo_csv}\n  seed: 5\nmodel:\n  layers: 1\n  dim: 16\n  heads: 2\n  ffn_dim: 24\n"
    )
    flags = ["--preset=pcqm4m-slice", "--config", tmp_path / "c.yaml", "--model.ffn_dim", 8, "--optimizer.peak_lr=1e-4"]
    config, preset = training_of(cli, "train", *flags).config, gs.RunConfig.preset("pcqm4m-slice")
    assert (config.model.layers, config.model.dim, config.model.ffn_dim) == (1, 16, 8)
    assert config.data.dataset == str(demo_csv) and config.data.seed == 5 and config.optimizer.peak_lr == 1e-4
    assert config.model.mixer == preset.model.mixer and config.model.dropout == preset.model.dropout
    assert config.optimizer.weight_decay == preset.optimizer.weight_decay


def test_run_folder_has_the_name_of_the_data(cli, training_of, demo_csv):
    training = training_of(cli, "train", "--dataset", demo_csv)
    assert training.folder == Path("runs/demo60") and not training.overwrite
    assert training_of(cli, "train", "--dataset", demo_csv, "--overwrite").overwrite


def test_settings_of_a_mixer_one_by_one(cli, training_of, demo_csv):
    flags = ["--model.mixer", "csp", "--model.mixer_settings.groups", "2", "--model.mixer_settings.shifts", "linear"]
    config = training_of(cli, "train", "--dataset", demo_csv, *flags).config
    assert config.model.mixer_settings == {"groups": 2, "shifts": "linear"}


def test_the_start_that_is_given_beats_that_of_the_file(run_directory, tmp_path):
    """Every config.yaml of a run that began with the package's model names that."""
    (tmp_path / "c.yaml").write_text("init_from: small\n")
    for given, start in ((run_directory, str(run_directory)), ("none", "none"), (None, "small")):
        flags = ["--config", str(tmp_path / "c.yaml"), *([] if given is None else ["--init-from", str(given)])]
        parser = ArgumentParser()
        parser.add_argument("--init-from")
        add_config_options(parser, flags)
        assert build_config(parser.parse_args(flags)).init_from == start


def test_short_options_set_the_settings_that_they_name(cli, training_of, demo_csv, tiny_flags):
    flags = [*tiny_flags, "--epochs", 1, "--batch-size", 7, "--lr", "3e-4", "--data.id_column", "split"]
    config = training_of(cli, "train", "--data.dataset", demo_csv, *flags).config
    assert config.data.dataset == str(demo_csv) and config.data.id_column == "split"
    assert (config.trainer.max_epochs, config.trainer.batch_size, config.optimizer.peak_lr) == (1, 7, 3e-4)


@pytest.mark.parametrize("first", [True, False])
def test_the_table_may_stand_first_or_last_without_its_option(first, cli, training_of, demo_csv, tiny_flags):
    words = [demo_csv, *tiny_flags] if first else [*tiny_flags, demo_csv]
    assert training_of(cli, "train", *words).config.data.dataset == str(demo_csv)
    code, _, err = cli("compare", "absent.csv", "--mixers", "csp")
    assert code == 2 and "no file at absent.csv" in err


@pytest.mark.parametrize("words", [[], ["train"], ["tune"], ["compare"]])
def test_a_command_of_a_table_alone_prints_its_help(words, cli, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    code, out, err = cli(*words)
    assert (code, err) == (0, "") and out.startswith(
        f"usage: graphslice {words[0]} [--dataset] FILE" if words else "usage: graphslice"
    )
    assert not any(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--targets", "gap"], "has no column 'gap' (did you mean 'gap_ev'?)"),
        (["--targets", "gap_ev", "--transform", "gap_ev=exp"], "data.transform must be none or log, not 'exp'"),
        ([], "holds a run already: choose another --out"),
    ],
)
def test_mistakes_in_options_are_reported_before_an_existing_run(options, message, cli, run_directory, demo_csv):
    before = sorted((path.name, path.stat().st_mtime_ns) for path in run_directory.iterdir())
    code, out, err = cli("train", "--dataset", demo_csv, "-o", run_directory, *options)
    assert code == 2 and out == "" and message in err and len(err.splitlines()) == 1
    assert sorted((path.name, path.stat().st_mtime_ns) for path in run_directory.iterdir()) == before


@pytest.mark.slow
def test_a_terminal_has_one_line_of_progress_above_which_everything_else_stands(
    demo_csv, tiny_flags, tmp_path, child_environment
):
    """Frames of the line at 80 columns, taken from a pseudo terminal."""
    pty, termios = pytest.importorskip("pty"), pytest.importorskip("termios")
    terminal, end = pty.openpty()
    termios.tcsetwinsize(end, (24, 80))
    flags = [flag for flag in tiny_flags if "max_epochs" not in flag]  # so many epochs last for several frames
    flags += ["--trainer.max_epochs=100", "-o", tmp_path / "run"]
    command = [sys.executable, "-m", "graphslice", "train", demo_csv, *flags]
    process = subprocess.Popen(command, stdout=end, stderr=end, stdin=subprocess.DEVNULL, env=child_environment)
    os.close(end)
    output = b""
    with suppress(OSError):  # the other end is closed
        while part := os.read(terminal, 10_000):
            output += part
    assert process.wait() == 0, output
    text = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", output.decode())
    lines = dict.fromkeys(line for line in re.split("[\r\n]+", text) if line.strip())
    frames = [line for line in lines if re.search("elapsed(, [0-9:]+ left)?$", line)]
    assert {len(line) for line in frames} == {80}
    shares = [int(line.split("%")[0]) for line in frames if "%" in line]
    assert shares == sorted(shares) and any("network, MAE" in line for line in frames)
    assert any(re.fullmatch(r"test MAE .* on 6 molecules", line) for line in lines)  # a result
    assert any(line.startswith("split: 47 training") for line in lines) and f"model: {tmp_path / 'run'}" in text
