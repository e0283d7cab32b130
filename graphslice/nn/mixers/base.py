"""What every mixer shares: the structure it reads, its interface, and the register of names."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import cached_property

import torch
from torch import Tensor, nn

from graphslice.errors import InputError, nearest
from graphslice.ops import aggregate, aggregate_sort, column_sort


class Structure:
    """What a batch says about its samples, computed once and read by every layer.

    Args:
        lengths: int64 ``[B]``, the number of valid rows of each sample.
        width: N, the number of rows, padding included.
        bias: ``[B, H, N, N]`` added to the attention scores, or a function that makes it when it is
            first read, or None where there is no graph. Need not be masked: :class:`Structure` puts
            -inf in the columns of the padding.
        map: a function that makes ``Softmax(bias)``, where there is a shorter way than by the bias.
    """

    def __init__(
        self,
        lengths: Tensor,
        width: int,
        bias: Tensor | Callable[[], Tensor] | None = None,
        map: Callable[[], Tensor] | None = None,
    ) -> None:
        self.lengths = lengths
        self.mask = torch.arange(width, device=lengths.device) < lengths[:, None]
        self._bias, self._map = bias, map

    @classmethod
    def of_parts(cls, width: int, lengths: Tensor, **parts: Tensor) -> Structure:
        """With the ``map`` or ``bias`` that was read of another structure."""
        structure = cls(lengths, width)
        structure.__dict__.update(parts)  # where a cached property keeps its value
        return structure

    @cached_property
    def bias(self) -> Tensor:
        """``[B, H, N, N]`` (``[B, 1, 1, N]`` without a graph): -inf in the columns of the padding."""
        columns = self.mask[:, None, None, :]
        if self._bias is None:
            return torch.zeros(columns.shape, device=columns.device).masked_fill(~columns, -torch.inf)
        bias = self._bias() if callable(self._bias) else self._bias
        return bias.masked_fill(~columns, -torch.inf)

    @cached_property
    def map(self) -> Tensor | None:
        """``P = Softmax(S + E)``, ``[B, H, N, N]``, one for all layers; None without a graph."""
        if self._map is not None:
            return self._map()
        return None if self._bias is None else torch.softmax(self.bias, dim=-1)

    def mix(self, v: Tensor, dropout: float = 0.0) -> Tensor:
        """``P V`` head by head for V ``[B, N, C]``, with dropout on P; V itself without a graph."""
        if self.map is None:
            return v
        return aggregate(self.map, v, dropout)

    def mix_and_sort(self, v: Tensor, order: str | Tensor = "ascending", dropout: float = 0.0) -> Tensor:
        """``Sort_col(P V)``, as :meth:`mix` and then :func:`~graphslice.ops.column_sort`."""
        if self.map is None:
            return column_sort(v, self.lengths, order)
        return aggregate_sort(self.map, v, self.lengths, order, dropout)


class Mixer(nn.Module):
    """Base of the mixers: ``forward(x [B, N, C], structure) -> [B, N, C]``.

    A mixer defines :meth:`mixed`; the output projection, which all of the papers' end with, is here.
    Rows beyond ``structure.lengths`` are padding: they must not touch the others, and what comes
    out of them is not read.

    Args:
        dim: C, the number of channels.
        heads: H; must divide C.
        layer: which of the layers this is, from 1.
        layers: L, how many there are.
        dropout: on the attention map.
    """

    #: What it reads of the structure, of ``"map"`` and ``"bias"``, so that nothing else is computed.
    reads: tuple[str, ...] = ("map", "bias")
    #: Whether renumbering the rows (all but row 0) renumbers the output and changes nothing else.
    equivariant = False

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

    def mixed(self, x: Tensor, structure: Structure) -> Tensor:
        """``[B, N, C]``: what the rows tell each other, before the output projection."""
        raise TypeError(f"{type(self).__name__} must define mixed(x, structure)")

    def forward(self, x: Tensor, structure: Structure) -> Tensor:
        return self.output(self.mixed(x, structure))


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
        MIXERS[name] = mixer
        return mixer

    return add


def mixer_class(name: str) -> type[Mixer]:
    """The mixer called ``name``.

    Raises:
        InputError: if there is none of that name.
    """
    if name not in MIXERS:
        raise InputError(f"unknown mixer {name!r}{nearest(name, MIXERS)}: choose from {', '.join(sorted(MIXERS))}")
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
            raise InputError(f"{name} has no setting {key!r}{nearest(str(key), known)}: {has}")
        if known[key] in SETTING_TYPES and type(value) not in SETTING_TYPES[known[key]]:
            raise InputError(f"{key} of {name} must be of type {known[key]}, not {value!r}")


def build_mixer(name: str, dim: int, heads: int, **settings) -> Mixer:
    """Make the mixer called ``name``; raises as :func:`mixer_class`."""
    return mixer_class(name)(dim, heads, **settings)
