"""Compile the Triton kernels for a GPU that need not be there: ``python tests/ops/compile_kernels.py CAPABILITY``.

Every kernel is compiled as the call of an operator launches it: with its constants, and with what Triton knows of its
arguments (which pointers and sizes are multiples of 16). Prints a line of JSON for each.
"""

import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from unittest import mock

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from graphslice.ops import triton_bonds, triton_sort

TYPES = {torch.float32: "fp32", torch.bfloat16: "bf16", torch.float16: "fp16", torch.uint8: "u8"}
TYPES |= {torch.int8: "i8", torch.int16: "i16", torch.int64: "i64"}
#: Instructions of the PTX by a regular expression.
COUNTED = {
    "shuffles": r"\bshfl\.", "shared": r"\b(ld|st)\.shared", "comparisons": r"\b(min|max)\.[su]",
    "loads": r"\bld\.global", "stores": r"\bst\.global", "flushed": r"\.ftz",
}  # fmt: skip


def sort_launches(rows: int, dtype: torch.dtype, channels: int = 768) -> None:
    x = torch.zeros(2, rows, channels, dtype=dtype)
    lengths, descending = torch.full((2,), rows), None if rows == 24 else torch.zeros(channels, dtype=torch.bool)
    _, origins = triton_sort.sort(x, lengths, descending)
    triton_sort.unsort(x, origins)


def bond_launches(dtype: torch.dtype) -> None:
    x, table = torch.zeros(2, 20, 768, dtype=dtype), torch.zeros(5, 768, dtype=dtype)
    bonds = torch.zeros(2, 20, 20, dtype=torch.int16)
    triton_bonds.bond_messages(x, bonds, table, table)
    triton_bonds.bond_messages_backward(x, x, bonds, table, table)


def launches(function, *args) -> list[tuple]:
    """Return kernel, operands and constants of the launches of a call, without launching."""
    calls: list[tuple] = []

    def record(kernel, grid, *operands, **constants) -> None:
        calls.append((kernel, operands, constants))

    with mock.patch.object(triton_sort, "launch", record), mock.patch.object(triton_bonds, "launch", record):
        function(*args)
    return calls


def compile_launch(kernel, operands: tuple, constants: dict, capability: int) -> dict:
    """Compile a launch; return registers, bytes of stack, spilled and shared memory, and counts of instructions."""
    options = {name: constants[name] for name in constants if name not in kernel.arg_names}
    signature, fixed, known = {}, {}, {}
    values = iter(operands)
    for index, parameter in enumerate(kernel.params):
        if parameter.is_constexpr:
            signature[parameter.name] = "constexpr"
            fixed[index,] = constants.get(parameter.name) if parameter.name in constants else next(values)
            continue
        if (value := next(values)) is None:
            signature[parameter.name], fixed[index,] = "constexpr", None
            continue
        is_tensor = isinstance(value, torch.Tensor)
        signature[parameter.name] = f"*{TYPES[value.dtype]}" if is_tensor else "i32"
        if is_tensor or (value % 16 == 0 and not parameter.do_not_specialize):
            known[index,] = [["tt.divisibility", 16]]
    source = ASTSource(kernel, signature, constexprs=fixed, attrs=known)
    compiled = triton.compile(source, target=GPUTarget("cuda", capability, 32), options=options)
    return {"kernel": kernel.__name__, "bytes_shared": compiled.metadata.shared, **resources(compiled.asm["cubin"])} | {
        name: len(re.findall(pattern, compiled.asm["ptx"])) for name, pattern in COUNTED.items()
    }


def resources(machine_code: bytes) -> dict[str, int]:
    """Return registers of a thread and bytes of its stack, to which registers are spilled."""
    program = Path(triton.__file__).parent / "backends/nvidia/bin/cuobjdump"
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "kernel.cubin")
        path.write_bytes(machine_code)
        text = subprocess.run([program, "-res-usage", path], capture_output=True, text=True, check=True).stdout
    registers, stack, local = (int(re.search(rf"{name}:(\d+)", text)[1]) for name in ("REG", "STACK", "LOCAL"))
    return {"registers": registers, "stack": stack + local}


def main(capability: int, sizes: list[int]) -> None:
    half = torch.float16 if capability < 80 else torch.bfloat16
    calls = [(rows, dtype) for rows in sizes for dtype in (half, torch.float32)]
    for rows, dtype in calls:
        for launch in launches(sort_launches, rows, dtype):
            result = {"rows": rows, "dtype": TYPES[dtype], **compile_launch(*launch, capability)}
            print(json.dumps(result), flush=True)
    for launch in launches(bond_launches, half):
        print(json.dumps(compile_launch(*launch, capability)), flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]), [int(rows) for rows in sys.argv[2:]] or [16, 24, 32, 64, 128])
