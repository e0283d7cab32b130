"""The GPU's kernels: in Triton's interpreter where there is no GPU, and compiled for one all the same."""

import os
import subprocess
import sys

import pytest
import torch

from graphslice.ops import column_sort, map_sort
from graphslice.ops.map_sort import _map_sort, _map_sort_backward

pytest.importorskip("triton")
triton_sort = pytest.importorskip("graphslice.ops.triton_sort")

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
DTYPES = [torch.float32, torch.bfloat16, torch.float16]


def descending(channels: int) -> torch.Tensor:
    return (torch.arange(channels) % 3 == 1).to(DEVICE)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(3, 7, 5), (2, 1, 4), (1, 33, 70), (2, 130, 3), (1, 300, 2)])
def test_sort_agrees_with_torch(shape, dtype):
    """With ties, nan, infinities and both zeros; values, rows and gradient."""
    torch.manual_seed(0)
    x = (torch.randn(shape) * 3).round().div(2).to(dtype)
    special = torch.tensor([torch.nan, torch.inf, -torch.inf, 0.0, -0.0], dtype=dtype)
    x.view(-1)[torch.randperm(x.numel())[: min(8, x.numel() // 2)]] = special.repeat(2)[: min(8, x.numel() // 2)]
    lengths = torch.randint(0, shape[1] + 1, shape[:1])
    results = []
    for backend in ("torch", "triton"):
        leaf = x.clone().to(DEVICE).requires_grad_()
        found = column_sort(leaf, lengths.to(DEVICE), descending(shape[2]), backend=backend)
        found.backward(torch.arange(x.numel(), device=DEVICE).view(shape).to(dtype))
        results.append((found.detach().float(), leaf.grad.float()))
    for one, other in zip(*results, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=0, equal_nan=True)


def problem(batch: int, heads: int, width: int, own: int, dtype: torch.dtype):
    """Sixteenths and small whole numbers: their products are exact, so the order is one and the same."""
    torch.manual_seed(width)
    maps = torch.randint(0, 5, (batch, heads, width, width)) / 16
    v = torch.randint(-4, 5, (batch, width, heads * own)).float()
    lengths = torch.randint(1, width + 1, (batch,))
    maps *= (torch.arange(width) < lengths[:, None])[:, None, None]  # no bf16 rounding, nothing from the padding
    return maps.to(DEVICE, dtype), v.to(DEVICE, dtype), lengths.to(DEVICE)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(2, 2, 7, 8), (2, 3, 19, 24), (1, 1, 40, 70), (1, 2, 1, 16)])
def test_map_sort_is_the_product_and_then_the_sort(shape, dtype):
    maps, v, lengths = problem(*shape, dtype)
    valid = (torch.arange(v.shape[1], device=DEVICE) < lengths[:, None])[:, :, None]
    upstream = torch.randint(-3, 4, v.shape, device=DEVICE).to(dtype) * valid
    results = []
    for backend in ("torch", "triton"):
        leaves = maps.clone().requires_grad_(), v.clone().requires_grad_()
        found = map_sort(*leaves, lengths, descending(v.shape[2]), backend=backend)
        results.append(((found * valid).detach(), *torch.autograd.grad(found, leaves, upstream)))
    for one, other in zip(*results, strict=True):
        torch.testing.assert_close(one.float(), other.float(), rtol=1e-2 if dtype != torch.float32 else 1e-5, atol=1e-5)


def test_nothing_comes_from_the_padding():
    maps, v, lengths = problem(2, 2, 9, 8, torch.float32)
    lengths[:] = torch.tensor([4, 9])
    leaves = maps.requires_grad_(), v.requires_grad_()
    found = map_sort(*leaves, lengths, backend="triton")
    assert not found[0, 4:].any()
    of_maps, _ = torch.autograd.grad(found, leaves, torch.ones_like(found))
    assert not of_maps[0, :, 4:].any() and of_maps[0, :, :4].any()


def test_dropout_is_the_same_backward_and_has_its_rate():
    """Result and arguments scale together, so <gradient, argument> is <upstream, result> for each."""
    maps = torch.rand(12, 2, 13, 13, device=DEVICE).requires_grad_()
    v = torch.randn(12, 13, 16, device=DEVICE).requires_grad_()
    lengths = torch.full((12,), 13, device=DEVICE)
    torch.manual_seed(0)
    found = map_sort(maps, v, lengths, p=0.3, backend="triton")
    upstream = torch.randn_like(found)
    of_maps, of_v = torch.autograd.grad(found, (maps, v), upstream)
    expected = (upstream * found).sum()
    torch.testing.assert_close((of_maps * maps).sum(), expected, rtol=1e-3, atol=1e-3)
    torch.testing.assert_close((of_v * v).sum(), expected, rtol=1e-3, atol=1e-3)
    kept = (of_maps != 0).float()
    assert abs(kept.mean() - 0.7) < 5 * (0.21 / kept.numel()) ** 0.5
    torch.testing.assert_close(found, map_sort(maps * kept / 0.7, v, lengths, backend="torch"), rtol=1e-4, atol=1e-5)
    again = map_sort(maps, v, lengths, p=0.3, backend="triton")
    assert not torch.equal(again, found)


def test_opcheck():
    maps, v, lengths = problem(1, 2, 3, 8, torch.float32)
    seed = torch.zeros(1, dtype=torch.int64, device=DEVICE)
    arguments = (maps.requires_grad_(), v.requires_grad_(), lengths, descending(16), seed, 0.1)
    torch.library.opcheck(_map_sort, arguments)
    ranks = _map_sort(*arguments)[1]
    arguments = (v.detach(), maps.detach(), v.detach(), lengths, seed, ranks, 0.1)
    torch.library.opcheck(_map_sort_backward, arguments)


def test_what_is_too_long_or_of_another_dtype_is_refused():
    with pytest.raises(ValueError, match="129 rows"):
        map_sort(torch.rand(1, 1, 129, 129), torch.rand(1, 129, 8), torch.tensor([129]), backend="triton")
    with pytest.raises(ValueError, match="float64"):
        column_sort(torch.rand(1, 3, 8, dtype=torch.float64, device=DEVICE), backend="triton")
    with pytest.raises(ValueError, match="5000 rows"):
        column_sort(torch.rand(1, 5000, 2, device=DEVICE), backend="triton")


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
    names = {"lengths": "*i64", "seed": "*i64", "descending": "*i8", "ranks": "*u8", "found": "*u8"}
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
    check(triton_sort._map_sort_kernel, dtype, INFINITY=infinity, **shared)
    check(triton_sort._map_sort_backward_kernel, dtype, **shared)
    check(triton_sort._sort_kernel, dtype, INFINITY=infinity, ROWS=64, COLUMNS=64)
"""
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr[-3000:]
