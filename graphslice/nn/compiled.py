"""torch.compile for functions that are called with many input shapes."""

from __future__ import annotations

import warnings
from collections.abc import Callable

import torch
from torch import Tensor

from graphslice.ops.triton import capability

#: Maximum number of shapes and modes a function is compiled for; each costs seconds to minutes, and memory on a GPU.
MAX_COMPILED = 64


class UncompiledWarning(UserWarning):
    """Compilation failed for a shape, which runs eagerly."""


def compiled_or_eager(run: Callable[..., Tensor], **options) -> Callable[..., Tensor]:
    """Compile ``run(x, tensors)``, which has no graph breaks, per input shape, with the ``options`` of
    :func:`torch.compile`. It runs eagerly after ``MAX_COMPILED`` shapes, on a GPU that torch's compiler does not
    support, and, with an UncompiledWarning, for a shape for which compilation fails or runs out of memory."""
    from torch._dynamo import config, exc

    # torch 2.6 has other names for the exception and for the setting.
    limit_hit = tuple(
        getattr(exc, name) for name in ("FailOnRecompileLimitHit", "RecompileLimitExceeded") if hasattr(exc, name)
    )
    name = "recompile_limit" if hasattr(config, "recompile_limit") else "cache_size_limit"
    setattr(config, name, max(MAX_COMPILED, getattr(config, name)))
    torch.compiler.assume_constant_result(capability)  # called in the choice of backends; it cannot be traced
    compiled = torch.compile(run, dynamic=False, fullgraph=True, **options)
    eager: set[tuple] = set()

    def run_compiled(x: Tensor, tensors: dict[str, Tensor]) -> Tensor:
        dtype = product_dtype(x)
        key = (x.shape, dtype, torch.is_grad_enabled(), torch.is_inference_mode_enabled())
        if key in eager or not inductor_supports(capability(x.device), dtype):
            return run(x, tensors)
        try:
            return compiled(x, tensors)
        except limit_hit:
            pass
        except (torch.OutOfMemoryError, exc.TorchDynamoException) as error:
            reason = " ".join(str(error).split("\n\n")[0].split())  # the rest is advice and a traceback
            warnings.warn(
                f"batches of {x.shape[1]} rows run uncompiled: {type(error).__name__}: {reason}",
                UncompiledWarning,
                stacklevel=2,
            )
        eager.add(key)
        if x.is_cuda:
            torch.cuda.empty_cache()
        return run(x, tensors)

    return run_compiled


def product_dtype(x: Tensor) -> torch.dtype:
    """Return the dtype of matrix products with a tensor: that of autocast if it is enabled."""
    kind = x.device.type
    return torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else x.dtype


def inductor_supports(capability: int, dtype: torch.dtype) -> bool:
    """True if torch's compiler supports a GPU: compute capability 7.0 (Volta) or 8.0 (Ampere) for bfloat16."""
    return capability >= (80 if dtype == torch.bfloat16 else 70)


def row_multiple(device_type: str, dtype: torch.dtype) -> int:
    """Return the multiple to which the number of rows is best padded, for compiled code and GPU matrix units: on a GPU
    8 for 16-bit dtypes and 4 for float32, so that rows of attention weights start at multiples of 16 bytes; 1 on a
    CPU."""
    return 16 // dtype.itemsize if device_type == "cuda" else 1
