"""The note about compilation, in a process of its own."""

import subprocess
import sys

PROGRAM = """
import sys
from numba import njit
from graphslice.system import compile_note

for _ in range(2):
    compile_note.announce_compilation()
for seconds in (1e9, 0.0, 0.0):
    compile_note._SECONDS = seconds
    njit(lambda x: x + seconds)(1)
    print(f"limit of {seconds} s", file=sys.stderr)
"""


def test_note_is_printed_once_when_compilation_takes_long():
    run = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True)
    note = "note: compiling kernels for this processor, each once after an installation"
    assert run.stderr.splitlines() == ["limit of 1000000000.0 s", note, *["limit of 0.0 s"] * 2]
    assert run.stdout == ""
