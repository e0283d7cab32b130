"""Which backend serves a call of an operator: one rule for all of them.

An operator is a plain torch function, its reference, which takes any device and dtype. Backends are
faster functions for some calls, each under the conditions that :meth:`Operator.backend` lists::

    @operator
    def gelu(x: Tensor) -> Tensor:
        return F.gelu(x)

    @gelu.backend("numba", dtypes=(torch.float32,), fits=lambda x: x.shape[-1] % 16 == 0)
    def _numba(x: Tensor) -> Tensor:
        ...

A call runs on the backend registered last of those that take it, and on the reference when none does.
"""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache, partial, update_wrapper
from typing import Any, Generic, ParamSpec, TypeVar

import torch
from torch import Tensor

from graphslice.ops.toolchain import warn_of_missing_compiler

P = ParamSpec("P")
R = TypeVar("R")

#: The names that a backend may have, and the type of the device that its kernels run on.
DEVICE_TYPES = {"numba": "cpu", "triton": "cuda"}

#: Whether Triton runs its kernels on the CPU, in its interpreter: for tests, by :meth:`Operator.using` only.
TRITON_INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"

#: Every operator by its name.
OPERATORS: dict[str, Operator] = {}


@cache
def triton_runs() -> bool:
    """Whether Triton's kernels can run here; only then is Triton imported, which takes a second."""
    if TRITON_INTERPRETED:
        return importlib.util.find_spec("triton") is not None
    return torch.cuda.is_available() and not warn_of_missing_compiler("cuda")


class Backend(Generic[P, R]):
    """A function that serves some calls of an operator; the arguments are those of :meth:`Operator.backend`."""

    def __init__(
        self,
        name: str,
        function: Callable[P, R],
        dtypes: tuple[torch.dtype, ...],
        fits: Callable[..., bool] | None,
        compiles: bool,
    ) -> None:
        self.name, self.function, self.dtypes, self.fits, self.compiles = name, function, dtypes, fits, compiles
        self.device_type = DEVICE_TYPES[name]

    def supports(self, device_type: str | None, dtype: torch.dtype | None, args: tuple, kwargs: dict) -> bool:
        """Whether all conditions hold for a call whose tensors share a device type and a dtype."""
        return (
            device_type == self.device_type
            and dtype in self.dtypes
            and (self.compiles or not torch.compiler.is_compiling())
            and (self.fits is None or self.fits(*args, **kwargs))
        )


class Operator(Generic[P, R]):
    """A torch function with faster backends; made by :func:`operator`.

    Attributes:
        reference: the plain torch function, for any device and dtype.
        backends: the backends that can run on this machine, by name: ``"numba"`` on a CPU, ``"triton"`` on a GPU.
    """

    __name__: str  # of the reference, as its documentation and signature are

    def __init__(self, reference: Callable[P, R]) -> None:
        self.reference = reference
        self.backends: dict[str, Backend[P, R]] = {}
        self._fastest_first: tuple[Backend[P, R], ...] = ()
        update_wrapper(self, reference)

    def __repr__(self) -> str:
        return f"<operator {self.__name__}: {', '.join(['torch', *self.backends])}>"

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        backend = self._backend_for(args, kwargs)
        return self.reference(*args, **kwargs) if backend is None else backend.function(*args, **kwargs)

    def backend(
        self,
        name: str,
        *,
        dtypes: tuple[torch.dtype, ...],
        fits: Callable[..., bool] | None = None,
        compiles: bool = False,
    ) -> Callable[[Callable[P, R]], Callable[P, R]]:
        """Decorator: let a function serve the calls that meet all of these conditions.

        The tensors of the call are on one device, of the type that :data:`DEVICE_TYPES` gives for the name;
        its floating-point tensors have elements, and share one dtype.

        Args:
            name: ``"numba"`` or ``"triton"``.
            dtypes: that floating-point tensors may have.
            fits: called with the arguments of the operator; whether their sizes and values are right.
            compiles: whether :func:`torch.compile` can trace the function; if not, it traces the reference.
        """

        def register(function: Callable[P, R]) -> Callable[P, R]:
            self.backends[name] = Backend(name, function, dtypes, fits, compiles)
            self._fastest_first = tuple(reversed(self.backends.values()))
            return function

        return register

    def disable(self, name: str) -> None:
        """Let a backend serve no more calls in this process: one that fails here, or computes something else."""
        self._fastest_first = tuple(backend for backend in self._fastest_first if backend.name != name)

    def has_backend(self, name: str) -> bool:
        """Whether a backend is there and in use."""
        return any(backend.name == name for backend in self._fastest_first)

    def choose(self, *args: P.args, **kwargs: P.kwargs) -> str:
        """The name of the backend that such a call runs on, ``"torch"`` for the reference."""
        backend = self._backend_for(args, kwargs)
        return "torch" if backend is None else backend.name

    def using(self, name: str) -> Callable[P, R]:
        """The operator on one backend, ``"torch"`` for the reference.

        Raises:
            ValueError: for a backend that the operator does not have here; when called, for arguments that
                the backend does not take.
        """
        if name == "torch":
            return self.reference
        if name not in self.backends:
            known = ", ".join(["torch", *self.backends])
            raise ValueError(f"{self.__name__} has no backend {name!r} here: choose from {known}")
        return partial(self._forced, self.backends[name])

    def _backend_for(self, args: tuple, kwargs: dict) -> Backend[P, R] | None:
        device_type, dtype = _shared(args, kwargs)
        for backend in self._fastest_first:
            if backend.supports(device_type, dtype, args, kwargs):
                return backend
        return None

    def _forced(self, backend: Backend[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        device_type, dtype = _shared(args, kwargs)
        if device_type == "cpu" and backend.name == "triton" and TRITON_INTERPRETED:
            device_type = "cuda"
        if not backend.supports(device_type, dtype, args, kwargs):
            dtypes = ", ".join(str(dtype).removeprefix("torch.") for dtype in backend.dtypes)
            raise ValueError(
                f"the {backend.name} backend of {self.__name__} does not take {_described(args, kwargs)}: "
                f"it is for {dtypes} on {backend.device_type}, of the sizes that {self.__module__} gives"
                f"{'' if backend.compiles else ', and not for torch.compile'}"
            )
        return backend.function(*args, **kwargs)


@contextmanager
def reference_only(but: tuple[Operator, str] | None = None) -> Iterator[None]:
    """While it lasts, every operator is its plain torch function; ``but`` names a backend that stays in use."""
    before = {op: op._fastest_first for op in OPERATORS.values()}
    try:
        for op, backends in before.items():
            op._fastest_first = tuple(backend for backend in backends if (op, backend.name) == but)
        yield
    finally:
        for op, backends in before.items():
            op._fastest_first = backends


def operator(reference: Callable[P, R]) -> Operator[P, R]:
    """Decorator: make an :class:`Operator` of its plain torch function, and register it in :data:`OPERATORS`."""
    made = OPERATORS[reference.__name__] = Operator(reference)
    return made


def _shared(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[str | None, torch.dtype | None]:
    """The type of the device of all tensors and the dtype of all floating-point ones.

    None and None where they differ, or where a floating-point tensor has no elements.
    """
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


def _described(args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
    """The tensors of a call, as an error names them."""
    tensors = [value for value in (*args, *kwargs.values()) if isinstance(value, Tensor)]
    return ", ".join(f"{str(t.dtype).removeprefix('torch.')} {list(t.shape)} on {t.device}" for t in tensors)
