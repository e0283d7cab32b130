"""The blocks of a model as one program for a CPU: what their modules do, recorded when it is first asked for.

The modules stay what says what is computed; they run themselves wherever a program does not fit: on a GPU, in another
precision, compiled, with hooks, or with a mixer that knows no tape.
"""

from __future__ import annotations

from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from graphslice.nn.block import GELU, Add, AddNorm, Block, FeedForward
from graphslice.nn.mixers.base import Mixer
from graphslice.ops import (
    Dropout,
    add_norm,
    aggregate,
    attention,
    broadcast_max,
    column_sort,
    dropout,
    gelu,
    linear_attention,
    max_exchange,
)
from graphslice.ops.program import programs_run
from graphslice.ops.tape import NotRecorded, Program, Tape

# Those whose kernels programs are made of: where one is out of use, so are they.
_OPERATORS = (add_norm, aggregate, attention, broadcast_max, column_sort, dropout, gelu, linear_attention, max_exchange)
# Beyond so many rows a byte does not number them, and a sample does not stay in a near cache.
_MAX_ROWS = 256
# The modules that a tape knows beside mixers, with what it reads of them.
_READ: dict[type, tuple[str, ...]] = {
    nn.ModuleList: (),
    nn.Linear: (),
    GELU: (),
    Block: ("post_norm",),
    FeedForward: ("training",),
    Add: ("training",),
    AddNorm: ("training", "eps", "dropout"),
    Dropout: ("p",),
}
_OF_MIXERS = ("training", "dropout")


class RecordedBlocks:
    """The program of some blocks and the norm behind them.

    Args:
        blocks: in order.
        norm: behind them.
        dim: C.
        heads: H.
        backward: whether gradients are wanted.

    Raises:
        NotRecorded: if a module knows no tape.
    """

    def __init__(self, blocks: nn.ModuleList, norm: AddNorm | Add, dim: int, heads: int, *, backward: bool) -> None:
        self._blocks, self._norm = blocks, norm
        modules = [*blocks.modules(), *norm.modules()]
        if any(type(module) not in _READ and not isinstance(module, Mixer) for module in modules):
            raise NotRecorded
        # What the recording takes for granted, which somebody may change: where it stands, its name, what it is.
        self._granted: list[tuple[dict[str, Any], str, object]] = []
        for parent in modules:
            self._granted += [(parent._modules, *child) for child in parent.named_children()]
        for module in modules:
            names = _READ.get(type(module), _OF_MIXERS)
            self._granted += [(vars(module), name, getattr(module, name)) for name in names]
            self._granted.append((vars(module), "forward", None))
        self._types = [(module, type(module)) for module in modules]
        self._mixes = [(type(module), type(module).mix) for module in modules if isinstance(module, Mixer)]
        self._hooks = [
            hooks
            for module in modules
            for hooks in (
                module._forward_hooks,
                module._forward_pre_hooks,
                module._backward_hooks,
                module._backward_pre_hooks,
            )
        ]
        tape = Tape(dim, heads, backward=backward)
        x, y = tape.rows, None
        for block in blocks:
            assert isinstance(block, Block)
            x, y = block.record(tape, x, y)
        self._program = tape.finish(norm.record(tape, x, y)[1])

    def stands(self, blocks: nn.ModuleList, norm: nn.Module) -> bool:
        """Whether these are still the modules that were recorded, as they were then."""
        return (
            blocks is self._blocks
            and norm is self._norm
            and all(owner.get(name) is value or owner.get(name) == value for owner, name, value in self._granted)
            and all(type(module) is kind for module, kind in self._types)
            and all(kind.mix is mix and kind.forward is Mixer.forward for kind, mix in self._mixes)
        )

    @property
    def watched(self) -> bool:
        """Whether somebody has hooked into a module."""
        return any(self._hooks)

    def __call__(self, x: Tensor, lengths: Tensor, graph: Tensor) -> Tensor | None:
        """What comes out of the norm, ``[B, N, C]``; None where the parameters are no such numbers."""
        parameters = self._program.parameters
        if not all(p is not None and p.dtype == torch.float32 and p.is_contiguous() for p in parameters):
            return None
        if torch.is_grad_enabled():
            return _Recorded.apply(self._program, lengths.contiguous(), x.contiguous(), graph.contiguous(), *parameters)
        return self._program.run(x.contiguous(), graph.contiguous(), lengths.contiguous(), parameters)[0]


# By the model that has them, whose own dictionary is copied and pickled.
_known: WeakKeyDictionary[nn.Module, dict[tuple[bool, bool], RecordedBlocks | None]] = WeakKeyDictionary()


def run_recorded(
    model: nn.Module, blocks: nn.ModuleList, norm: nn.Module, heads: int, x: Tensor, tensors: dict[str, Tensor]
) -> Tensor | None:
    """The blocks of a model and the norm behind them as a program; None where none fits.

    Args:
        model: that has them.
        blocks, norm: the modules.
        heads: H.
        x: ``[B, N, C]``.
        tensors: of :meth:`~graphslice.nn.context.AttentionContext.tensors`.
    """
    graph = [tensor for name, tensor in tensors.items() if name != "lengths"]
    if not (
        x.device.type == "cpu"
        and len(graph) == 1
        and x.dtype == graph[0].dtype == torch.float32
        and 0 < x.shape[1] <= _MAX_ROWS
        and len(x)
        and not torch.is_autocast_enabled("cpu")
        and type(x) in (Tensor, nn.Parameter)
        # Whoever watches torch's operations, or has others done in their place, sees those of the modules.
        and torch._C._len_torch_dispatch_stack() == torch._C._len_torch_function_stack() == 0
        and programs_run()
        and all(operator.serves_by("numba") for operator in _OPERATORS)
        and not torch.compiler.is_compiling()
    ):
        return None
    key, programs = (norm.training, torch.is_grad_enabled()), _known.setdefault(model, {})
    found = programs.get(key)
    if key not in programs or (found is not None and not found.stands(blocks, norm)):
        programs[key] = found = _recorded(blocks, norm, x.shape[2], heads, backward=key[1])
    return None if found is None or found.watched else found(x, tensors["lengths"], graph[0])


def _recorded(blocks: nn.ModuleList, norm: nn.Module, dim: int, heads: int, *, backward: bool) -> RecordedBlocks | None:
    sizes = [size for m in blocks.modules() if isinstance(m, nn.Linear) for size in (m.in_features, m.out_features)]
    if any(size % 16 for size in (dim, *sizes)) or dim % heads or dim // heads % 8:
        return None
    try:
        return RecordedBlocks(blocks, norm, dim, heads, backward=backward)  # type: ignore[arg-type]
    except NotRecorded:
        return None


class _Recorded(torch.autograd.Function):
    @staticmethod
    def forward(ctx, program: Program, lengths: Tensor, rows: Tensor, graph: Tensor, *parameters: Tensor):
        out, ctx.state = program.run(rows, graph, lengths, parameters)
        ctx.program = program
        return out

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, grad: Tensor):
        state, ctx.state = ctx.state, None
        if state is None:
            raise RuntimeError("the gradients of this batch were computed already")
        grad_rows, grad_graph, found = ctx.program.gradients(state, grad.contiguous())
        return None, None, grad_rows, grad_graph, *found
