"""Interface of the mixers and their registry."""

from __future__ import annotations

import inspect

from torch import Tensor, nn

from graphslice.errors import InputError, nearest, shown
from graphslice.nn.context import AttentionContext


class Mixer(nn.Module):
    """Base class of token-mixing layers, ``forward(x [B, N, C], context) -> [B, N, C]``.

    A subclass defines :meth:`mix`; the output projection, with which the layers of all papers end, is applied by
    :meth:`forward`. A mixer without one sets ``output`` to ``nn.Identity()``. Rows beyond ``context.lengths`` are
    padding: they must not influence valid rows, and their output, which must be finite, is ignored.

    Args:
        dim: C, number of channels.
        heads: H, number of heads; must divide C.
        layer: index of this layer, from 1.
        layers: L, number of layers.
        dropout: dropout rate of the attention weights.

    Raises:
        InputError: if ``heads`` does not divide ``dim``.
    """

    #: Graph tensors that it uses, of ``"attn_weights"`` (P) and ``"attn_bias"`` (S + E); only these are computed.
    reads: tuple[str, ...] = ()
    #: True if the mixer is permutation-equivariant: permuting the rows (except row 0) permutes the output alike.
    equivariant = False

    def __init__(self, dim: int, heads: int, *, layer: int = 1, layers: int = 1, dropout: float = 0.0) -> None:
        super().__init__()
        if heads < 1 or dim % heads:
            raise InputError(f"model.heads ({heads}) must divide model.dim ({dim})")
        self.dim, self.heads, self.layer, self.layers, self.dropout = dim, heads, layer, layers, dropout
        self.output: nn.Module = nn.Linear(dim, dim)

    @classmethod
    def own_settings(cls) -> dict[str, str]:
        """Return the settings that are specific to this mixer, with the names of their annotated types."""
        parameters = inspect.signature(cls.__init__).parameters.values()
        common = inspect.signature(Mixer.__init__).parameters
        own = [p for p in parameters if p.kind is p.KEYWORD_ONLY and p.name not in common]
        return {p.name: getattr(p.annotation, "__name__", str(p.annotation)) for p in own}

    @property
    def active_dropout(self) -> float:
        """Dropout rate in training mode, else 0."""
        return self.dropout if self.training else 0.0

    def mix(self, x: Tensor, context: AttentionContext) -> Tensor:
        """Mix the rows.

        Args:
            x: ``[B, N, C]``.
            context: lengths, mask and graph tensors of the batch.

        Returns:
            ``[B, N, C]``, the input of the output projection.
        """
        raise TypeError(f"{type(self).__name__} must define mix(x, context)")

    def forward(self, x: Tensor, context: AttentionContext) -> Tensor:
        """Apply :meth:`mix` and the output projection: ``[B, N, C]`` to ``[B, N, C]``."""
        return self.output(self.mix(x, context))


class Aggregating(Mixer):
    """Base class of mixers of ``P V`` with a value projection only."""

    reads = ("attn_weights",)

    def __init__(self, dim: int, heads: int, **settings) -> None:
        super().__init__(dim, heads, **settings)
        self.value = nn.Linear(dim, dim)


class Projected(Mixer):
    """Base class of mixers with query, key and value projections of every row."""

    equivariant = True

    def __init__(self, dim: int, heads: int, **settings) -> None:
        super().__init__(dim, heads, **settings)
        self.query = nn.Linear(dim, dim)
        self.key = nn.Linear(dim, dim)
        self.value = nn.Linear(dim, dim)


#: Allowed type annotations of a mixer's settings, and the accepted types of values: an int is a float, a bool is not.
SETTING_TYPES = {"int": (int,), "float": (int, float), "bool": (bool,), "str": (str,)}

#: Registered mixers by name, as in ``model.mixer``.
MIXERS: dict[str, type[Mixer]] = {}


def register(name: str):
    """Return a class decorator that registers a :class:`Mixer` under ``name``.

    Raises:
        TypeError: for a class that has a setting without a supported type annotation.
        ValueError: for the name of a mixer of this package.
    """

    def add(mixer: type[Mixer]) -> type[Mixer]:
        if name in MIXERS and MIXERS[name].__module__ != mixer.__module__ and is_packaged(MIXERS[name]):
            raise ValueError(f"{name} is a mixer of GraphSlice: register {mixer.__name__} under another name")
        for setting, kind in mixer.own_settings().items():
            if kind not in SETTING_TYPES:
                types = ", ".join(SETTING_TYPES)
                raise TypeError(f"setting {setting!r} of {mixer.__name__} needs a type annotation, one of {types}")
        MIXERS[name] = mixer
        return mixer

    return add


def is_packaged(mixer: type[Mixer]) -> bool:
    """True if a mixer is part of this package."""
    return mixer.__module__.startswith("graphslice.")


def mixer_class(name: str) -> type[Mixer]:
    """Return the mixer class registered under ``name``; raises :class:`InputError` if it is unknown."""
    if name not in MIXERS:
        raise InputError(
            f"unknown mixer {shown(name)}{nearest(name, MIXERS)}: choose from {', '.join(sorted(MIXERS))}, or set "
            "GRAPHSLICE_MIXERS to the Python file that registers it"
        )
    return MIXERS[name]


def check_mixer(name: str, settings: dict | None = None) -> None:
    """Raise :class:`InputError` for an unknown mixer, an unknown setting, or a value of the wrong type."""
    known = mixer_class(name).own_settings()
    for key, value in (settings or {}).items():
        if key not in known:
            available = f"it has {', '.join(known)}" if known else "it has none"
            raise InputError(f"mixer {name} has no setting {shown(key)}{nearest(str(key), known)}: {available}")
        if known[key] in SETTING_TYPES and type(value) not in SETTING_TYPES[known[key]]:
            raise InputError(f"{key} of mixer {name} must be of type {known[key]}, not {shown(value)}")


def build_mixer(name: str, dim: int, heads: int, **settings) -> Mixer:
    """Create a mixer.

    Args:
        name: a key of :data:`MIXERS`.
        dim: C, number of channels.
        heads: H, number of heads.
        settings: further keyword arguments of :class:`Mixer` and of the mixer itself.

    Raises:
        InputError: if the name is unknown or a value is invalid.
    """
    common = inspect.signature(Mixer.__init__).parameters
    check_mixer(name, {key: value for key, value in settings.items() if key not in common})
    return mixer_class(name)(dim, heads, **settings)
