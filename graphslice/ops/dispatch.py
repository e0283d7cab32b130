"""Dispatch of operator calls to backends.

An operator is a plain torch function, its reference, which supports every device and dtype. A backend is a
faster function for some calls, under the conditions that :meth:`Operator.backend` lists. A call runs on the most
recently registered backend that supports it, or on the reference if none does. The kernels of a rule run a call on the
CPU, and are part of the program of a model (:mod:`graphslice.program`). CONTRIBUTING.md has an example.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial, update_wrapper
from typing import Any, Generic, ParamSpec, TypeVar

import torch
from torch import Tensor

from graphslice.ops.triton import TRITON_INTERPRETED
from graphslice.program.function import OperatorProgram
from graphslice.program.trace import RULES, Traced

P = ParamSpec("P")
R = TypeVar("R")

#: Device type on which the kernels of each kind of backend run.
DEVICE_TYPES = {"numba": "cpu", "triton": "cuda"}

#: All operators by name.
OPERATORS: dict[str, Operator] = {}


@dataclass
class Backend(Generic[P, R]):
    """Faster implementation of an operator for some calls; attributes as for :meth:`Operator.backend`."""

    name: str
    function: Callable[P, R]
    dtypes: tuple[torch.dtype, ...]
    fits: Callable[..., bool] | None
    traceable: bool

    def supports(self, device_type: str | None, dtype: torch.dtype | None, args: tuple, kwargs: dict) -> bool:
        """True if the backend supports a call whose tensors have this device type and dtype."""
        return (
            device_type == DEVICE_TYPES[self.name]
            and dtype in self.dtypes
            and (self.traceable or not torch.compiler.is_compiling())
            and (self.fits is None or self.fits(*args, **kwargs))
        )


class Operator(Generic[P, R]):
    """Torch function with faster backends, created by the decorator :func:`operator`; name, signature and docstring
    are those of the reference.

    Attributes:
        reference: plain torch function for every device and dtype.
        backends: backends that can run on this machine, by name: ``"numba"`` on a CPU, ``"triton"`` on a GPU.
    """

    __name__: str

    def __init__(self, reference: Callable[P, R]) -> None:
        self.reference = reference
        self.backends: dict[str, Backend[P, R]] = {}
        self._fastest_first: tuple[Backend[P, R], ...] = ()
        update_wrapper(self, reference)

    def __repr__(self) -> str:
        return f"<operator {self.__name__}: {', '.join(['torch', *self.backends])}>"

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        for value in (*args, *kwargs.values()) if kwargs else args:
            if isinstance(value, Traced):
                return value.trace.call(self, args, kwargs)
        backend = self._backend_for(args, kwargs)
        return self.reference(*args, **kwargs) if backend is None else backend.function(*args, **kwargs)

    def backend(
        self,
        name: str,
        *,
        dtypes: tuple[torch.dtype, ...],
        fits: Callable[..., bool] | None = None,
        traceable: bool = False,
    ) -> Callable[[Callable[P, R]], Callable[P, R]]:
        """Register a function as a backend of the operator (decorator).

        The backend supports a call if all tensors are on one device, of the type that :data:`DEVICE_TYPES` gives for
        the name, and all floating-point tensors are non-empty and share one of the ``dtypes``.

        Args:
            name: ``"numba"`` or ``"triton"``.
            dtypes: supported dtypes of the floating-point tensors.
            fits: predicate on the arguments of the call: True if their shapes and values are supported.
            traceable: True if :func:`torch.compile` can trace the backend, and its steps are faster with it than with
                the reference, which it can fuse with the operations before and after it.
        """

        def register(function: Callable[P, R]) -> Callable[P, R]:
            self.backends[name] = Backend(name, function, dtypes, fits, traceable)
            self._fastest_first = tuple(reversed(self.backends.values()))
            return function

        return register

    def kernels(
        self, *, fits: Callable[..., bool] | None = None, **inputs: str
    ) -> Callable[[Callable[..., Traced]], Callable[..., Traced]]:
        """Register the kernels of the operator on a CPU (decorator): the rule by which it is traced, and a numba
        backend for float32, a program of this one operation.

        Args:
            fits: condition on the values of the arguments of a call.
            inputs: shapes of the tensor arguments: see :class:`~graphslice.program.function.Shapes`.
        """

        def register(rule: Callable[..., Traced]) -> Callable[..., Traced]:
            program: Any = OperatorProgram(self.reference, rule, inputs, fits)  # type: ignore[arg-type]
            RULES[self] = program.trace
            self.backend("numba", dtypes=(torch.float32,), fits=program.supports)(program)
            return rule

        return register

    def disable(self, name: str) -> None:
        """Disable a backend for the rest of this process, such as one that fails or is wrong on this machine."""
        self._fastest_first = tuple(backend for backend in self._fastest_first if backend.name != name)

    def has_backend(self, name: str) -> bool:
        """True if the operator has a backend of this name and it is enabled."""
        return any(backend.name == name for backend in self._fastest_first)

    def choose(self, *args: P.args, **kwargs: P.kwargs) -> str:
        """Return the name of the backend that a call would run on, ``"torch"`` for the reference."""
        backend = self._backend_for(args, kwargs)
        return "torch" if backend is None else backend.name

    def using(self, name: str) -> Callable[P, R]:
        """Return the operator restricted to one backend, or its reference for ``"torch"``: a function that raises
        ValueError if the backend does not support its arguments."""
        if name == "torch":
            return self.reference
        if name not in self.backends:
            available = ", ".join(["torch", *self.backends])
            raise ValueError(f"{self.__name__} has no backend {name!r} on this machine: choose from {available}")
        return partial(self._forced, self.backends[name])

    def _backend_for(self, args: tuple, kwargs: dict) -> Backend[P, R] | None:
        device_type, dtype = _common_device_and_dtype(args, kwargs)
        for backend in self._fastest_first:
            if backend.supports(device_type, dtype, args, kwargs):
                return backend
        return None

    def _forced(self, backend: Backend[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        device_type, dtype = _common_device_and_dtype(args, kwargs)
        if device_type == "cpu" and backend.name == "triton" and TRITON_INTERPRETED:
            device_type = "cuda"
        if not backend.supports(device_type, dtype, args, kwargs):
            raise ValueError(f"the {backend.name} backend of {self.__name__} does not support this call")
        return backend.function(*args, **kwargs)


@contextmanager
def reference_only(but: tuple[Operator, str] | None = None) -> Iterator[None]:
    """Run all operators on their plain torch references inside the context; ``but``: operator and name of one backend
    that stays enabled."""
    before = {op: op._fastest_first for op in OPERATORS.values()}
    try:
        for op, backends in before.items():
            op._fastest_first = tuple(backend for backend in backends if (op, backend.name) == but)
        yield
    finally:
        for op, backends in before.items():
            op._fastest_first = backends


def operator(reference: Callable[P, R]) -> Operator[P, R]:
    """Make a plain torch function an :class:`Operator` and register it in :data:`OPERATORS` (decorator)."""
    new_operator = OPERATORS[reference.__name__] = Operator(reference)
    # By its reference, unless it has kernels of its own.
    RULES[new_operator] = lambda trace, *args, **kwargs: reference(*args, **kwargs)  # type: ignore[assignment]
    return new_operator


def _common_device_and_dtype(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[str | None, torch.dtype | None]:
    """Device type of all tensors and dtype of the floating-point ones; (None, None) if they differ or one is empty."""
    device = shared = None
    for value in (*args, *kwargs.values()) if kwargs else args:
        if isinstance(value, Tensor):
            if device is None:
                device = value.device
            elif value.device != device:
                return None, None
            dtype = value.dtype
            if dtype.is_floating_point:
                if (shared is not None and dtype != shared) or value.numel() == 0:
                    return None, None
                shared = dtype
    return (None, None) if device is None else (device.type, shared)
