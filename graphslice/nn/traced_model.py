"""Execution of a model on a CPU as one traced program of compiled kernels.

The program is traced from the modules at the first call. The modules remain the definition of the model, and run
themselves if tracing does not apply: on a GPU, in another precision, compiled, with hooks, or with another mixer.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Protocol
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from graphslice.batch import GraphBatch
from graphslice.config import ModelConfig
from graphslice.nn.block import GELU, Add, AddNorm, Block, BondMessages, FeedForward
from graphslice.nn.context import AttentionContext
from graphslice.nn.cpu_parallel import BACKWARD_TWICE
from graphslice.nn.encodings import AtomEncoder, Table
from graphslice.nn.mixers.base import Mixer
from graphslice.ops import (
    Dropout,
    add_norm,
    aggregate,
    attention,
    bond_messages,
    broadcast_max,
    column_sort,
    dropout,
    gelu,
    linear_attention,
    max_exchange,
)
from graphslice.ops.base_tracer import NotTraceable
from graphslice.ops.double_backward import once_differentiable
from graphslice.ops.program import Value, programs_enabled
from graphslice.ops.traced_program import Inputs, Program
from graphslice.ops.tracer import Tracer

# Operators whose kernels make up programs: if the numba backend of one is disabled, no program runs.
_OPERATORS = (
    add_norm,
    aggregate,
    attention,
    bond_messages,
    broadcast_max,
    column_sort,
    dropout,
    gelu,
    linear_attention,
    max_exchange,
)
# Maximum number of rows: their indices fit in a byte, and a sample stays in the L2 cache.
_MAX_ROWS = 256
# Modules that can be traced, besides mixers.
_TRACEABLE_MODULES = {
    nn.ModuleList,
    nn.Identity,
    nn.Linear,
    nn.LayerNorm,
    nn.Embedding,
    nn.EmbeddingBag,
    Table,
    AtomEncoder,
}
_TRACEABLE_MODULES |= {GELU, Block, BondMessages, FeedForward, Add, AddNorm, Dropout}
# Types of the module attributes that count as settings.
_SETTING_TYPES = (bool, int, float, str)


class Traceable(Protocol):
    """Attributes of :class:`~graphslice.nn.GraphTransformer` that tracing uses."""

    config: ModelConfig
    training: bool
    atoms: AtomEncoder
    embedding_norm: nn.LayerNorm | nn.Identity
    input_dropout: Dropout
    blocks: nn.ModuleList
    norm: nn.Module
    readouts: list[str]
    _modules: dict[str, nn.Module | None]

    def named_children(self) -> Iterator[tuple[str, nn.Module]]:
        """As :meth:`torch.nn.Module.named_children`."""

    def read_out(self, x: Tensor, mask: Tensor) -> Tensor:
        """As :meth:`~graphslice.nn.GraphTransformer.read_out`."""


class TracedModel:
    """Traced program of a model, from the atoms of a batch to the readouts or, with ``rows``, the final norm."""

    def __init__(self, model: Traceable, *, backward: bool, rows: bool = False) -> None:
        config, parts = model.config, (model.atoms, model.embedding_norm, model.input_dropout, model.blocks, model.norm)
        modules = [module for part in parts for module in part.modules()]
        if any(type(module) not in _TRACEABLE_MODULES and not isinstance(module, Mixer) for module in modules):
            raise NotTraceable
        if not all(_shapes_match_settings(module) for module in modules):
            raise NotTraceable
        sizes = [size for m in modules if isinstance(m, nn.Linear) for size in (m.in_features, m.out_features)]
        if (
            any(size % 16 for size in (config.dim, *sizes))
            or config.dim % config.heads
            or config.dim // config.heads % 8
        ):
            raise NotTraceable
        # Attributes that the program depends on and that may be changed later: dictionary, name, value.
        self._assumptions: list[tuple[dict[str, Any], str, object]] = []
        self._assumptions += [(model._modules, name, child) for name, child in model.named_children() if child in parts]
        for module in modules:
            self._assumptions += [(module._modules, *child) for child in module.named_children()]
            own = vars(module)
            self._assumptions += [
                (own, name, value) for name, value in own.items() if isinstance(value, _SETTING_TYPES)
            ]
            self._assumptions += [
                (module._buffers, name, buffer) for name, buffer in module.named_buffers(recurse=False)
            ]
            self._assumptions.append((own, "forward", None))
        self._types = [(module, type(module)) for module in modules]
        self._mixes = [(type(module), type(module).mix) for module in modules if isinstance(module, Mixer)]
        kinds = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
        self._hooks = [getattr(module, kind) for module in modules for kind in kinds]
        self.reads_out = not rows and set(model.readouts) <= {"token", "max", "sum", "mean"}
        tracer = Tracer(config.heads, backward=backward)
        x: Value = model.atoms.trace(tracer)
        if isinstance(model.embedding_norm, nn.LayerNorm):
            x = tracer.add_norm(x, None, model.embedding_norm, 0.0)[1]
        x = tracer.dropout(x, model.input_dropout.p if model.training else 0.0)
        y: Value | None = None
        for block in model.blocks:
            assert isinstance(block, Block)
            x, y = block.trace(tracer, x, y)
        assert isinstance(model.norm, Add | AddNorm)
        _, x = model.norm.trace(tracer, x, y)
        self._program = Program(tracer.finish(tracer.read_out(x, model.readouts) if self.reads_out else x))

    @property
    def is_current(self) -> bool:
        """True if the modules and their settings are still those that were traced."""
        return (
            all(_unchanged(owner.get(name), value) for owner, name, value in self._assumptions)
            and all(type(module) is kind for module, kind in self._types)
            and all(kind.mix is mix and kind.forward is Mixer.forward for kind, mix in self._mixes)
        )

    @property
    def has_hooks(self) -> bool:
        """True if any module has forward or backward hooks."""
        return any(self._hooks)

    def __call__(self, inputs: Inputs) -> Tensor | None:
        """Compute the readouts ``[B, W]`` or the final norm ``[B, N, C]``; None if the parameters do not fit."""
        parameters = self._program.parameters
        if not all(p is not None and p.dtype == torch.float32 and p.is_contiguous() for p in parameters):
            return None
        if any(p.shape != shape for p, shape in zip(parameters, self._program.shapes, strict=True)):
            return None
        if torch.is_grad_enabled():
            return _TracedFunction.apply(self._program, inputs, inputs.graph, *parameters)
        return self._program.run(inputs, parameters)[0]


def _shapes_match_settings(module: nn.Module) -> bool:
    """True if the shapes of a module's parameters match its settings, which programs rely on."""
    shapes = {
        nn.Linear: ("out_features", "in_features"),
        nn.Embedding: ("num_embeddings", "embedding_dim"),
        nn.EmbeddingBag: ("num_embeddings", "embedding_dim"),
    }
    if isinstance(module, nn.LayerNorm):
        return all(p is None or p.shape == module.normalized_shape for p in (module.weight, module.bias))
    for kind, names in shapes.items():
        if isinstance(module, kind):
            weight, bias = module.weight, module._parameters.get("bias")
            shape = tuple(getattr(module, name) for name in names)
            return weight.shape == shape and (bias is None or bias.shape == shape[:1])
    return True


def _unchanged(current: object, assumed: object) -> bool:
    return current is assumed or (isinstance(assumed, _SETTING_TYPES) and current == assumed)


# Programs by model; kept outside of the model, whose attributes are copied and pickled.
_traced_models: WeakKeyDictionary[Traceable, dict[tuple[bool, bool, bool], TracedModel | None]] = WeakKeyDictionary()


def run_traced(model: Traceable, batch: GraphBatch, context: AttentionContext, *, rows: bool = False) -> Tensor | None:
    """Compute the readouts ``[B, W]``, or with ``rows`` the final norm ``[B, N + 1, C]``; None if not traceable."""
    tensors = context.tensors()
    lengths, bonds = tensors.pop("lengths"), tensors.pop("bonds", None)
    graph = next(iter(tensors.values())) if len(tensors) == 1 else None
    if not (
        graph is not None
        and graph.device.type == "cpu"
        and type(graph) is Tensor
        and graph.dtype == torch.float32
        and 0 < context.width <= _MAX_ROWS
        and len(graph)
        and batch.atoms.dtype == batch.degrees.dtype == torch.uint8
        and lengths.dtype == torch.int64
        and not torch.is_autocast_enabled("cpu")
        # Active dispatch or function modes, such as profilers, must see the operations of the modules.
        and torch._C._len_torch_dispatch_stack() == torch._C._len_torch_function_stack() == 0
        and not nn.modules.module._has_any_global_hook()
        and programs_enabled()
        and all(operator.has_backend("numba") for operator in _OPERATORS)
        and not torch.compiler.is_compiling()
    ):
        return None
    key, programs = (model.training, torch.is_grad_enabled(), rows), _traced_models.setdefault(model, {})
    traced = programs.get(key)
    if key not in programs or (traced is not None and not traced.is_current):
        try:
            traced = TracedModel(model, backward=key[1], rows=rows)
        except NotTraceable:
            traced = None
        programs[key] = traced
    if traced is None or traced.has_hooks:
        return None
    atoms, degrees = batch.atoms.contiguous(), batch.degrees.contiguous()
    bonds = None if bonds is None else bonds.contiguous()
    out = traced(Inputs(lengths.contiguous(), graph.contiguous(), atoms, degrees, bonds))
    return out if out is None or rows or traced.reads_out else model.read_out(out, context.mask)


class _TracedFunction(torch.autograd.Function):
    @staticmethod
    def forward(ctx, program: Program, inputs: Inputs, graph: Tensor, *parameters: Tensor):
        out, ctx.state = program.run(inputs._replace(graph=graph), parameters)
        ctx.program = program
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx, grad: Tensor):
        state, ctx.state = ctx.state, None
        if state is None:
            raise RuntimeError(BACKWARD_TWICE)
        grad_graph, parameter_grads = ctx.program.gradients(state, grad.contiguous())
        return None, None, grad_graph, *parameter_grads
