"""Programs as functions of torch tensors with gradients, and operators as programs of one operation."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from functools import lru_cache, wraps
from typing import Any

import torch
from torch import Tensor
from torch.autograd.forward_ad import unpack_dual

from graphslice.program.layout import ATOMS, Argument, N, NotTraceable, Size
from graphslice.program.run import Program, State
from graphslice.program.trace import BATCH, Trace, Traced

#: Error message of a second backward pass through a batch.
BACKWARD_TWICE = "the gradients of this batch were already computed: sum the losses, and call backward once"


def run_program(program: Program, tensors: Sequence[Tensor], samples: int, width: int) -> Tensor:
    """Run a program, traced with gradients if they are wanted, on contiguous CPU tensors of the shapes and dtypes that
    it was traced for: float32 ``[B, ...]``, whose backward pass can be run once. Raises RuntimeError if a tensor has
    a tangent of forward-mode differentiation."""
    if torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors):
        return _ProgramFunction.apply(program, samples, width, *tensors)
    if any(unpack_dual(tensor).tangent is not None for tensor in tensors):  # would be lost
        raise RuntimeError(
            "compiled kernels have no forward-mode derivatives: compute inside graphslice.ops.dispatch.reference_only()"
        )
    return _forward(program, tensors, samples, width)[0]


def once_differentiable(backward: Callable[..., Any]) -> Callable[..., Any]:
    """Make the ``backward`` of a kernel raise RuntimeError for ``create_graph=True`` (decorator). The gradients that
    kernels compute are constants for torch, whose decorator of the same name may silently return a second derivative
    that lacks their contribution."""

    @wraps(backward)
    def checked_backward(ctx: Any, *grads: Any) -> Any:
        if torch.is_grad_enabled():  # only with create_graph=True
            raise RuntimeError(
                "compiled kernels have no second derivatives: for create_graph=True, compute inside "
                "graphslice.ops.dispatch.reference_only()"
            )
        return backward(ctx, *grads)

    return checked_backward


def draw_random_integers(count: int) -> list[int]:
    """Draw signed 32-bit integers from torch's generator."""
    return torch.empty(count, dtype=torch.int64).random_(-(2**31), 2**31).tolist()


def _forward(program: Program, tensors: Sequence[Tensor], samples: int, width: int) -> tuple[Tensor, State]:
    dims = [size.of(width) if isinstance(size, Size) else size for size in program.out.shape]
    out = torch.empty(samples, *dims, dtype=torch.float32, device="cpu")  # whatever torch's defaults are
    inputs = [(tensor.data_ptr(), tensor.shape) for tensor in tensors]
    return out, program.forward(inputs, out.data_ptr(), samples, width, draw_random_integers)


class _ProgramFunction(torch.autograd.Function):
    @staticmethod
    def forward(ctx, program: Program, samples: int, width: int, *tensors: Tensor) -> Tensor:
        out, ctx.state = _forward(program, tensors, samples, width)
        ctx.program = program
        ctx.save_for_backward(out, *tensors)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx, grad: Tensor):
        state, ctx.state = ctx.state, None
        if state is None:
            raise RuntimeError(BACKWARD_TWICE)
        program, grad = ctx.program, grad.contiguous()
        _, *tensors = ctx.saved_tensors
        grads = [
            torch.empty_like(tensor) if value.gradient is not None and not value.shared else None
            for (value, _, _), tensor in zip(program.inputs, tensors, strict=True)
        ]
        addresses = [0 if tensor is None else tensor.data_ptr() for tensor in grads]
        of_shared = program.backward(state, grad.data_ptr(), addresses)
        for i, flat in enumerate(of_shared):
            if flat is not None:
                grads[i] = torch.from_numpy(flat).view(tensors[i].shape)
        return None, None, None, *grads


# Types of sizes that do not depend on the batch.
_INDEPENDENT = (int, Argument)


class Shapes:
    """Shapes and dtypes of the tensor arguments of an operator, such as ``"B N C"`` or ``"B int64"``; float32 without
    a dtype.

    B is the number of samples, N that of rows, A = N - 1 that of atoms and C that of channels, a multiple of 16. Other
    letters are sizes that agree between the arguments, numbers are sizes, and ``*`` is any size. An argument with a
    default may have another value of its type instead, and one that is not declared is a setting, not a tensor.
    """

    def __init__(self, reference: Callable[..., Tensor], inputs: dict[str, str]) -> None:
        parameters = inspect.signature(reference).parameters
        self.names = list(parameters)
        self.inputs = {name: _dims_and_dtype(spec) for name, spec in inputs.items()}
        self._settings = [name for name in self.names if name not in inputs]
        self._defaults = {p.name: p.default for p in parameters.values() if p.default is not p.empty}

    def arguments(self, args: tuple, kwargs: dict[str, Any]) -> dict[str, Any] | None:
        """Return the arguments of a call by name, with defaults; None if some are missing or unknown."""
        arguments = self._defaults | dict(zip(self.names, args, strict=False)) | kwargs
        return None if len(args) > len(self.names) or arguments.keys() != set(self.names) else arguments

    def prepared(self, name: str, tensor: Tensor) -> Tensor:
        """Return an argument contiguous and in the declared dtype: :meth:`sizes` accepts int16 for int32."""
        dtype = self.inputs[name][1]
        return (tensor if tensor.dtype == dtype else tensor.to(dtype)).contiguous()

    def sizes(self, arguments: dict[str, Any], **known: Any) -> dict[Any, Any] | None:
        """Return the sizes by letter, or None if the tensors, real or symbolic, do not have the declared shapes and
        dtypes; ``known``: sizes that symbolic tensors must have."""
        sizes: dict[Any, Any] = dict(known)
        for name in self._settings:
            if isinstance(arguments[name], Tensor):
                return None
        for name, (dims, dtype) in self.inputs.items():
            tensor = arguments[name]
            if not isinstance(tensor, Tensor):
                if name in self._defaults and type(tensor) is type(self._defaults[name]):  # None, or a word
                    continue
                return None
            same = tensor.dtype == dtype or (tensor.dtype, dtype) == (torch.int16, torch.int32)
            if tensor.dim() != len(dims) or not same:
                return None
            for letter, size in zip(dims, tensor.shape, strict=True):
                key, value = ("N", size + 1) if letter == "A" else (letter, size)
                if known and key not in known and not isinstance(size, _INDEPENDENT):
                    return None
                if key != "*" and sizes.setdefault(key, key if isinstance(key, int) else value) != value:
                    return None
        return None if sizes.get("C", 0) % 16 else sizes


class OperatorProgram:
    """The compiled form of an operator: programs of one operation by its ``rule(trace, **arguments)``, traced per size
    and setting.

    ``inputs``: of :class:`Shapes`; a single argument ``"..."`` has any shape with a multiple of 16 elements. ``fits``:
    condition on the values of the arguments, in the order of the reference.
    """

    def __init__(
        self,
        reference: Callable[..., Tensor],
        rule: Callable[..., Traced],
        inputs: dict[str, str],
        fits: Callable[..., bool] | None,
    ) -> None:
        self._any_shape = "..." in inputs.values()  # the elements are then samples of 16
        self._shapes = Shapes(reference, {name: spec.replace("...", "B 16") for name, spec in inputs.items()})
        self._rule, self._fits = rule, fits
        self._program = lru_cache(256)(self._trace)

    def trace(self, trace: Trace, *args: Any, **kwargs: Any) -> Traced:
        """Append the operation to a trace; the rule gets symbolic tensors of the declared shapes."""
        arguments = self._shapes.arguments(args, kwargs)
        if arguments is None:
            raise NotTraceable("missing or unknown arguments")
        for name, (_, dtype) in self._shapes.inputs.items():
            if isinstance(arguments[name], Tensor):
                arguments[name] = trace.tensor(arguments[name], dtype=dtype)
        fit = self._any_shape or self._shapes.sizes(arguments, B=BATCH, N=N) is not None
        trace.require(fit, "other shapes than declared")
        return self._rule(trace, **arguments)

    def supports(self, *args: Any, **kwargs: Any) -> bool:
        """True if the tensors have the declared shapes and dtypes, ``fits`` agrees and the rule can be traced."""
        return self._prepare(args, kwargs) is not None

    def __call__(self, *args: Any, **kwargs: Any) -> Tensor:
        prepared = self._prepare(args, kwargs)
        assert prepared is not None
        program, arguments, sizes = prepared
        names = [self._shapes.names[source] for _, _, source in program.inputs if isinstance(source, int)]
        inputs = [self._shapes.prepared(name, arguments[name]) for name in names]
        out = run_program(program, inputs, sizes["B"], sizes.get("N", 1))
        return out.view((args[0] if args else kwargs[self._shapes.names[0]]).shape) if self._any_shape else out

    def _prepare(self, args: tuple, kwargs: dict[str, Any]) -> tuple[Program, dict[str, Any], dict[str, int]] | None:
        """Return the program of a call, its arguments by name and its sizes by letter; None if it is not supported."""
        arguments = self._shapes.arguments(args, kwargs)
        if arguments is None:
            return None
        tensors = tuple(name for name, value in arguments.items() if isinstance(value, Tensor))
        for name in tensors:
            if self._any_shape and arguments[name].numel() % 16 == 0:
                arguments[name] = arguments[name].reshape(-1, 16)
        sizes = self._shapes.sizes(arguments)
        if sizes is None or (self._fits and not self._fits(*(arguments[name] for name in self._shapes.names))):
            return None
        settings = tuple(
            (name, tuple(value) if isinstance(value, list) else value)
            for name, value in arguments.items()
            if name not in tensors
        )
        backward = torch.is_grad_enabled() and any(arguments[name].requires_grad for name in tensors)
        known = tuple(item for item in sizes.items() if item[0] not in ("B", "N"))
        program = self._program(known, tensors, settings, backward)
        return None if program is None else (program, arguments, sizes)

    def _trace(self, sizes: tuple, tensors: tuple[str, ...], settings: tuple, backward: bool) -> Program | None:
        known: dict[Any, Any] = {"N": N, "A": ATOMS, "*": None, **dict(sizes)}
        trace, arguments = Trace(backward=backward), dict(settings)
        for name in tensors:
            dims, dtype = self._shapes.inputs[name]
            shape = [known[letter] for letter in dims if letter != "B"]
            arguments[name] = trace.input(self._shapes.names.index(name), shape, dtype, shared=dims[0] != "B")
        try:
            return trace.finish(self._rule(trace, **arguments))
        except NotTraceable:
            return None


def _dims_and_dtype(spec: str) -> tuple[tuple[str | int, ...], torch.dtype]:
    *dims, last = spec.split()
    dtype = getattr(torch, last, None)
    if not isinstance(dtype, torch.dtype):
        dims, dtype = [*dims, last], torch.float32
    return tuple(int(dim) if dim.isdigit() else dim for dim in dims), dtype
