"""Compilation of the Triton kernels for GPU architectures, without a GPU; counts of their instructions."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from graphslice.ops.triton import SHARED_MEMORY

pytest.importorskip("triton")


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="Triton compiles on Linux")
@pytest.mark.parametrize("capability", [75, 80, 90])
def test_sort_stays_in_the_registers_of_its_thread(capability):
    """Of up to 64 rows no thread needs a value of another, and none is spilled. A multiprocessor has 65,536 registers
    and at most 32 programs, 16 before Ampere: for 16-bit values it has all of them up to 24 rows, 28 for 32 rows."""
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    command = [sys.executable, Path(__file__).with_name("compile_kernels.py"), str(capability)]
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr[-3000:]
    kernels = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(kernels) == 2 * 2 * 5 + 3
    assert all(kernel["bytes_shared"] <= SHARED_MEMORY for kernel in kernels)
    in_registers = [kernel for kernel in kernels if kernel.get("rows", 128) <= 64]
    for kernel in in_registers:
        assert (
            kernel["shuffles"] == kernel["shared"] == kernel["stack"] == kernel["flushed"] == 0 < kernel["comparisons"]
        ), kernel
        if kernel["rows"] <= 32 and kernel["dtype"] != "fp32":
            limit = 128 if capability == 75 else 64 if kernel["rows"] <= 24 else 72
            assert kernel["registers"] <= limit, kernel
