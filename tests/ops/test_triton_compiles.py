"""Compilation of the Triton kernels for GPU architectures, without a GPU."""

import os
import subprocess
import sys

import pytest

pytest.importorskip("triton")


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="Triton compiles on Linux")
@pytest.mark.parametrize(("arch", "calls"), [(90, "bf16-20"), (75, "fp16-20,fp32-128")])
def test_kernels_compile_within_shared_memory(arch, calls):
    """Compile to machine code at a typical and at the largest number of rows; shared memory stays within the limit."""
    code = """
import inspect, sys, torch, triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from graphslice.ops import triton_bonds, triton_sort
from graphslice.ops import triton as tiles

def check(kernel, dtype, options, **constants):
    names = {"lengths": "*i64", "seed": "*i64", "descending": "*i8", "ranks": "*u8", "origins": "*u8"}
    names |= {"bonds": "*i16", "tables": "*fp32", "seen": "*i8"}
    sizes = dict.fromkeys(["H", "N", "D", "C", "T", "CODES", "ENTRIES", "rows", "rows_per_program", "programs"], "i32")
    signature = {
        name: "constexpr" if name in constants else names.get(name) or sizes.get(name) or "*" + dtype
        for name in kernel.arg_names
    }
    if "constexprs" in inspect.signature(ASTSource).parameters:
        constants = {(kernel.arg_names.index(name),): value for name, value in constants.items()}
        source = ASTSource(kernel, signature, constexprs=constants)
    else:  # Triton 3.2
        signature = {name: kind for name, kind in signature.items() if kind != "constexpr"}
        source = ASTSource(kernel, signature, constants=constants)
    compiled = triton.compile(source, target=GPUTarget("cuda", int(sys.argv[1]), 32), options=options)
    assert compiled.asm["cubin"], kernel
    assert compiled.metadata.shared <= tiles.SHARED_MEMORY, (kernel, dtype, compiled.metadata.shared)

for call in sys.argv[2].split(","):
    dtype, width = call.split("-")
    capability = int(sys.argv[1])
    torch_dtype, width = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}[dtype], int(width)
    infinity = triton_sort._INFINITY[torch_dtype]
    kernels = triton_sort._aggregate_sort_kernel, triton_sort._aggregate_sort_backward_kernel
    for backward, kernel in enumerate(kernels):
        tile = tiles.aggregate_tile(width, 24, torch_dtype, capability, bool(backward))
        constants = triton_sort._constants(tile) | {"P_DROP": 0.1} | ({} if backward else {"INFINITY": infinity})
        options = {name: constants.pop(name) for name in ("num_warps", "num_stages")}
        check(kernel, dtype, options, **constants)
    rows, columns = tiles.sort_tile(width, 64, torch_dtype)
    check(triton_sort._sort_kernel, dtype, {}, INFINITY=infinity, ROWS=rows, COLUMNS=columns)
    for kernel in (triton_bonds._messages_kernel, triton_bonds._gradients_kernel):
        check(kernel, dtype, {"num_warps": 1}, COLUMNS=128)
    check(triton_bonds._sums_kernel, "fp32", {}, COLUMNS=128, ROWS=triton_bonds._ROWS)
"""
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    command = [sys.executable, "-c", code, str(arch), calls]
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr[-3000:]
