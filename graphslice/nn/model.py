"""GraphTransformer: Graphormer's architecture with any mixer in place of its attention."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import cast

import torch
from torch import Tensor, nn

from graphslice.batch import GraphBatch
from graphslice.config import MOLECULE, READOUTS, ModelConfig
from graphslice.errors import InputError
from graphslice.nn.atom_bond_readout import AtomBondReadout
from graphslice.nn.block import Add, AddNorm, Block, MLPHead
from graphslice.nn.compiled import compiled_or_eager
from graphslice.nn.context import AttentionContext
from graphslice.nn.cpu_parallel import num_chunks, run_in_chunks
from graphslice.nn.descriptors import DescriptorEncoder
from graphslice.nn.encodings import AtomEncoder, PairEncoder
from graphslice.nn.mixers import check_mixer
from graphslice.nn.traced_model import run_traced
from graphslice.ops import Dropout, column_quantiles
from graphslice.ops.threads import single_threaded_torch
from graphslice.ops.toolchain import warn_of_missing_compiler


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
        self.atoms = AtomEncoder(config.dim, config.embedding_layout, config.num_degrees)
        self.pairs = PairEncoder(
            config.heads,
            config.embedding_layout,
            config.num_distances,
            config.num_path_positions,
            config.max_path,
            config.distance_start,
        )
        self.embedding_norm = nn.LayerNorm(config.dim) if config.embedding_norm else nn.Identity()
        self.input_dropout = Dropout(config.input_dropout)
        self.blocks = nn.ModuleList(Block(config, layer) for layer in range(1, config.layers + 1))
        self.readouts = config.readout.split("+")
        self._check_equivariance()
        #: How many numbers of a molecule its embedding has, which the head of a model of molecules reads.
        self.width = config.dim * (sum(READOUTS[readout] for readout in self.readouts) + (config.descriptors > 0))
        # A norm closes what pre-norm blocks have summed up, but where the head has its own.
        closing = AddNorm(config.dim, config.dropout) if (config.norm, config.head) == ("pre", "linear") else None
        self.norm: nn.Module = closing or Add(config.dropout)
        self.sites = None if config.level == MOLECULE else AtomBondReadout(config.dim, config.level)
        read, linear = self.width if self.sites is None else config.dim, config.head == "linear"
        self.head: nn.Module = nn.Linear(read, config.tasks) if linear else MLPHead(read, config.dim, config.tasks)
        self.descriptors = DescriptorEncoder(config.descriptors, config.dim) if config.descriptors else None
        self.register_buffer("target_mean", torch.zeros(config.tasks))
        self.register_buffer("target_std", torch.ones(config.tasks))
        self._compiled: tuple[Callable[..., Tensor] | None, int] = (None, -1)
        self._block_parameters = sum(p.numel() for p in self.blocks.parameters())
        self.reset_parameters()

    def _check_equivariance(self) -> None:
        """Raise :class:`InputError` for a mixer by whose sort atoms that are alike get answers that differ."""
        level, blocks = self.config.level, cast(Iterable[Block], self.blocks)
        if level != MOLECULE and not all(block.mixer.equivariant for block in blocks):
            raise InputError(
                f"model.mixer {self.config.mixer} tells {level}s that are alike apart by their numbers: for --level "
                f"{level} give another one, such as slice-quantile"
            )

    def reset_parameters(self) -> None:
        """Normal initialisation: see ``init`` of :class:`ModelConfig`."""
        layers, balanced = self.config.layers, self.config.init == "balanced"
        of_atoms = set(self.atoms.modules())
        blocks = cast(Iterable[Block], self.blocks)
        of_bonds = {table for block in blocks if block.messages for table in (block.messages.bond, block.messages.ring)}
        output_maps = {end for block in blocks for end in block.output_maps()}
        last = self.head.output if isinstance(self.head, MLPHead) else self.head
        for module in self.modules():
            if isinstance(module, nn.Linear):
                std = 0.02 / math.sqrt(layers)
                if balanced and module is not last:
                    std = (module.in_features * (2 * layers if module in output_maps else 1)) ** -0.5
                nn.init.normal_(module.weight, std=std)
                nn.init.zeros_(module.bias)
            elif isinstance(module, nn.Embedding | nn.EmbeddingBag):
                std = 1.0 if module in of_atoms else 0.5 if module in of_bonds else 0.02
                nn.init.normal_(module.weight, std=std if balanced else 0.02)
            elif isinstance(module, nn.LayerNorm):
                module.reset_parameters()
        if self.descriptors is not None:
            self.descriptors.reset_parameters()
        if self.config.distance_start:
            self.pairs.init_from_distances()

    def forward(self, batch: GraphBatch) -> Tensor:
        """Predictions ``[B, T]`` in the unit of the targets; of atoms or bonds ``[M, T]``, in the order of
        ``batch.atom_bond_index``."""
        return self.standardised(batch) * self.target_std + self.target_mean

    def standardised(self, batch: GraphBatch) -> Tensor:
        """:meth:`forward` of ``(target - target_mean) / target_std``."""
        read = self.compute_embeddings(batch) if self.sites is None else self._atom_bond_readout(batch)
        # In full precision: bfloat16 would round predictions to three digits.
        with torch.autocast(read.device.type, enabled=False):
            return self.head(read)

    def standardised_with_rows(self, batch: GraphBatch) -> tuple[Tensor, Tensor]:
        """:meth:`standardised` of molecules, and the rows behind the last norm, ``[B, N + 1, C]``, of which heads of
        atoms and bonds read."""
        context, rows = self._context_and_rows(batch)
        with torch.autocast(rows.device.type, enabled=False):
            rows = rows.to(self.target_mean.dtype)
            return self.head(self._readouts_and_descriptors(rows, context.mask, batch.descriptors)), rows

    def compute_embeddings(self, batch: GraphBatch) -> Tensor:
        """Each molecule in numbers, ``[B, width]``: readouts after the last norm, and the descriptors."""
        context, read = self._run_traced(batch, rows=False)
        if read is not None:
            return self._with_descriptors(read, batch.descriptors)
        normed = self._apply_blocks(self.embed(batch), context)
        with torch.autocast(normed.device.type, enabled=False):
            return self._readouts_and_descriptors(normed.to(self.target_mean.dtype), context.mask, batch.descriptors)

    def _atom_bond_readout(self, batch: GraphBatch) -> Tensor:
        """What the head reads of each atom or bond, ``[M, C]``."""
        if self.sites is None or batch.atom_bond_index is None:
            raise ValueError(f"the model answers for {self.config.level}s, and the batch has no sites")
        _, rows = self._context_and_rows(batch)
        with torch.autocast(rows.device.type, enabled=False):
            return self.sites(rows.to(self.target_mean.dtype), batch.atom_bond_index)

    def _context_and_rows(self, batch: GraphBatch) -> tuple[AttentionContext, Tensor]:
        """The context of a batch, and the rows behind the last norm."""
        context, rows = self._run_traced(batch, rows=True)
        return context, self._apply_blocks(self.embed(batch), context) if rows is None else rows

    def _run_traced(self, batch: GraphBatch, *, rows: bool) -> tuple[AttentionContext, Tensor | None]:
        """The context of a batch, and what a program makes of both where one fits: see :func:`run_traced`."""
        if self._compiled[0] is not None or batch.lengths.device.type != "cpu":
            return self.context(batch), None
        with single_threaded_torch():
            context = self.context(batch)
            return context, run_traced(self, batch, context, rows=rows)

    def embed(self, batch: GraphBatch) -> Tensor:
        """``[B, N + 1, C]``: the rows that enter the first block; row 0 is the graph token."""
        return self.input_dropout(self.embedding_norm(self.atoms(batch)))

    def context(self, batch: GraphBatch) -> AttentionContext:
        """What the mixers of the blocks declared to read of a batch."""
        blocks = cast(Iterable[Block], self.blocks)
        reads = {name for block in blocks for name in block.mixer.reads}
        return self.pairs(batch, sorted(reads), mixer_name=self.config.mixer, bonds=self.config.bond_messages)

    def predict_from_rows(self, normed: Tensor, mask: Tensor, descriptors: Tensor | None = None) -> Tensor:
        """Predictions ``[B, T]`` in the unit of the targets, of what left the last norm and of the descriptors."""
        return self.head(self._readouts_and_descriptors(normed, mask, descriptors)) * self.target_std + self.target_mean

    def _readouts_and_descriptors(self, normed: Tensor, mask: Tensor, descriptors: Tensor | None) -> Tensor:
        return self._with_descriptors(self.read_out(normed, mask), descriptors)

    def _with_descriptors(self, read: Tensor, descriptors: Tensor | None) -> Tensor:
        if self.descriptors is not None:
            if descriptors is None or descriptors.shape[1] != self.config.descriptors:
                raise ValueError(f"the model reads {self.config.descriptors} descriptors, which the batch has not")
            read = torch.cat([read, self.descriptors(descriptors)], dim=-1)
        return read

    def compile_blocks(self, batch_size: int, **options) -> bool:
        """Compile the blocks for batches of one size, as ``torch.compile`` does; others run as before.

        So do batches for which no gradients are wanted: validation would be compiled by itself, for a few batches.

        A compiled function is made for every number of rows that it meets: let them be few, as
        ``graphslice.data.collate.collate_rows`` makes them with ``multiple``; :func:`row_multiple` says which is
        best. Beyond 64, other numbers of rows run as before; so do all where there is no compiler, which a line says.

        Args:
            batch_size: molecules of a batch.
            options: of :func:`torch.compile`, such as ``mode="reduce-overhead"`` for CUDA graphs.

        Returns:
            Whether they will be: not without a compiler.
        """
        if warn_of_missing_compiler(self.target_mean.device.type):
            return False
        self._compiled = compiled_or_eager(self.run_blocks, **options), batch_size
        return True

    def run_eagerly(self) -> None:
        """Compute all batches again as before :meth:`compile_blocks`."""
        self._compiled = None, -1

    def _apply_blocks(self, x: Tensor, context: AttentionContext) -> Tensor:
        """``[B, N + 1, C]``: what comes out of the last norm."""
        tensors = context.tensors()
        compiled, batch_size = self._compiled
        if compiled is not None and len(x) == batch_size and torch.is_grad_enabled():
            return compiled(x, tensors)
        shares = num_chunks(x, self._block_parameters)
        if shares == 1:
            return self.run_blocks(x, tensors)
        parameters = [*self.blocks.parameters(), *self.norm.parameters()] if torch.is_grad_enabled() else []
        return run_in_chunks(self.run_blocks, x, tensors, parameters, shares)

    def run_blocks(self, x: Tensor, tensors: dict[str, Tensor]) -> Tensor:
        """The blocks and the last norm of rows ``[B, N + 1, C]``, given the tensors of their context."""
        context = AttentionContext(width=x.shape[1], has_graph=True, mixer_name=self.config.mixer, **tensors)
        y = None
        for block in self.blocks:
            x, y = block(x, y, context)
        return self.norm(x, y)[1]

    def read_out(self, x: Tensor, mask: Tensor) -> Tensor:
        """The readouts joined, ``[B, C]`` each (``[B, 5 C]`` the quantiles): the token is row 0, atoms follow."""
        atoms, mask = x[:, 1:], mask[:, 1:]
        found = []
        for readout in self.readouts:
            if readout == "token":
                found.append(x[:, 0])
            elif readout == "max":
                found.append(atoms.masked_fill(~mask[:, :, None], -torch.inf).amax(dim=1))
            elif readout == "quantiles":
                q = torch.linspace(0, 1, READOUTS["quantiles"], device=x.device)[:, None]
                found.append(column_quantiles(atoms, mask.sum(dim=1), q).flatten(1))
            else:
                total = atoms.masked_fill(~mask[:, :, None], 0).sum(dim=1)
                found.append(total if readout == "sum" else total / mask.sum(dim=1, keepdim=True))
        return torch.cat(found, dim=-1)

    @property
    def num_parameters(self) -> int:
        """How many numbers are trained."""
        return sum(parameter.numel() for parameter in self.parameters())
