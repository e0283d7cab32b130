"""Configuration of a run: dataclasses with all hyperparameters, filled from a preset, a YAML file and flags.

Later sources override earlier ones. The resolved configuration is stored in the run directory and in every checkpoint,
and completely describes how a model was trained.
"""

from __future__ import annotations

import dataclasses
import re
import typing
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from graphslice.config.reading import (
    PRESETS,
    Section,
    check_keys,
    flattened,
    merge_sections,
    nested,
    parse_section,
    read_preset,
    read_yaml,
)
from graphslice.config.sections import (
    ATOM,
    BOND,
    LEVELS,
    MOLECULE,
    DataConfig,
    GraphConfig,
    join_names,
    quote_item,
    quote_setting,
    split_columns,
    split_words,
)
from graphslice.errors import InputError, check_choice, check_number, shown
from graphslice.system.hub import is_hub_model, local_path, pinned_name
from graphslice.system.machine import is_packaged_model

__all__ = [
    "ATOM",
    "BOND",
    "FROM_SCRATCH",
    "LEVELS",
    "LOSSES",
    "MOLECULE",
    "PRESETS",
    "READOUTS",
    "DataConfig",
    "GraphConfig",
    "ModelConfig",
    "OptimizerConfig",
    "RunConfig",
    "TrainerConfig",
    "join_names",
    "quote_item",
    "quote_setting",
    "read_yaml",
    "split_columns",
    "split_words",
]

#: Readouts (pooling of atom embeddings into a molecule embedding), and the number of vectors of C channels of each.
READOUTS = {"token": 1, "mean": 1, "sum": 1, "max": 1, "quantiles": 5, "atomwise": 1}

#: Loss functions; auto: mae for regression, bce for binary and cross-entropy for multiclass targets.
LOSSES = ("auto", "mae", "mse", "huber", "gaussian", "bce", "cross-entropy")

#: Value of ``init_from`` for training from scratch.
FROM_SCRATCH = "none"

_AUTO_ON_OFF = ("auto", "on", "off")


@dataclass
class ModelConfig(Section):
    """Architecture of a GraphTransformer.

    Attributes:
        mixer: token-mixing layer that replaces self-attention: see ``graphslice.nn.mixers``.
        mixer_settings: hyperparameters of the mixer, such as {"groups": 2} for csp.
        layers: number of blocks.
        dim: channels C of every atom embedding.
        heads: heads H of the attention bias and of the attention map.
        ffn_dim: hidden channels of the feed-forward network.
        tasks: number of outputs: one per target, but one per class for multiclass targets.
        readout: input of the output head: token, or the mean, sum, max or quantiles (minimum, quartiles and maximum)
            over the atoms, per channel; or atomwise, the sum over the atoms of 0.1 LN(GELU(W x + b)), with which a
            linear head adds up contributions of atoms, as in SchNet (Schuett et al. 2018); or several joined with "+",
            such as token+mean.
        init: standard deviations of the initial weights: graphormer (linear maps 0.02 / sqrt(layers), embeddings 0.02)
            or balanced, which trains faster: every row of an atom embedding has the scale of a layer-norm output,
            linear maps have 1 / sqrt(inputs), and the last map of a branch has 1 / sqrt(2 layers) of that, so that
            all branches together add as much variance as their input has.
        distance_start: initialise head h to attend to pairs at a distance of h mod 6 bonds.
        norm: pre (layer norm before every mixer and feed-forward network, and after the last block) or post (after
            each residual sum, as in the later Graphormer).
        embedding_norm: layer norm after the atom encoder.
        bond_messages: add message passing along bonds (GINE) to every mixer: a sum over bonded neighbours that
            depends on bond types and rings, while the attention map averages over distances and paths.
        head: linear, or mlp (linear, GELU, layer norm, linear), which replaces the norm after the last block.
        dropout: dropout after every mixer and feed-forward network.
        input_dropout: dropout after the atom encoder.
        attention_dropout: dropout on the attention map.
        activation_dropout: dropout after the GELU of every feed-forward network.
        embedding_layout: layout of the embedding tables: ogb (as many rows as values) or graphormer (512 rows per
            feature, as in the original checkpoints).
        num_degrees: rows of each degree table; larger degrees share the last row.
        num_distances: rows of the spatial table; larger distances share the last row but one.
        num_path_positions: matrices of the edge encoding, of which max_path are used.
        max_path: number of bonds of a shortest path that enter the edge encoding.
        descriptors: number of molecular descriptors used in addition to the graph: the size of data.features.
        level: level of the predictions, equal to data.level: molecule, atom or bond.
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
    norm: str = "pre"
    embedding_norm: bool = False
    bond_messages: bool = False
    head: str = "linear"
    dropout: float = 0.1
    input_dropout: float = 0.1
    attention_dropout: float = 0.1
    activation_dropout: float = 0.0
    embedding_layout: str = "ogb"
    num_degrees: int = 16
    num_distances: int = 64
    num_path_positions: int = 5
    max_path: int = 5
    mixer_settings: dict | None = None
    descriptors: int = 0
    level: str = MOLECULE

    def __post_init__(self) -> None:
        for readout in self.readout.split("+"):
            check_choice("model.readout", readout, READOUTS)
        if "atomwise" in self.readout and self.level != MOLECULE:
            raise InputError(f"data.level {self.level} needs another readout than atomwise: give model.readout mean")
        self._check_choices(init=("graphormer", "balanced"), norm=("pre", "post"), head=("linear", "mlp"))
        self._check_choices(embedding_layout=("ogb", "graphormer"), level=LEVELS)
        self._check_least(1, "layers", "dim", "heads", "ffn_dim", "tasks")
        self._check_least(0, "descriptors")
        self._check_least(8, "num_distances")
        self._check_least(2, "num_degrees")
        if self.dim % self.heads:
            raise InputError(f"model.heads ({self.heads}) must divide model.dim ({self.dim})")
        check_number("model.max_path", self.max_path, 1, self.num_path_positions)
        for name in ("dropout", "input_dropout", "attention_dropout", "activation_dropout"):
            if not 0 <= getattr(self, name) < 1:
                raise InputError(f"model.{name} must be at least 0 and less than 1, not {getattr(self, name)}")

    @classmethod
    def preset(cls, name: str) -> ModelConfig:
        """Return the model configuration of a preset, such as ``"pcqm4m-slice"``; see :data:`PRESETS`."""
        return cls(**read_preset(name).get("model", {}))


# Peak learning rate of a small model that is trained from scratch.
_SCRATCH_LR = 4e-3


@dataclass
class OptimizerConfig(Section):
    """AdamW with linear warm-up and linear decay of the learning rate.

    Attributes:
        peak_lr: learning rate at the end of the warm-up; null, as in the preset small: that of the packaged model if
            the run is fine-tuned from it by default, since larger steps undo the pretraining, else 4e-3.
        end_lr: learning rate at the end of the decay.
        warmup_steps: steps of the warm-up; default: 5% of the total.
        total_steps: steps until the end of the decay; default: all steps of the run. A run with fewer steps goes
            through warm-up and decay in proportion.
        weight_decay: weight decay of AdamW.
        structure_lr_factor: ratio of the learning rate of the spatial and edge encodings to that of other weights.
            Attention scores have to change by several units to change the attention map, other weights by less.
        layer_lr_decay: ratio of the learning rate of each block to that of the next block, and of the embeddings to
            that of the first block; below 1 for fine-tuning.
    """

    peak_lr: float | None = 1e-3
    end_lr: float = 1e-9
    warmup_steps: int | None = None
    total_steps: int | None = None
    weight_decay: float = 0.01
    structure_lr_factor: float = 1.0
    layer_lr_decay: float = 1.0

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
    """Training: length, loss, hardware, baselines and ensemble.

    Attributes:
        max_epochs: passes over the training set; default: by its size, unless another limit is set.
        max_steps: optimiser steps.
        max_minutes: minutes of training including validation. Training ends, with the learning rate decayed, at the
            first of the three limits that are set. Without any, the number of epochs depends on the size of the
            training set: 30 for up to 10,000 molecules, then fewer.
        batch_size: molecules per optimiser step, in total over all devices.
        gradient_clip: largest norm of the gradient; 0 disables clipping.
        accelerator: auto (a CUDA GPU if available, else cpu), cpu, cuda or mps.
        devices: number of devices; auto: one CPU process, or a GPU per 32 molecules of a batch.
        precision: auto (bf16-mixed on GPUs that support it, 16-mixed on V100, T4 and RTX 20), 32, bf16-mixed or
            16-mixed.
        compile: on (torch.compile, with CUDA graphs on a GPU), off, or auto (on a GPU, if timing the first steps
            shows that compilation will pay off).
        workers: threads that prepare batches while the model computes; auto (2 for a GPU, else none).
        patience: early stopping: number of epochs without a better validation metric; None disables it.
        checkpoint_minutes: interval at which the last checkpoint is updated within an epoch.
        loss: loss of regression targets: mae, mse, huber, or gaussian (negative log-likelihood with a predicted
            standard deviation). Binary targets use bce and multiclass targets cross-entropy automatically.
        metric: metric on the validation set that selects the best epoch, such as mae, rmse, spearman, auroc, auprc or
            accuracy; default: mae for regression, auroc for classification, the loss if there are both.
        target_weights: weights of targets in the loss, TARGET=2,OTHER=0.5; default 1.
        auxiliary_weight: in pretraining, weight of all targets of atoms and bonds in the loss, relative to that of the
            targets of molecules.
        class_weights: none, or balanced (every class of a target has the same total weight in the loss).
        baselines: on, off or auto (default). on: also fit a random forest, gradient boosting and a kernel machine to
            Morgan counts and descriptors of the molecular graph, report which model is best, and predict with a
            weighted ensemble (stacking) of all, with weights chosen on held-out molecules; auto: on with SMILES and up
            to 20,000 labels.
        refit: on, off or auto (default). on: choose the stacking weights, and calibrate, by out-of-fold predictions for
            folds of the training set, and train the final models on all its rows; off: by a validation set, on which no
            model is trained; auto: on with baselines and up to 3,000 rows, unless the data name a validation set, or
            the run is limited by time or patience, or belongs to an ensemble.
        ensemble: number of ensemble members; their mean is predicted, and their standard deviation reported.
        freeze: weights that are not trained: none, embeddings, or blocks:N (the embeddings and the first N blocks).
        seed: random seed of the initial weights, the order of the molecules and the dropout.
    """

    max_epochs: int | None = None
    max_steps: int | None = None
    max_minutes: float | None = None
    batch_size: int = 64
    gradient_clip: float = 5.0
    accelerator: str = "auto"
    devices: str = "auto"
    precision: str = "auto"
    compile: str = "auto"
    workers: str = "auto"
    patience: int | None = None
    checkpoint_minutes: float = 10.0
    loss: str = "auto"
    metric: str | None = None
    target_weights: str | None = None
    auxiliary_weight: float = 0.5
    class_weights: str = "none"
    baselines: str = "auto"
    refit: str = "auto"
    ensemble: int = 1
    freeze: str = "none"
    seed: int = 0

    def __post_init__(self) -> None:
        self._check_least(1, "max_epochs", "batch_size", "max_steps", "patience", "ensemble")
        self._check_least(0, "gradient_clip", "auxiliary_weight")
        self._check_positive("checkpoint_minutes", "max_minutes")
        check_number("trainer.seed", self.seed, 0, 2**32 - 1)  # as numpy and scikit-learn take them
        if not re.fullmatch(r"none|embeddings|blocks:\d+", self.freeze):
            raise InputError(f"trainer.freeze must be none, embeddings or blocks:N, not {shown(self.freeze)}")
        if self.workers != "auto" and not (self.workers.isascii() and self.workers.isdigit()):
            raise InputError(f"trainer.workers must be auto or a number, not {shown(self.workers)}")
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
    """Complete configuration of a run.

    Attributes:
        data: dataset, columns, tasks and split.
        graph: conversion of molecules to graphs.
        model: architecture.
        optimizer: optimiser and learning rate schedule.
        trainer: training.
        init_from: fine-tuned from this run directory, checkpoint, or model of the package; ``"none"``: from scratch;
            None: chosen by the dataset, see :func:`~graphslice.training.resolve.resolve`.

    Raises:
        InputError: if weights are to be frozen in a model that is trained from scratch.
    """

    data: DataConfig = field(default_factory=DataConfig)
    graph: GraphConfig = field(default_factory=GraphConfig)
    model: ModelConfig = field(default_factory=ModelConfig)
    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)
    trainer: TrainerConfig = field(default_factory=TrainerConfig)
    init_from: str | None = None

    def __post_init__(self) -> None:
        if self.trainer.freeze != "none" and self.origin is None:
            raise InputError(
                f"trainer.freeze {self.trainer.freeze} needs pretrained weights: add init_from small, or another run"
            )

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> RunConfig:
        """Build a configuration from nested plain values, such as those of a YAML file.

        Raises:
            InputError: for an unknown key (the message suggests the nearest known one) or a value of the wrong type.
        """
        values = nested(values)
        check_keys(values, cls)
        kinds = typing.get_type_hints(cls)
        sections = {name: section for name, section in values.items() if dataclasses.is_dataclass(kinds[name])}
        configs = {name: parse_section(kinds[name], name, section) for name, section in sections.items()}
        origin = values.get("init_from")
        if not isinstance(origin, str | None):
            raise InputError(f"init_from must be str or empty, not {shown(origin)}")
        return cls(**configs, init_from=origin)

    @classmethod
    def preset(cls, name: str) -> RunConfig:
        """Return the configuration of a preset; see :data:`PRESETS`."""
        return cls.from_dict(read_preset(name))

    def fine_tuned_from(self, origin: RunConfig, path: str | Path) -> RunConfig:
        """Return the configuration of a fine-tuning run: with model, graph and optimiser of the pretrained one.

        The learning rate has the same peak, but warms up and decays over the steps of the new run.

        Args:
            origin: configuration of the pretrained model.
            path: its run directory or checkpoint, or the name of a model of the package.
        """
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
        """Number of models to train: ensemble members, or one per cross-validation fold.

        Raises:
            InputError: if both an ensemble and cross-validation are configured.
        """
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
        """Return nested plain values, the inverse of :meth:`from_dict`."""
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
