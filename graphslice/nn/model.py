"""GraphTransformer: Graphormer's architecture with any mixer in place of its attention."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from graphslice.errors import InputError, nearest
from graphslice.nn.encodings import AtomEncoder, PairEncoder
from graphslice.nn.mixers import Structure, build_mixer, mixer_class
from graphslice.nn.parts import parts_of, run_in_parts
from graphslice.ops import Dropout, add_norm, bias_gelu, column_quantiles

if TYPE_CHECKING:
    from graphslice.data.batch import GraphBatch

#: What a prediction may be read from: rows of C channels that each is.
READOUTS = {"token": 1, "mean": 1, "sum": 1, "max": 1, "quantiles": 5}

#: Types of a mixer's settings, as they are written, and what they take: a whole number is a float, a bool is none.
SETTINGS = {"int": (int,), "float": (int, float), "bool": (bool,), "str": (str,)}


@dataclass
class ModelConfig:
    """What a :class:`GraphTransformer` is built from.

    Attributes:
        mixer: what stands where attention stood: see ``graphslice.nn.mixers``.
        mixer_settings: settings of the mixer's own, such as {"groups": 2} of csp.
        layers: number of blocks.
        dim: channels C of every atom.
        heads: heads H of the bias and of the attention map.
        ffn_dim: channels inside the feed-forward network.
        tasks: number of targets.
        readout: what the prediction is read from: token, or the mean, sum, max or quantiles (minimum,
            quartiles and maximum) of the atoms, channel by channel, or several joined with "+", such as
            token+mean.
        init: standard deviations at the start: graphormer (linear maps 0.02 / sqrt(layers), embeddings
            0.02) or balanced, which learns sooner: every row of an embedding of atoms as large as a
            layer norm's output, linear maps 1 / sqrt(inputs), and those that end a branch 1 / sqrt(2
            layers) of it, so that all branches together add as much as there was.
        distance_start: let head h begin by reading the pairs that are h mod 6 bonds apart.
        dropout: after every mixer and feed-forward network.
        input_dropout: after the atom encoder.
        attention_dropout: on the attention map.
        vocabulary: layout of the embedding tables: ogb (as many rows as values) or graphormer (512
            rows a feature, as in the original checkpoints).
        degree_rows: rows of each degree table; larger degrees share the last.
        distance_rows: rows of the spatial table; larger distances share the last but one.
        path_rows: matrices of the edge encoding, of which max_path are used.
        max_path: bonds of a shortest path that the edge encoding reads.
    """

    mixer: str = "slice-max"
    layers: int = 4
    dim: int = 128
    heads: int = 8
    ffn_dim: int = 128
    tasks: int = 1
    readout: str = "token"
    init: str = "graphormer"
    distance_start: bool = False
    dropout: float = 0.1
    input_dropout: float = 0.1
    attention_dropout: float = 0.1
    vocabulary: str = "ogb"
    degree_rows: int = 16
    distance_rows: int = 64
    path_rows: int = 5
    max_path: int = 5
    mixer_settings: dict | None = None

    def __post_init__(self) -> None:
        known = mixer_class(self.mixer).own_settings()
        for name, value in (self.mixer_settings or {}).items():
            if name not in known:
                has = f"it has {', '.join(known)}" if known else "it has none"
                raise InputError(f"{self.mixer} has no setting {name!r}{nearest(str(name), known)}: {has}")
            if known[name] in SETTINGS and type(value) not in SETTINGS[known[name]]:
                raise InputError(f"{name} of {self.mixer} must be of type {known[name]}, not {value!r}")
        for part in self.readout.split("+"):
            if part not in READOUTS:
                raise InputError(
                    f"unknown readout {part!r}{nearest(part, READOUTS)}: choose from {', '.join(READOUTS)}, "
                    "or join several with '+'"
                )
        if self.init not in ("graphormer", "balanced"):
            raise InputError(f"model.init is graphormer or balanced, not {self.init!r}")
        if self.vocabulary not in ("ogb", "graphormer"):
            raise InputError(f"model.vocabulary is ogb or graphormer, not {self.vocabulary!r}")
        for name in ("layers", "dim", "heads", "ffn_dim", "tasks", "max_path"):
            if getattr(self, name) < 1:
                raise InputError(f"model.{name} must be at least 1, not {getattr(self, name)}")
        if self.dim % self.heads:
            raise InputError(f"model.heads ({self.heads}) must divide model.dim ({self.dim})")
        if self.max_path > self.path_rows:
            raise InputError(f"model.max_path ({self.max_path}) is more than model.path_rows ({self.path_rows})")
        if self.distance_rows < 8 or self.degree_rows < 2:
            raise InputError("model.distance_rows must be at least 8 and model.degree_rows at least 2")
        for name in ("dropout", "input_dropout", "attention_dropout"):
            if not 0 <= getattr(self, name) < 1:
                raise InputError(f"model.{name} must be at least 0 and less than 1, not {getattr(self, name)}")

    @classmethod
    def preset(cls, name: str) -> ModelConfig:
        """The model of a preset, such as ``"pcqm4m-slice"``; see ``graphslice.config.PRESETS``."""
        from graphslice.config import read_preset

        return cls(**read_preset(name).get("model", {}))


class Block(nn.Module):
    """``x += drop(Mixer(LN(x)))``, then ``x += drop(FFN(LN(x)))``.

    A sum and the norm after it are one operation, so a block takes the norm of its input with it and
    ends with the norm of what follows.
    """

    def __init__(self, config: ModelConfig, layer: int) -> None:
        super().__init__()
        self.mixer_norm = nn.LayerNorm(config.dim)
        self.mixer = build_mixer(
            config.mixer,
            config.dim,
            config.heads,
            layer=layer,
            layers=config.layers,
            dropout=config.attention_dropout,
            **(config.mixer_settings or {}),
        )
        self.ffn_norm = nn.LayerNorm(config.dim)
        self.ffn = nn.Sequential(
            nn.Linear(config.dim, config.ffn_dim), nn.GELU(), nn.Linear(config.ffn_dim, config.dim)
        )
        self.dropout = config.dropout

    def forward(
        self, x: Tensor, normed: Tensor, structure: Structure, next_norm: nn.LayerNorm
    ) -> tuple[Tensor, Tensor]:
        """The block's output and ``next_norm`` of it, given its input and ``mixer_norm`` of that."""
        p = self.dropout if self.training else 0.0
        wide, narrow = self.ffn[0], self.ffn[2]
        # The biases of the last linear map of either half are added where its sum is taken.
        mixed, output = self.mixer.mixed(normed, structure), self.mixer.output
        x, normed = add_norm(x, F.linear(mixed, output.weight), output.bias, *_of(self.ffn_norm), p)
        hidden = bias_gelu(F.linear(normed, wide.weight), wide.bias)
        return add_norm(x, F.linear(hidden, narrow.weight), narrow.bias, *_of(next_norm), p)


def _of(norm: nn.LayerNorm) -> tuple[Tensor, Tensor]:
    return norm.weight, norm.bias


class GraphTransformer(nn.Module):
    """Pre-norm transformer over a graph token and the atoms (Ying et al. 2021), with any mixer.

    Predictions are in the unit of the targets: the network works on standardised ones, and
    ``target_mean`` and ``target_std`` (float32 ``[T]``, 0 and 1 until set) take it back.
    """

    target_mean: Tensor
    target_std: Tensor

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config = config
        self.atoms = AtomEncoder(config.dim, config.vocabulary, config.degree_rows)
        self.pairs = PairEncoder(
            config.heads,
            config.vocabulary,
            config.distance_rows,
            config.path_rows,
            config.max_path,
            config.distance_start,
        )
        self.input_dropout = Dropout(config.input_dropout)
        self.blocks = nn.ModuleList(Block(config, layer) for layer in range(1, config.layers + 1))
        self.norm = nn.LayerNorm(config.dim)
        self.readouts = config.readout.split("+")
        self.head = nn.Linear(config.dim * sum(READOUTS[readout] for readout in self.readouts), config.tasks)
        self.register_buffer("target_mean", torch.zeros(config.tasks))
        self.register_buffer("target_std", torch.ones(config.tasks))
        self._compiled: tuple[Callable[..., Tensor] | None, int] = (None, -1)
        self._block_parameters = sum(p.numel() for p in self.blocks.parameters())
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Normal initialisation: see ``init`` of :class:`ModelConfig`."""
        layers, balanced = self.config.layers, self.config.init == "balanced"
        of_atoms = set(self.atoms.modules())
        ends = {end for block in self.blocks for end in (block.mixer.output, block.ffn[2])}
        for module in self.modules():
            if isinstance(module, nn.Linear):
                std = 0.02 / math.sqrt(layers)
                if balanced and module is not self.head:
                    std = (module.in_features * (2 * layers if module in ends else 1)) ** -0.5
                nn.init.normal_(module.weight, std=std)
                nn.init.zeros_(module.bias)
            elif isinstance(module, nn.Embedding):
                nn.init.normal_(module.weight, std=1.0 if balanced and module in of_atoms else 0.02)
            elif isinstance(module, nn.LayerNorm):
                module.reset_parameters()
        if self.config.distance_start:
            self.pairs.start_from_distances()

    def forward(self, batch: GraphBatch) -> Tensor:
        """Predictions ``[B, T]`` in the unit of the targets."""
        return self.standardised(batch) * self.target_std + self.target_mean

    def standardised(self, batch: GraphBatch) -> Tensor:
        """Predictions ``[B, T]`` of ``(target - target_mean) / target_std``."""
        x = self.input_dropout(self.atoms(batch))
        structure = self.pairs(batch)
        normed = self._through_blocks(x, structure)
        # In full precision: bfloat16 would round predictions to three digits.
        with torch.autocast(x.device.type, enabled=False):
            return self.head(self.read_out(normed.to(self.head.weight.dtype), structure.mask))

    def predicted(self, normed: Tensor, mask: Tensor) -> Tensor:
        """Predictions ``[B, T]`` in the unit of the targets, of what left the last norm."""
        return self.head(self.read_out(normed, mask)) * self.target_std + self.target_mean

    def compile_blocks(self, batch_size: int, **options) -> None:
        """Compile the blocks for batches of one size, as ``torch.compile`` does; others run as before.

        A compiled function is made for every number of rows that it meets: let them be few, as
        :func:`graphslice.data.batch.collate_rows` makes them with ``multiple``.

        Args:
            batch_size: molecules of a batch.
            options: of :func:`torch.compile`, such as ``mode="reduce-overhead"`` for CUDA graphs.
        """
        torch._dynamo.config.recompile_limit = max(64, torch._dynamo.config.recompile_limit)
        self._compiled = torch.compile(self.run_blocks, dynamic=False, fullgraph=True, **options), batch_size

    def _through_blocks(self, x: Tensor, structure: Structure) -> Tensor:
        """``[B, N + 1, C]``: what comes out of the last norm."""
        given = {name: getattr(structure, name) for name in self.blocks[0].mixer.reads}
        if torch.is_autocast_enabled(x.device.type):  # once, not in every layer
            given = {name: part.to(torch.get_autocast_dtype(x.device.type)) for name, part in given.items()}
        given["lengths"] = structure.lengths
        compiled, batch_size = self._compiled
        if len(x) == batch_size:
            return compiled(x, given)
        parts = parts_of(x, self._block_parameters)
        if parts == 1:
            return self.run_blocks(x, given)
        parameters = [*self.blocks.parameters(), *self.norm.parameters()] if torch.is_grad_enabled() else []
        return run_in_parts(self.run_blocks, x, given, parameters, parts)

    def run_blocks(self, x: Tensor, given: dict[str, Tensor]) -> Tensor:
        """The blocks and the last norm of rows ``[B, N + 1, C]``, given the lengths and what the mixers read."""
        structure = Structure.of_parts(x.shape[1], **given)
        norms = [*(block.mixer_norm for block in self.blocks), self.norm]
        normed = norms[0](x)
        for block, norm in zip(self.blocks, norms[1:], strict=True):
            x, normed = block(x, normed, structure, norm)
        return normed

    def read_out(self, x: Tensor, mask: Tensor) -> Tensor:
        """The readouts joined, ``[B, C]`` each (``[B, 5 C]`` the quantiles): the token is row 0, atoms follow."""
        atoms, mask = x[:, 1:], mask[:, 1:]
        parts = []
        for readout in self.readouts:
            if readout == "token":
                parts.append(x[:, 0])
            elif readout == "max":
                parts.append(atoms.masked_fill(~mask[:, :, None], -torch.inf).amax(dim=1))
            elif readout == "quantiles":
                places = torch.linspace(0, 1, READOUTS["quantiles"], device=x.device)[:, None]
                parts.append(column_quantiles(atoms, mask.sum(dim=1), places).flatten(1))
            else:
                total = atoms.masked_fill(~mask[:, :, None], 0).sum(dim=1)
                parts.append(total if readout == "sum" else total / mask.sum(dim=1, keepdim=True))
        return torch.cat(parts, dim=-1)

    @property
    def num_parameters(self) -> int:
        """How many numbers are trained."""
        return sum(parameter.numel() for parameter in self.parameters())
