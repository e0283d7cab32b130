"""The note about compilation, in processes of their own."""

import subprocess
import sys

import pytest

NOTE = "compiling kernels for this processor, once for each installation\n"
PROGRAM = """
import time
from numba import njit
from graphslice import compile_note
compile_note._SECONDS = {seconds}
for _ in range(2):
    compile_note.announce_compilation()
for number in range(3):
    njit(lambda x: x + number)(1)
"""


@pytest.mark.parametrize(("seconds", "note"), [(0.0, NOTE), (1e9, "")])
def test_note_is_printed_once_when_compilation_takes_long(seconds, note):
    program = [sys.executable, "-c", PROGRAM.format(seconds=seconds)]
    run = subprocess.run(program, capture_output=True, text=True, check=True)
    assert run.stderr == note and run.stdout == ""
