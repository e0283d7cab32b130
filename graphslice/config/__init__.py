"""Configuration of a run: dataclasses with all hyperparameters, filled from a preset, a YAML file and flags.

Later sources override earlier ones. The resolved configuration is stored in the run directory and in every checkpoint,
and completely describes how a model was trained.
"""

from __future__ import annotations

import dataclasses
import typing
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from graphslice.config.reading import PRESETS as PRESETS
from graphslice.config.reading import (
    Section,
    check_keys,
    check_type,
    flattened,
    merge_sections,
    nested,
    parse_section,
    read_preset,
)
from graphslice.config.reading import read_yaml as read_yaml
from graphslice.config.sections import ATOM as ATOM
from graphslice.config.sections import BOND as BOND
from graphslice.config.sections import LEVELS, MOLECULE, DataConfig, GraphConfig
from graphslice.config.sections import join_names as join_names
from graphslice.config.sections import quote_item as quote_item
from graphslice.config.sections import quote_setting as quote_setting
from graphslice.config.sections import split_columns as split_columns
from graphslice.config.sections import split_words as split_words
from graphslice.errors import InputError, check_choice, check_number
from graphslice.system.hub import is_hub_model, local_path, pinned_name
from graphslice.system.machine import is_packaged_model

#: Readouts, and the number of vectors of C channels of each.
READOUTS = {"token": 1, "mean": 1, "sum": 1, "max": 1, "quantiles": 5, "atomwise": 1}

#: Loss functions; auto: mae for regression, bce for binary and cross-entropy for multiclass targets.
LOSSES = ("auto", "mae", "mse", "huber", "gaussian", "bce", "cross-entropy")

#: Value of ``init_from`` for training from scratch.
FROM_SCRATCH = "none"

_AUTO_ON_OFF = ("auto", "on", "off")


@dataclass
class ModelConfig(Section):
    """Architecture of a GraphTransformer."""

    mixer: str = "slice-max"  # token-mixing layer that replaces self-attention: see ``graphslice.nn.mixers``
    layers: int = 4  # number of blocks
    dim: int = 128  # channels C of every atom embedding
    heads: int = 8  # heads H of the attention bias and of the attention map
    ffn_dim: int = 128  # hidden channels of the feed-forward network
    tasks: int = 1  # number of outputs: one per target, but one per class for multiclass targets
    readout: str = "token"
    """input of the output head: token, or the mean, sum, max or quantiles (minimum, quartiles and maximum) over the
    atoms, per channel; or atomwise, the sum over the atoms of 0.1 LN(GELU(W x + b)), with which a linear head adds up
    contributions of atoms, as in SchNet (Schuett et al. 2018); or several joined with "+", such as token+mean"""
    init: str = "graphormer"
    """standard deviations of the initial weights: graphormer (linear maps 0.02 / sqrt(layers), embeddings 0.02) or
    balanced, which trains faster: rows of atom embeddings have the scale of a layer-norm output, linear maps have
    1 / sqrt(inputs), and the last map of a branch has 1 / sqrt(2 layers) of that"""
    distance_start: bool = False  # initialise head h to attend to pairs at a distance of h mod 6 bonds
    norm: str = "pre"
    """pre (layer norm before every mixer and feed-forward network, and after the last block), post (after each
    residual sum, as in the later Graphormer) or none (as in the Galerkin transformer)"""
    embedding_norm: bool = False  # layer norm after the atom encoder
    bond_messages: bool = False
    """add message passing along bonds (GINE) to every mixer: a sum over bonded neighbours that depends on bond types
    and rings, while the attention map averages over distances and paths"""
    head: str = "linear"
    """linear, or mlp (linear, GELU, layer norm, linear), which replaces the norm after the last block"""
    dropout: float = 0.1  # dropout after every mixer and feed-forward network
    input_dropout: float = 0.1  # dropout after the atom encoder
    attention_dropout: float = 0.1  # dropout on the attention map
    activation_dropout: float = 0.0  # dropout after the GELU of every feed-forward network
    embedding_layout: str = "ogb"
    """layout of the embedding tables: ogb (as many rows as values) or graphormer (512 rows per feature, as in the
    original checkpoints)"""
    num_degrees: int = 16  # rows of each degree table; larger degrees share the last row
    num_distances: int = 64  # rows of the spatial table; larger distances share the last row but one
    num_path_positions: int = 5  # matrices of the edge encoding, of which max_path are used
    max_path: int = 5  # number of bonds of a shortest path that enter the edge encoding
    mixer_settings: dict | None = None  # hyperparameters of the mixer, such as {"groups": 2} for csp
    descriptors: int = 0  # number of molecular descriptors used in addition to the graph: the size of data.features
    level: str = MOLECULE  # level of the predictions, equal to data.level: molecule, atom or bond

    def __post_init__(self) -> None:
        for readout in self.readout.split("+"):
            check_choice("model.readout", readout, READOUTS)
        if "atomwise" in self.readout and self.level != MOLECULE:
            raise InputError(f"data.level {self.level} needs another readout than atomwise: give model.readout mean")
        self._check_choices(init=("graphormer", "balanced"), norm=("pre", "post", "none"), head=("linear", "mlp"))
        self._check_choices(embedding_layout=("ogb", "graphormer"), level=LEVELS)
        self._check_least(1, "layers", "dim", "heads", "ffn_dim", "tasks")
        self._check_least(0, "descriptors")
        self._check_least(8, "num_distances")
        self._check_least(2, "num_degrees")
        if self.dim % self.heads:
            raise InputError(f"model.heads ({self.heads}) must divide model.dim ({self.dim})")
        check_number("model.max_path", self.max_path, 1, self.num_path_positions)
        for name in ("dropout", "input_dropout", "attention_dropout", "activation_dropout"):
            check_number(f"model.{name}", getattr(self, name), 0, 0.99)

    @property
    def width(self) -> int:
        """Number of features of a molecule's embedding: its readouts, and its encoded descriptors, if any."""
        return self.dim * (sum(READOUTS[name] for name in self.readout.split("+")) + (self.descriptors > 0))

    @classmethod
    def preset(cls, name: str) -> ModelConfig:
        """Return the model configuration of a preset, such as ``"pcqm4m-slice"``; see :data:`PRESETS`."""
        return cls(**read_preset(name).get("model", {}))


# Peak learning rate of a small model that is trained from scratch.
_SCRATCH_LR = 4e-3


@dataclass
class OptimizerConfig(Section):
    """AdamW with linear warm-up and linear decay of the learning rate."""

    peak_lr: float | None = 1e-3
    """learning rate at the end of the warm-up; null (preset small): that of the packaged model if the run is fine-tuned
    from it by default, else 4e-3"""
    end_lr: float = 1e-9  # learning rate at the end of the decay
    warmup_steps: int | None = None  # steps of the warm-up; default: 5% of the total
    total_steps: int | None = None
    """steps until the end of the decay; default: all steps of the run. A run with fewer steps goes through warm-up and
    decay in proportion"""
    weight_decay: float = 0.01  # weight decay of AdamW
    structure_lr_factor: float = 1.0
    """ratio of the learning rate of the spatial and edge encodings to that of other weights. Attention scores have to
    change by several units to change the attention map, other weights by less"""
    layer_lr_decay: float = 1.0
    """ratio of the learning rate of each block to that of the next block, and of the embeddings to that of the first
    block; below 1 for fine-tuning"""

    def __post_init__(self) -> None:
        self._check_positive("peak_lr", "structure_lr_factor", "layer_lr_decay")
        self._check_least(0, "end_lr", "weight_decay", "warmup_steps")
        self._check_least(1, "total_steps")

    @property
    def max_lr(self) -> float:
        """``peak_lr``, or the learning rate of a training from scratch."""
        return _SCRATCH_LR if self.peak_lr is None else self.peak_lr


@dataclass
class TrainerConfig(Section):
    """Training: length, loss, hardware, baselines and ensemble."""

    max_epochs: int | None = None  # passes over the training set; default: depends on its size
    max_steps: int | None = None  # optimiser steps
    max_minutes: float | None = None
    """minutes of training with validations. The first of the three limits that is reached ends the training; without a
    limit there are 30 epochs for up to 10,000 molecules, and fewer for more"""
    batch_size: int = 64  # molecules per optimiser step, in total over all devices
    gradient_clip: float = 5.0  # largest norm of the gradient; 0 disables clipping
    accelerator: str = "auto"  # auto (a CUDA GPU if available, else cpu), cpu, cuda or mps
    devices: str = "auto"  # number of devices; auto: one CPU process, or a GPU per 32 molecules of a batch
    precision: str = "auto"
    """auto (bf16-mixed on GPUs that support it, 16-mixed on V100, T4 and RTX 20), 32, bf16-mixed or 16-mixed"""
    compile: str = "auto"
    """on (torch.compile, with CUDA graphs on a GPU), off, or auto (on a GPU, if timing the first steps shows that
    compilation will pay off)"""
    workers: str = "auto"  # threads that prepare batches while the model computes; auto (2 for a GPU, else none)
    patience: int | None = None  # early stopping: number of epochs without a better validation metric; None disables it
    checkpoint_minutes: float = 10.0  # interval at which the last checkpoint is updated within an epoch
    loss: str = "auto"
    """loss of regression targets: mae, mse, huber, or gaussian (negative log-likelihood with a predicted standard
    deviation); binary targets use bce and multiclass targets cross-entropy"""
    metric: str | None = None
    """metric on the validation set that selects the best epoch, such as mae, rmse, spearman, auroc, auprc or accuracy;
    default: mae for regression, auroc for classification, the loss if there are both"""
    target_weights: str | None = None  # weights of targets in the loss, TARGET=2,OTHER=0.5; default 1
    auxiliary_weight: float = 0.5
    """in pretraining, weight of all targets of atoms and bonds in the loss, relative to that of the targets of
    molecules"""
    class_weights: str = "none"  # none, or balanced (every class of a target has the same total weight in the loss)
    baselines: str = "auto"
    """on: also fit a random forest, gradient boosting and a kernel machine to Morgan counts and descriptors of the
    graph, and predict with the stack of all models, whose weights are chosen on held-out molecules; off; or auto: on
    up to 20,000 labels of molecules"""
    refit: str = "auto"
    """on: choose the weights of the stack, and calibrate, on folds of the training set, and train the final models on
    all its rows; off: on a validation set; auto: on with baselines and up to 3,000 rows, unless the data have a
    validation set, or the run is limited by time or patience, or is an ensemble"""
    ensemble: int = 1  # number of ensemble members; their mean is predicted, and their standard deviation reported
    freeze: str = "none"
    """weights that are not trained: none, embeddings, or blocks:N (the embeddings and the first N blocks)"""
    seed: int = 0  # random seed of the initial weights, the order of the molecules and the dropout

    def __post_init__(self) -> None:
        self._check_least(1, "max_epochs", "batch_size", "max_steps", "patience", "ensemble")
        self._check_least(0, "gradient_clip", "auxiliary_weight")
        self._check_positive("checkpoint_minutes", "max_minutes")
        check_number("trainer.seed", self.seed, 0, 2**32 - 1)  # as numpy and scikit-learn take them
        self._check_form(freeze="none|embeddings|blocks:N", workers="auto|N", devices="auto|N")
        if self.metric is not None:
            self.metric = self.metric.strip().lower().replace(" ", "_").replace("-", "_")
        self._check_choices(baselines=_AUTO_ON_OFF, refit=_AUTO_ON_OFF, compile=_AUTO_ON_OFF, loss=LOSSES)
        self._check_choices(class_weights=("none", "balanced"), precision=("auto", "32", "bf16-mixed", "16-mixed"))

    @property
    def inference_device(self) -> str | None:
        """Device for predictions of the trained model: cpu if it was explicitly trained there, else None (default)."""
        return "cpu" if self.accelerator == "cpu" else None


@dataclass
class RunConfig(Section):
    """Complete configuration of a run."""

    data: DataConfig = field(default_factory=DataConfig)  # dataset, columns, tasks and split
    graph: GraphConfig = field(default_factory=GraphConfig)  # conversion of molecules to graphs
    model: ModelConfig = field(default_factory=ModelConfig)  # architecture
    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)  # optimiser and learning rate schedule
    trainer: TrainerConfig = field(default_factory=TrainerConfig)  # training
    init_from: str | None = None
    """fine-tune from the weights of a run, of a checkpoint, or of a packaged model; none trains from scratch; default:
    small, for up to 50,000 molecules like those it was trained on"""

    def __post_init__(self) -> None:
        if self.trainer.freeze != "none" and self.origin is None:
            raise InputError(
                f"trainer.freeze {self.trainer.freeze} needs pretrained weights: add init_from small, or another run"
            )

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> RunConfig:
        """Build a configuration from nested plain values, such as those of a YAML file; raises :class:`InputError` for
        an unknown key or a value of the wrong type."""
        values = nested(values)
        check_keys(values, cls)
        kinds = typing.get_type_hints(cls)
        sections = {name: section for name, section in values.items() if dataclasses.is_dataclass(kinds[name])}
        configs = {name: parse_section(kinds[name], name, section) for name, section in sections.items()}
        origin = values.get("init_from")
        check_type("init_from", origin, (str, type(None)))
        return cls(**configs, init_from=origin)

    @classmethod
    def preset(cls, name: str) -> RunConfig:
        """Return the configuration of a preset; see :data:`PRESETS`."""
        return cls.from_dict(read_preset(name))

    def fine_tuned_from(self, origin: RunConfig, path: str | Path) -> RunConfig:
        """Return the configuration of a run that is fine-tuned from the model at ``path``: with its model, graph and
        optimiser (``origin``), but a learning rate that warms up and decays over the steps of the new run."""
        optimizer = dataclasses.replace(origin.optimizer, warmup_steps=None, total_steps=None)
        local = Path(local_path(path)).resolve()
        where = str(path) if is_packaged_model(path) else pinned_name(local) or str(local)
        return dataclasses.replace(self, model=origin.model, graph=origin.graph, optimizer=optimizer, init_from=where)

    @property
    def origin(self) -> str | None:
        """The model that this run is fine-tuned from; None if trained from scratch, or not decided yet."""
        return None if self.init_from == FROM_SCRATCH else self.init_from

    @property
    def num_models(self) -> int:
        """Number of models to train: ensemble members, or one per cross-validation fold; raises :class:`InputError` if
        both are configured."""
        number, repeats = self.data.folds_and_repeats
        folds = number * repeats if self.data.is_cross_validation else 0
        if folds and self.trainer.ensemble > 1:
            raise InputError("data.folds trains one model per fold, an ensemble already: leave out trainer.ensemble")
        return folds or self.trainer.ensemble

    @property
    def collate_settings(self) -> dict[str, Any]:
        """Keyword arguments of ``collate_rows`` for this model."""
        return {
            "path_ties": self.graph.path_ties,
            "max_path": self.model.max_path,
            "descriptors": self.data.descriptors,
            "level": self.model.level,
            "bonds": self.model.bond_messages,
        }

    def without_paths(self) -> RunConfig:
        """Return the configuration with file names in place of paths, for files that are shared."""
        paths = ("dataset", "valid_file", "test_file", "root")
        names: dict[str, Any] = {
            name: value and Path(value).name for name in paths for value in [getattr(self.data, name)]
        }
        origin = self.init_from if is_hub_model(self.init_from) else self.init_from and Path(self.init_from).name
        return dataclasses.replace(self, data=dataclasses.replace(self.data, cache=None, **names), init_from=origin)

    def to_dict(self) -> dict[str, Any]:
        """Return nested plain values, for :meth:`from_dict`."""
        values = dataclasses.asdict(self)
        if self.init_from is None:
            del values["init_from"]
        return values

    def options(self) -> dict[str, Any]:
        """Return the settings of all sections by name, such as ``trainer.seed``."""
        return flattened(self.to_dict())

    def with_options(self, values: Mapping[str, Any]) -> RunConfig:
        """Return the configuration with other values of some options, by name; errors as of :meth:`from_dict`."""
        return RunConfig.from_dict(merge_sections(self.to_dict(), nested(values)))

    def to_yaml(self) -> str:
        """Return the configuration as YAML."""
        return yaml.safe_dump(self.to_dict(), sort_keys=False)
