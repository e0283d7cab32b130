"""Graph transformer: the architecture of Graphormer with an exchangeable token mixer in place of self-attention."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from graphslice.batch import GraphBatch
from graphslice.config import MOLECULE, ModelConfig
from graphslice.errors import InputError
from graphslice.nn.block import AtomBondReadout, Block, MLPHead, NormedLayer
from graphslice.nn.compiled import compiled_or_eager
from graphslice.nn.context import AttentionContext
from graphslice.nn.descriptors import DescriptorEncoder
from graphslice.nn.encodings import AtomEncoder, PairEncoder
from graphslice.nn.mixers import check_mixer
from graphslice.nn.traced_model import traceable
from graphslice.ops import Dropout, read_out
from graphslice.ops.read_out import ATOMWISE
from graphslice.ops.triton import warn_of_missing_compiler


class GraphTransformer(nn.Module):
    """Graphormer (Ying et al. 2021, "Do Transformers Really Perform Badly for Graph Representation?") with any mixer.

    The tokens are a graph token (row 0) and the atoms (rows 1 to N). The layers are pre-norm or post-norm transformer
    blocks (:class:`~graphslice.nn.block.Block`), followed by a readout and an output head. Shapes: B molecules, at
    most N atoms, C = ``config.dim`` channels, H heads, T = ``config.tasks`` targets, M labelled atoms or bonds.

    The network predicts standardised targets, which ``target_mean`` and ``target_std`` convert to their scale.

    Args:
        config: architecture and initialisation.

    Attributes:
        target_mean: buffer, float32 ``[T]``, mean of the training targets; 0 until set.
        target_std: buffer, float32 ``[T]``, standard deviation of the training targets; 1 until set.
        width: number of features of a molecule's embedding, the input of the head of a molecule-level model.

    Raises:
        InputError: if the mixer or one of its settings is unknown, or if the mixer is not permutation-equivariant and
            the targets are atom-level or bond-level.
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
        blocks = nn.ModuleList(Block(config, layer) for layer in range(1, config.layers + 1))
        self.blocks = cast(Sequence[Block], blocks)
        self.readouts = config.readout.split("+")
        self._check_equivariance()
        self.atomwise = NormedLayer(config.dim, config.dim) if ATOMWISE in self.readouts else None
        self.width = config.width
        # The residual stream of pre-norm blocks needs a final layer norm, unless the head has its own.
        final_norm = (config.norm, config.head) == ("pre", "linear")
        self.norm = nn.LayerNorm(config.dim) if final_norm else nn.Identity()
        self.atom_bond_readout = None if config.level == MOLECULE else AtomBondReadout(config.dim, config.level)
        inputs, linear = self.width if self.atom_bond_readout is None else config.dim, config.head == "linear"
        self.head: nn.Module = nn.Linear(inputs, config.tasks) if linear else MLPHead(inputs, config.dim, config.tasks)
        self.descriptors = DescriptorEncoder(config.descriptors, config.dim) if config.descriptors else None
        self.register_buffer("target_mean", torch.zeros(config.tasks))
        self.register_buffer("target_std", torch.ones(config.tasks))
        self._compiled: tuple[Callable[..., Tensor] | None, int] = (None, -1)
        self.reset_parameters()

    def _check_equivariance(self) -> None:
        """Raise :class:`InputError` if the mixer would break the symmetry of equivalent atoms or bonds."""
        level = self.config.level
        if level != MOLECULE and not all(block.mixer.equivariant for block in self.blocks):
            raise InputError(
                f"model.mixer {self.config.mixer} is not permutation-equivariant: symmetric {level}s would get "
                f"different predictions depending on their index; for data.level {level} choose another mixer, such as "
                "slice-quantile"
            )

    def reset_parameters(self) -> None:
        """Draw all weights from normal distributions, as ``init`` of :class:`ModelConfig` describes; biases are 0."""
        layers, balanced = self.config.layers, self.config.init == "balanced"
        atom_modules = set(self.atoms.modules())
        bond_tables = {
            table for block in self.blocks if block.messages for table in (block.messages.bond, block.messages.ring)
        }
        branch_outputs = {linear for block in self.blocks for linear in block.output_maps()}
        output_head = self.head.output if isinstance(self.head, MLPHead) else self.head
        for module in self.modules():
            if isinstance(module, nn.Linear):
                std = 0.02 / math.sqrt(layers)
                if balanced and module is not output_head:
                    std = (module.in_features * (2 * layers if module in branch_outputs else 1)) ** -0.5
                nn.init.normal_(module.weight, std=std)
                if module.bias is not None:
                    nn.init.zeros_(module.bias)
            elif isinstance(module, nn.Embedding | nn.EmbeddingBag):
                std = 1.0 if module in atom_modules else 0.5 if module in bond_tables else 0.02
                nn.init.normal_(module.weight, std=std if balanced else 0.02)
            elif isinstance(module, nn.LayerNorm):
                module.reset_parameters()
        if self.descriptors is not None:
            self.descriptors.reset_parameters()
        if self.config.distance_start:
            self.pairs.init_from_distances()

    def forward(self, batch: GraphBatch) -> Tensor:
        """Predict the targets of a batch.

        Args:
            batch: B molecules. It needs ``descriptors`` if the model uses descriptors, ``bonds`` if it uses message
                passing along bonds, and ``atom_bond_index`` if its targets are atom-level or bond-level.

        Returns:
            Predictions on the scale of the training, ``[B, T]``: numbers in their unit, or their logarithms if these
            were trained on; logits of classes. Of atom-level or bond-level targets ``[M, T]``, in the order of
            ``batch.atom_bond_index``.

        Raises:
            ValueError: if the batch lacks one of these.
        """
        return self.standardised(batch) * self.target_std + self.target_mean

    def standardised(self, batch: GraphBatch) -> Tensor:
        """Predict ``(target - target_mean) / target_std``, with the shapes and errors of :meth:`forward`."""
        features = (
            self.compute_embeddings(batch) if self.atom_bond_readout is None else self._read_out_atoms_or_bonds(batch)
        )
        # In full precision: bfloat16 would round predictions to three digits.
        with torch.autocast(features.device.type, enabled=False):
            return self.head(features)

    def standardised_with_rows(self, batch: GraphBatch) -> tuple[Tensor, Tensor]:
        """Predict standardised molecule-level targets ``[B, T]``, and return the output of the final norm too,
        ``[B, N + 1, C]`` (row 0: graph token), the input of auxiliary atom- and bond-level heads."""
        rows = self._encode(batch)
        with torch.autocast(rows.device.type, enabled=False):
            rows = rows.to(self.target_mean.dtype)
            readouts = self._read_out(rows, batch.row_lengths)
            return self.head(self._with_descriptors(readouts, batch.descriptors)), rows

    def compute_embeddings(self, batch: GraphBatch) -> Tensor:
        """Compute learned embeddings of molecules, ``[B, width]``: the concatenated readouts of the final norm's
        output, then the encoded descriptors, if any. Raises ValueError if the batch lacks descriptors or bonds that
        the model uses."""
        readouts = self._pool(batch)
        with torch.autocast(readouts.device.type, enabled=False):
            return self._with_descriptors(readouts, batch.descriptors)

    def _read_out_atoms_or_bonds(self, batch: GraphBatch) -> Tensor:
        """Compute the features ``[M, C]`` of the labelled atoms or bonds."""
        if self.atom_bond_readout is None or batch.atom_bond_index is None:
            raise ValueError(
                f"the model has {self.config.level}-level targets, but the batch has no atom_bond_index: collate it "
                f"with level={self.config.level!r}"
            )
        rows = self._encode(batch)
        with torch.autocast(rows.device.type, enabled=False):
            return self.atom_bond_readout(rows.to(self.target_mean.dtype), batch.atom_bond_index)

    @traceable
    def _pool(self, batch: GraphBatch, values: Tensor | None = None) -> Tensor:
        """Compute the readouts ``[B, W]``; ``values`` is the result of ``self.pairs.path_values``, if known."""
        rows = self._encode(batch, values)
        with torch.autocast(rows.device.type, enabled=False):
            return self._read_out(rows.to(self.target_mean.dtype), batch.row_lengths)

    @traceable
    def _encode(self, batch: GraphBatch, values: Tensor | None = None) -> Tensor:
        """Compute the output of the final norm, ``[B, N + 1, C]``; ``values`` as for :meth:`_pool`."""
        x, context = self.embed(batch), self.context(batch, values)
        compiled, batch_size = self._compiled
        if compiled is not None and len(x) == batch_size and torch.is_grad_enabled():
            return compiled(x, context.tensors())
        return self.run_blocks(x, context.tensors())

    def embed(self, batch: GraphBatch) -> Tensor:
        """Embed the graph token (row 0) and the atoms: ``[B, N + 1, C]``, the input of the first block."""
        return self.input_dropout(self.embedding_norm(self.atoms(batch)))

    def context(self, batch: GraphBatch, values: Tensor | None = None) -> AttentionContext:
        """Compute the graph tensors that the mixers declare in ``reads``, shared by all layers; ``values``: of
        ``self.pairs.path_values``, if known."""
        reads = {name for block in self.blocks for name in block.mixer.reads}
        settings = {"mixer_name": self.config.mixer, "bonds": self.config.bond_messages}
        return self.pairs(batch, sorted(reads), values=values, **settings)

    def predict_from_rows(self, normed: Tensor, lengths: Tensor, descriptors: Tensor | None = None) -> Tensor:
        """Predict molecule-level targets ``[B, T]``, in their unit, from the output of the final norm,
        ``[B, N + 1, C]`` (row 0: graph token), int64 ``lengths [B]`` of valid rows, and ``descriptors``, float32
        ``[B, F]``, if the model uses them."""
        embeddings = self._with_descriptors(self._read_out(normed, lengths), descriptors)
        return self.head(embeddings) * self.target_std + self.target_mean

    def _read_out(self, rows: Tensor, lengths: Tensor) -> Tensor:
        """Compute the readouts ``[B, W]`` of the final norm's output, ``[B, N + 1, C]``."""
        # With 0.1, sums over tens of atoms have the scale of the other readouts; with 1 models learn far more slowly.
        contributions = None if self.atomwise is None else self.atomwise(rows) * 0.1
        return read_out(rows, lengths, self.readouts, contributions)

    def _with_descriptors(self, readouts: Tensor, descriptors: Tensor | None) -> Tensor:
        if self.descriptors is not None:
            if descriptors is None or descriptors.shape[1] != self.config.descriptors:
                raise ValueError(
                    f"the model expects {self.config.descriptors} descriptors per molecule, but the batch has "
                    f"{'none' if descriptors is None else descriptors.shape[1]}"
                )
            readouts = torch.cat([readouts, self.descriptors(descriptors)], dim=-1)
        return readouts

    def compile_blocks(self, batch_size: int, **options) -> bool:
        """Compile the blocks with ``torch.compile`` for training batches of one size, once for every number of rows;
        return False, with a warning, if this machine has no compiler.

        Batches of another size run eagerly, and so do batches without gradients: compiling validation separately would
        not pay off for its few batches. Keep the numbers of rows few, with ``multiple`` of
        ``graphslice.data.batches.collate_rows``; :func:`~graphslice.nn.compiled.row_multiple` returns the best.
        """
        if warn_of_missing_compiler(self.target_mean.device.type):
            return False
        self._compiled = compiled_or_eager(self.run_blocks, **options), batch_size
        return True

    @property
    def is_compiled(self) -> bool:
        """True after :meth:`compile_blocks`."""
        return self._compiled[0] is not None

    def run_eagerly(self) -> None:
        """Undo :meth:`compile_blocks`: run all batches eagerly."""
        self._compiled = None, -1

    def run_blocks(self, x: Tensor, tensors: dict[str, Tensor]) -> Tensor:
        """Apply the blocks and the final norm to ``x``, ``[B, N + 1, C]``, with the tensors of
        :meth:`AttentionContext.tensors`; returns the same shape."""
        context = AttentionContext(width=x.shape[1], has_graph=True, mixer_name=self.config.mixer, **tensors)
        for block in self.blocks:
            x = block(x, context)
        return self.norm(x)

    @property
    def num_parameters(self) -> int:
        """Number of parameters."""
        return sum(parameter.numel() for parameter in self.parameters())


class _SkipRandomInit(TorchFunctionMode):
    """Leave weights uninitialised, as they are loaded afterwards: random initialisation would advance the generator of
    random numbers that another thread may train with."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func.__name__ in ("normal_", "uniform_", "kaiming_uniform_"):  # of Tensor, or of torch.nn.init
            return args[0] if args else kwargs["tensor"]
        return func(*args, **kwargs)


def build_network(config: ModelConfig, weights: Mapping[str, np.ndarray]) -> GraphTransformer:
    """Build a network in evaluation mode with the weights of a state dict; raises RuntimeError if they do not fit the
    architecture."""
    with _SkipRandomInit():
        network = GraphTransformer(config)
    network.load_state_dict({name: torch.from_numpy(weight) for name, weight in weights.items()})
    return network.eval()
