"""GraphTransformer: Graphormer's architecture with any mixer in place of its attention."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn

from graphslice.batch import GraphBatch
from graphslice.config import READOUTS, ModelConfig
from graphslice.nn.cpu_parallel import parts_of, run_in_parts
from graphslice.nn.encodings import AtomEncoder, PairEncoder
from graphslice.nn.mixers import Structure, build_mixer, check_mixer
from graphslice.ops import Dropout, add_norm, column_quantiles, gelu


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
        x, normed = add_norm(x, self.mixer(normed, structure), *_of(self.ffn_norm), p)
        return add_norm(x, self.ffn[2](gelu(self.ffn[0](normed))), *_of(next_norm), p)


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
        check_mixer(config.mixer, config.mixer_settings)
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
        :func:`graphslice.data.collate.collate_rows` makes them with ``multiple``.

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
