"""The command line as a whole: help, versions, options, and readers that go away."""

import errno
import io
import os
import re
import shlex
import signal
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest
import torch

import graphslice as gs
from graphslice.cli.main import COMMANDS, GROUPS, _parser, main, with_dataset


def test_help_and_version(cli):
    code, out, err = cli("--help")
    assert (code, err) == (0, "") and out.startswith("usage: graphslice")
    assert all(f"\n{group}:\n  {next(iter(commands))} " in out for group, commands in GROUPS.items())
    assert all(f"\n  {command} " in out for command in COMMANDS)
    assert cli("--version") == (0, f"graphslice {gs.__version__}\n", "")


PLACEHOLDERS = {"FILE", "FOLDER", "COLUMN", "MODEL", "N", "I/N", "NAME", "NAME=A,B", "VALUE"}


@pytest.mark.parametrize("command", COMMANDS)
def test_help_of_a_command(command, cli):
    code, out, err = cli(command, "--help")
    assert (code, err) == (0, "") and out.startswith("usage: graphslice")
    expected = {"train": "--model.mixer", "evaluate": "--split", "report": "report.html", "doctor": "--json"}
    expected |= {"mcp": "--folder", "push": "--license", "serve": "--port"}
    assert expected.get(command, "-o") in out
    usage, *lines = out.splitlines()
    # --graph CONFIG, of a section of settings, is jsonargparse's.
    options = [match[1] for line in lines if (match := re.match(r"  (?:-o, )?--(?!graph)[a-z-]+ ([A-Z]\S*)", line))]
    assert {*options, *re.findall("[A-Z]{2,}", usage)} <= PLACEHOLDERS
    title, *examples = out.splitlines()[-3:]
    assert title == "examples:"
    for words in map(shlex.split, examples):
        assert words[:2] == ["graphslice", command]
        arguments = with_dataset(words[1:])
        _parser(arguments)[0].parse_args(arguments)  # every option exists


def test_full_help_states_each_default_once(cli):
    options = re.split(r"\n  (?=-)", cli("compare", "--help-all")[1])
    assert max(option.count("default: ") for option in options) == 1
    assert not any("null)" in option for option in options)


def test_a_reader_that_has_seen_enough(cli, run_directory, tmp_path, monkeypatch):
    """``graphslice predict run molecules.csv | head``, with more output than a pipe's buffer."""
    (tmp_path / "in.csv").write_text("smiles,note\n" + f"C,{'x' * 100}\n" * 500)
    reader, writer = os.pipe()
    os.close(reader)
    with monkeypatch.context() as patch, os.fdopen(writer, "w") as stdout:
        patch.setattr(sys, "stdout", stdout)
        code, _, err = cli("predict", run_directory, tmp_path / "in.csv")
    assert (code, err) == (0, "")


def test_an_interrupt_waits_until_libraries_are_loaded(cli, run_directory, tmp_path, monkeypatch):
    """Half-loaded libraries would turn it into errors of their own."""
    (tmp_path / "slow_library.py").write_text("import os, signal\nos.kill(os.getpid(), signal.SIGINT)\nloaded = True\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr("graphslice.cli.predict.MODULE", "slow_library")
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # which processes in the background have not
    try:
        assert cli("predict", run_directory, "CCO") == (130, "", "graphslice: stopped\n")
        assert sys.modules.pop("slow_library").loaded
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    finally:
        signal.signal(signal.SIGINT, before)


def test_an_option_is_never_guessed(cli, demo_csv, tiny_flags, tmp_path):
    """Half an option that is taken for another would train a model that nobody asked for."""
    code, _, err = cli("train", "--dataset", demo_csv, *tiny_flags, "--pres", "pcqm4m-slice", "-o", tmp_path / "run")
    assert code == 2 and "--preset" in err and not (tmp_path / "run").exists()


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="needs /proc")
def test_processes_end_with_the_one_that_began_them(start, wait_for_exit, demo_smiles, tmp_path):
    (tmp_path / "in.smi").write_text("\n".join(demo_smiles * 20))
    process = start("featurize", tmp_path / "in.smi", "-o", tmp_path / "out.arrow", "--workers", 2)

    def children() -> int:
        found = 0
        for path in Path("/proc").glob("[0-9]*/stat"):
            with suppress(OSError):
                state, parent = path.read_text().rpartition(")")[2].split()[:2]
                found += int(parent) == process.pid and state != "Z"
        return found

    while children() < 2:
        assert process.poll() is None, process.communicate()[1]
        time.sleep(0.1)
    process.kill()
    assert wait_for_exit(process)[0] == -signal.SIGKILL  # which waits for the others too


FULL = {
    "out of GPU memory: ": torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB"),
    "out of memory: ": MemoryError(),
    # Of the file, not of its temporary copy.
    "No space left on device: a\n": OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "/tmp/x1", None, "a"),
}


@pytest.mark.parametrize("message", FULL)
def test_memory_and_disks_that_are_full(message, cli, run_directory, monkeypatch):
    def full(*arguments, **options):
        raise FULL[message]

    monkeypatch.setattr("graphslice.inference.predictor.Predictor.predict_store_rows", full)
    code, out, err = cli("predict", run_directory, "CCO")
    assert (code, out) == (2, "") and err.startswith(f"graphslice: {message}") and err.count("\n") == 1


def test_characters_that_the_output_cannot_encode_are_escaped(monkeypatch):
    """Windows writes to pipes in an encoding of 256 characters."""
    buffer = io.BytesIO()
    monkeypatch.setattr("sys.stdout", io.TextIOWrapper(buffer, "cp1252", write_through=True))
    with pytest.raises(SystemExit):
        main(["--version"])
    print("\u03b2-carotene")
    assert buffer.getvalue().decode("cp1252").splitlines()[-1] == r"\u03b2-carotene"
