"""torch.compile, for a function that meets many shapes."""

from __future__ import annotations

import warnings
from collections.abc import Callable

import torch
from torch import Tensor

from graphslice.ops.triton_tiles import capability

#: The shapes and modes that a function is compiled for; each costs seconds to minutes, and on a GPU memory.
MAX_COMPILED = 64


def compiled_or_eager(run: Callable[..., Tensor], **options) -> Callable[..., Tensor]:
    """``run``, compiled for each of the first shapes that it meets, and as it is for those beyond ``MAX_COMPILED``.

    It runs as it is, too, on a GPU for which the compiler has no code, and for a shape where the compiler fails or the
    memory does not suffice; a warning says so.

    Args:
        run: without breaks in its graph.
        options: of :func:`torch.compile`.
    """
    from torch._dynamo import config, exc

    # Each has another name in torch 2.6.
    limit_hit = tuple(
        getattr(exc, name) for name in ("FailOnRecompileLimitHit", "RecompileLimitExceeded") if hasattr(exc, name)
    )
    name = "recompile_limit" if hasattr(config, "recompile_limit") else "cache_size_limit"
    setattr(config, name, max(MAX_COMPILED, getattr(config, name)))
    compiled = torch.compile(run, dynamic=False, fullgraph=True, **options)
    eager: set[tuple] = set()

    def run_compiled(x: Tensor, tensors: dict[str, Tensor]) -> Tensor:
        autocast = torch.is_autocast_enabled(x.device.type)
        dtype = torch.get_autocast_dtype(x.device.type) if autocast else x.dtype
        key = (x.shape, dtype, torch.is_grad_enabled(), torch.is_inference_mode_enabled())
        if key in eager or not inductor_supports(capability(x.device), dtype):
            return run(x, tensors)
        try:
            return compiled(x, tensors)
        except limit_hit:
            pass
        except (torch.OutOfMemoryError, exc.TorchDynamoException) as error:
            warnings.warn(f"{x.shape[1]} rows go on without being compiled: {type(error).__name__}", stacklevel=2)
        eager.add(key)
        if x.is_cuda:
            torch.cuda.empty_cache()
        return run(x, tensors)

    return run_compiled


def inductor_supports(capability: tuple[int, int], dtype: torch.dtype) -> bool:
    """Whether torch's compiler has code for a GPU of a compute capability: since Volta, of bfloat16 since Ampere."""
    return capability >= ((8, 0) if dtype == torch.bfloat16 else (7, 0))


def row_multiple(device_type: str, dtype: torch.dtype) -> int:
    """Of what the number of rows had best be a multiple, for what is compiled and for products in units of a GPU.

    A row of the attention weights then begins at a multiple of 16 bytes: 8 rows where the products are of 16-bit
    numbers, 4 where they are of float32. 1 on a CPU.
    """
    return 16 // dtype.itemsize if device_type == "cuda" else 1
