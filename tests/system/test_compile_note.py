"""The note about compilation, in a process of its own."""

import subprocess
import sys

PROGRAM = """
import sys
from numba import njit
from graphslice.system import compile_note

for _ in range(2):
    compile_note.announce_compilation()
for module in ("mine", "graphslice.mine", "graphslice.mine"):
    def function(x):
        return x + 1
    function.__module__ = module
    njit(function)(1)
    print(module, file=sys.stderr)
"""


def test_note_is_printed_once_when_a_kernel_of_the_package_is_compiled():
    run = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True)
    note = "note: compiling kernels for this processor, each once after an installation"
    assert run.stderr.splitlines() == ["mine", note, "graphslice.mine", "graphslice.mine"]
    assert run.stdout == ""
