"""Execution of a model's methods on a CPU as one program of compiled kernels.

A program is traced from the modules at the first call. The modules remain the definition of the model, and run
themselves where a program does not apply: on a GPU, in another precision, compiled, with hooks, or if they do something
that cannot be traced.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from types import SimpleNamespace
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import numpy as np
import torch
from torch import Tensor, nn
from torch.overrides import has_torch_function

from graphslice.batch import GraphBatch
from graphslice.ops.dispatch import OPERATORS
from graphslice.program.function import run_program
from graphslice.program.layout import ATOMS, N, Size
from graphslice.program.run import Program, programs_enabled
from graphslice.program.saved import MAX_ROWS
from graphslice.program.trace import Trace, ValuesUnknown
from graphslice.system.threads import single_threaded_torch

# Shapes and dtypes of the inputs of a program: attributes of a batch.
_INPUTS: dict[str, tuple[tuple, torch.dtype]] = {
    "atoms": ((ATOMS, 9), torch.uint8),
    "degrees": ((ATOMS,), torch.uint8),
    "row_lengths": ((), torch.int64),
    "path_types": ((ATOMS, ATOMS), torch.int32),
    "bonds": ((N, N), torch.int16),
}

Method = Callable[..., Tensor]


def traceable(method: Method) -> Method:
    """Run a method ``method(self, batch, values=None)`` of a model as a program where that applies (decorator);
    ``values`` is ``self.pairs.path_values(batch)``, which is computed before the program."""

    @wraps(method)
    def run(self: nn.Module, batch: GraphBatch, values: Tensor | None = None) -> Tensor:
        if values is None:
            out = run_as_program(self, method, batch)
            if out is not None:
                return out
        return method(self, batch, values)

    return run


class _Traced(NamedTuple):
    """Program of a method of a model in one state; None if it cannot be traced."""

    state: list  # of _state_of when it was traced
    program: Program | None
    sources: list[tuple[nn.Module | None, str]]
    """For each input the attribute of the batch, or the module and attribute of the parameter or buffer."""
    forms: list[tuple[tuple, torch.dtype, bool]]
    """For each input its shape (of an attribute of the batch without the samples), its dtype and True, as it must be
    contiguous."""


# Programs by model, method and modes; kept outside of the model, whose attributes are copied and pickled.
_programs: WeakKeyDictionary[nn.Module, dict[tuple, _Traced]] = WeakKeyDictionary()


def run_as_program(model: Any, method: Method, batch: GraphBatch) -> Tensor | None:
    """Compute a method of a model by its program; None if the modules must run."""
    if not _applies(batch) or model.is_compiled:
        return None
    programs, key = _programs.setdefault(model, {}), (method, torch.is_grad_enabled(), batch.bonds is not None)
    traced = programs.get(key)
    if traced is None or not _is_current(traced.state, model):
        traced = programs[key] = _trace(model, *key)
    if traced.program is None:
        return None
    with single_threaded_torch():
        values = model.pairs.path_values(batch)
        tensors = [_input(source, name, batch, values) for source, name in traced.sources]
        rows = batch.path_types.shape[1] + 1
        for (module, name), tensor, (shape, *form) in zip(traced.sources, tensors, traced.forms, strict=True):
            if module is None:
                first = (tensor.shape[0], *shape[1:]) if name == "values" else (len(batch), *shape)
                shape = tuple(size.of(rows) if isinstance(size, Size) else size for size in first)
            if (tensor.shape, tensor.dtype, tensor.is_contiguous()) != (shape, *form):
                return None
        return run_program(traced.program, tensors, len(batch), rows)


def _applies(batch: GraphBatch) -> bool:
    """True if programs can run on a batch, and torch is in no mode that they would ignore."""
    return (
        batch.lengths.device.type == "cpu"
        and programs_enabled()
        and not torch.compiler.is_compiling()
        and not torch.is_autocast_enabled("cpu")
        and len(batch) > 0
        and batch.path_types.shape[1] < MAX_ROWS
        and (batch.atoms.dtype, batch.degrees.dtype, batch.lengths.dtype) == (torch.uint8, torch.uint8, torch.int64)
        and not is_observed()
        and all(op.has_backend("numba") for op in OPERATORS.values() if "numba" in op.backends)
    )


def _input(module: nn.Module | None, name: str, batch: GraphBatch, values: Tensor) -> Tensor:
    if module is not None:
        return getattr(module, name)
    if name == "path_types":
        return batch.path_types.to(torch.int32).contiguous()
    return values if name == "values" else getattr(batch, name).contiguous()


def _trace(model: Any, method: Method, backward: bool, has_bonds: bool) -> _Traced:
    state, modules = _state_of(model), dict(model.named_modules())
    if any(has_hooks(module) for module in modules.values()):
        return _Traced(state, None, [], [])
    owners = {}
    for prefix, module in modules.items():
        for name, tensor in (*module.named_parameters(recurse=False), *module.named_buffers(recurse=False)):
            owners[f"{prefix}.{name}"] = module, name, tensor
    trace = Trace(backward=backward, tensors={id(t): (t, path) for path, (_, _, t) in owners.items()})
    inputs = {
        name: trace.input(name, dims, dtype) for name, (dims, dtype) in _INPUTS.items() if name != "bonds" or has_bonds
    }
    values = trace.input("values", (None, model.config.heads), shared=True)
    batch = SimpleNamespace(**{"bonds": None, **inputs})
    try:
        with torch.enable_grad(), ValuesUnknown():
            program = trace.finish(method(model, batch, values))
    except Exception:  # whatever fails with symbolic tensors: the modules run, and raise the error if it is one
        return _Traced(state, None, [], [])
    sources: list = [owners[name][:2] if name in owners else (None, name) for _, _, name in program.inputs]
    forms = [(value.shape, getattr(torch, dtype), True) for value, dtype, _ in program.inputs]
    return _Traced(state, program, sources, forms)


def inference_program(model: Any) -> tuple[Program, dict[str, np.ndarray], dict[str, tuple[int, ...]]] | None:
    """Trace the readouts of a molecule-level model in evaluation mode: the program, the buffers that it reads or that
    its caller needs for the biases of path types, and the shapes of the state dict. None if it cannot be traced."""
    method = type(model)._pool.__wrapped__
    traced = _trace(model, method, backward=False, has_bonds=model.config.bond_messages)
    if traced.program is None or model.pairs.heads % 8:
        return None
    buffers = {name: buffer.numpy() for name, buffer in model.named_buffers()}
    read = {str(source) for _, _, source in traced.program.inputs} & set(buffers)
    shapes = {name: tuple(value.shape) for name, value in model.state_dict().items()}
    return traced.program, {name: buffers[name] for name in {*read, "pairs.bond_rows"}}, shapes


def _state_of(model: nn.Module) -> list[tuple[Any, type, dict[str, Any]]]:
    """Return all that a trace may depend on: the attributes of modules and of their classes, but no weights. The model
    itself is None in the result, which it outlives otherwise."""
    modules = list(model.modules())
    classes = {cls for module in modules for cls in type(module).__mro__ if cls.__module__.partition(".")[0] != "torch"}
    state: list[tuple[Any, type, dict[str, Any]]] = []
    state += [(cls, type(cls), dict(vars(cls))) for cls in classes if cls is not object]
    for module in modules:
        attributes = {k: dict(v) if isinstance(v, dict) else v for k, v in vars(module).items()}
        state.append((None if module is model else module, type(module), attributes))
    return state


def _is_current(state: list[tuple[Any, type, dict[str, Any]]], model: nn.Module) -> bool:
    """True if a model is in the state that :func:`_state_of` returned."""
    try:
        return all(
            type(model if owner is None else owner) is kind and vars(model if owner is None else owner) == attributes
            for owner, kind, attributes in state
        )
    except RuntimeError:  # tensors that replaced others cannot be compared
        return False


# --- hooks and modes of torch that a program would ignore: the only private names of torch on the default path ------

# Dictionaries of hooks of a module, which torch offers no public way to list.
_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


def has_hooks(module: nn.Module) -> bool:
    """True if a module has forward or backward hooks."""
    return any(getattr(module, name) for name in _HOOKS)


def is_observed() -> bool:
    """True if hooks of all modules, or a dispatch or function mode, such as a counter of operations, are active."""
    probe = (torch.empty(0),)
    return (
        has_torch_function(probe)
        or torch._C._len_torch_dispatch_stack() > 0
        or nn.modules.module._has_any_global_hook()
    )
