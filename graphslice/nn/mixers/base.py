"""What every mixer shares: its interface, and the register of names."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from torch import Tensor, nn

from graphslice.errors import InputError, nearest, shown
from graphslice.nn.context import GRAPH_TENSORS, AttentionContext
from graphslice.ops.base_tracer import NotTraceable
from graphslice.ops.program import Value
from graphslice.ops.tracer import Tracer


class Mixer(nn.Module):
    """Base of the mixers: ``forward(x [B, N, C], context) -> [B, N, C]``.

    A mixer defines :meth:`mix`; the output projection, with which all of the papers' end, is here. One without
    it defines :meth:`forward`. Rows beyond ``context.lengths`` are padding: they must not touch the others,
    and what comes out of them is not read.

    Args:
        dim: C, the number of channels.
        heads: H; must divide C.
        layer: which of the layers this is, from 1.
        layers: L, how many there are.
        dropout: on the attention weights.
    """

    #: Which tensors of the graph it reads, of ``"attn_weights"`` (P) and ``"attn_bias"`` (S + E): no others are made.
    reads: tuple[str, ...] = ()
    #: Whether renumbering the rows (all but row 0) renumbers the output and changes nothing else.
    equivariant = False

    #: The :meth:`mix` that :meth:`trace_mix` records: where another one stands in its place, nothing is recorded.
    traced: Callable[..., Tensor] | None = None

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if "trace_mix" in cls.__dict__:
            cls.traced = cls.mix
        for name in cls.reads:
            if name not in GRAPH_TENSORS:
                raise TypeError(f"{cls.__name__} reads {name!r}, which is none of {', '.join(GRAPH_TENSORS)}")

    def __init__(self, dim: int, heads: int, *, layer: int = 1, layers: int = 1, dropout: float = 0.0) -> None:
        super().__init__()
        if dim % heads:
            raise InputError(f"model.heads ({heads}) must divide model.dim ({dim})")
        self.dim, self.heads, self.layer, self.layers, self.dropout = dim, heads, layer, layers, dropout
        self.output = nn.Linear(dim, dim)

    @classmethod
    def own_settings(cls) -> dict[str, str]:
        """The settings that this mixer takes beside those of all, with their types as they are written."""
        mine = inspect.signature(cls.__init__).parameters.values()
        common = inspect.signature(Mixer.__init__).parameters
        own = [p for p in mine if p.kind is p.KEYWORD_ONLY and p.name not in common]
        return {p.name: getattr(p.annotation, "__name__", str(p.annotation)) for p in own}

    @property
    def active_dropout(self) -> float:
        """The dropout in force: none outside training."""
        return self.dropout if self.training else 0.0

    def mix(self, x: Tensor, context: AttentionContext) -> Tensor:
        """``[B, N, C]``: what the rows tell each other, before the output projection."""
        raise TypeError(f"{type(self).__name__} must define mix(x, context) or forward(x, context)")

    def forward(self, x: Tensor, context: AttentionContext) -> Tensor:
        """``[B, N, C]``: :meth:`mix` and the output projection."""
        return self.output(self.mix(x, context))

    def trace_mix(self, tracer: Tracer, x: Value) -> Value:
        """:meth:`mix` of molecules, on a tape; raises NotTraceable where it is none."""
        raise NotTraceable

    def trace(self, tracer: Tracer, x: Value) -> Value:
        """:meth:`forward` of molecules, on a tape; raises as :meth:`trace_mix`."""
        if type(self).forward is not Mixer.forward or type(self).mix is not type(self).traced:
            raise NotTraceable
        return tracer.linear(self.trace_mix(tracer, x), self.output)


class Projected(Mixer):
    """A mixer that makes a query, a key and a value of every row by itself."""

    equivariant = True

    def __init__(self, dim: int, heads: int, **settings) -> None:
        super().__init__(dim, heads, **settings)
        self.query = nn.Linear(dim, dim)
        self.key = nn.Linear(dim, dim)
        self.value = nn.Linear(dim, dim)


#: Types of a mixer's settings, as they are written, and what they take: a whole number is a float, a bool is none.
SETTING_TYPES = {"int": (int,), "float": (int, float), "bool": (bool,), "str": (str,)}

#: Every mixer by the name that the command line knows.
MIXERS: dict[str, type[Mixer]] = {}


def register(name: str):
    """Class decorator: make a :class:`Mixer` known as ``name``."""

    def add(mixer: type[Mixer]) -> type[Mixer]:
        for setting, kind in mixer.own_settings().items():
            if kind not in SETTING_TYPES:
                raise TypeError(f"{mixer.__name__}: write the type of {setting!r}, one of {', '.join(SETTING_TYPES)}")
        MIXERS[name] = mixer
        return mixer

    return add


def mixer_class(name: str) -> type[Mixer]:
    """The mixer called ``name``.

    Raises:
        InputError: if there is none of that name.
    """
    if name not in MIXERS:
        raise InputError(f"unknown mixer {shown(name)}{nearest(name, MIXERS)}: choose from {', '.join(sorted(MIXERS))}")
    return MIXERS[name]


def check_mixer(name: str, settings: dict | None = None) -> None:
    """Say what is wrong with a mixer's name or its own settings, before anything is built.

    Raises:
        InputError: for an unknown mixer, an unknown setting, or one of another type.
    """
    known = mixer_class(name).own_settings()
    for key, value in (settings or {}).items():
        if key not in known:
            has = f"it has {', '.join(known)}" if known else "it has none"
            raise InputError(f"{name} has no setting {shown(key)}{nearest(key, known)}: {has}")
        if known[key] in SETTING_TYPES and type(value) not in SETTING_TYPES[known[key]]:
            raise InputError(f"{key} of {name} must be of type {known[key]}, not {shown(value)}")


def build_mixer(name: str, dim: int, heads: int, **settings) -> Mixer:
    """Make the mixer called ``name``; raises as :func:`mixer_class`."""
    return mixer_class(name)(dim, heads, **settings)
