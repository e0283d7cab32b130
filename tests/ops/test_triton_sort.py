"""The GPU's kernels: in Triton's interpreter where there is no GPU, and compiled for one all the same."""

import os
import subprocess
import sys

import pytest
import torch

from graphslice.ops import aggregate_sort, column_sort
from graphslice.ops.aggregate_sort import _triton_aggregate_sort, _triton_backward

pytest.importorskip("triton")
triton_sort = pytest.importorskip("graphslice.ops.triton_sort")

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def descending(channels: int) -> torch.Tensor:
    return (torch.arange(channels) % 3 == 1).to(DEVICE)


def problem(batch: int, heads: int, width: int, head_dim: int, dtype: torch.dtype):
    """Sixteenths and small whole numbers: their products are exact, so the order is one and the same."""
    torch.manual_seed(width)
    attn_weights = torch.randint(0, 5, (batch, heads, width, width)) / 16
    v = torch.randint(-4, 5, (batch, width, heads * head_dim)).float()
    lengths = torch.randint(1, width + 1, (batch,))
    attn_weights *= (torch.arange(width) < lengths[:, None])[
        :, None, None
    ]  # no bf16 rounding, nothing from the padding
    return attn_weights.to(DEVICE, dtype), v.to(DEVICE, dtype), lengths.to(DEVICE)


def test_nothing_comes_from_the_padding():
    attn_weights, v, lengths = problem(2, 2, 9, 8, torch.float32)
    lengths[:] = torch.tensor([4, 9])
    leaves = attn_weights.requires_grad_(), v.requires_grad_()
    found = aggregate_sort.using("triton")(*leaves, lengths)
    assert not found[0, 4:].any()
    of_attn_weights, _ = torch.autograd.grad(found, leaves, torch.ones_like(found))
    assert not of_attn_weights[0, :, 4:].any() and of_attn_weights[0, :, :4].any()


def test_opcheck():
    attn_weights, v, lengths = problem(1, 2, 3, 8, torch.float32)
    seed = torch.zeros(1, dtype=torch.int64, device=DEVICE)
    arguments = (attn_weights.requires_grad_(), v.requires_grad_(), lengths, descending(16), seed, 0.1)
    torch.library.opcheck(_triton_aggregate_sort, arguments)
    ranks = _triton_aggregate_sort(*arguments)[1]
    arguments = (v.detach(), attn_weights.detach(), v.detach(), lengths, seed, ranks, 0.1)
    torch.library.opcheck(_triton_backward, arguments)


def test_what_is_too_long_or_of_another_dtype_is_refused():
    with pytest.raises(ValueError, match="1, 129, 8"):
        aggregate_sort.using("triton")(torch.rand(1, 1, 129, 129), torch.rand(1, 129, 8), torch.tensor([129]))
    with pytest.raises(ValueError, match="float64"):
        column_sort.using("triton")(torch.rand(1, 3, 8, dtype=torch.float64, device=DEVICE))
    with pytest.raises(ValueError, match="1, 5000, 2"):
        column_sort.using("triton")(torch.rand(1, 5000, 2, device=DEVICE))


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="Triton compiles on Linux")
def test_the_kernels_compile_for_a_gpu_that_is_not_there():
    """To machine code of compute capability 9.0, without spilling more registers than a few at the usual sizes."""
    code = """
import torch, triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from graphslice.ops import triton_sort

def check(kernel, dtype, **constants):
    names = {"lengths": "*i64", "seed": "*i64", "descending": "*i8", "ranks": "*u8", "origins": "*u8"}
    sizes = dict.fromkeys("HNDC", "i32")
    signature = {
        name: "constexpr" if name in constants else names.get(name) or sizes.get(name) or "*" + dtype
        for name in kernel.arg_names
    }
    constants = {(kernel.arg_names.index(name),): value for name, value in constants.items()}
    source = ASTSource(kernel, signature, constexprs=constants)
    compiled = triton.compile(source, target=GPUTarget("cuda", 90, 32), options={"num_warps": 4})
    assert compiled.asm["cubin"], kernel
    assert compiled.metadata.shared <= 227 * 1024

for dtype, torch_dtype in (("bf16", torch.bfloat16), ("fp32", torch.float32)):
    infinity = triton_sort._INFINITY[torch_dtype]
    shared = dict(P_DROP=0.1, ROWS=32, COLUMNS=32, INTERPRETED=False)
    check(triton_sort._aggregate_sort_kernel, dtype, INFINITY=infinity, **shared)
    check(triton_sort._aggregate_sort_backward_kernel, dtype, **shared)
    check(triton_sort._sort_kernel, dtype, INFINITY=infinity, ROWS=64, COLUMNS=64)
"""
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr[-3000:]
