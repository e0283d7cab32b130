"""One configuration for a run: dataclasses, filled from a preset, a YAML file and flags.

What comes later wins. The resolved configuration is stored in the run folder and in every
checkpoint, and is the only truth about how a model was made.
"""

from __future__ import annotations

import dataclasses
import re
import typing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from graphslice.compat import migrate_config
from graphslice.config.data import (
    ATOM,
    BOND,
    LEVELS,
    MOLECULE,
    DataConfig,
    GraphConfig,
    join_names,
    split_columns,
    split_words,
)
from graphslice.config.optimizer import OptimizerConfig
from graphslice.config.reading import (
    PRESETS,
    check_keys,
    merge_sections,
    parse_section,
    parse_value,
    read_preset,
    read_yaml,
)
from graphslice.errors import InputError, nearest, shown
from graphslice.package_data import is_packaged_model

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
    "check_keys",
    "join_names",
    "merge_sections",
    "parse_value",
    "read_preset",
    "read_yaml",
    "split_columns",
    "split_words",
]

#: What a prediction may be read from: rows of C channels that each is.
READOUTS = {"token": 1, "mean": 1, "sum": 1, "max": 1, "quantiles": 5}

#: What training can make small; auto is mae of numbers, bce of binary targets and cross-entropy of several classes.
LOSSES = ("auto", "mae", "mse", "huber", "gaussian", "bce", "cross-entropy")

#: In place of a run whose weights are taken: random ones.
FROM_SCRATCH = "none"

_CHOICES = {
    "init": ("graphormer", "balanced"),
    "norm": ("pre", "post"),
    "head": ("linear", "mlp"),
    "embedding_layout": ("ogb", "graphormer"),
    "level": LEVELS,
}


@dataclass
class ModelConfig:
    """What a GraphTransformer is built from.

    Attributes:
        mixer: what stands where attention stood: see ``graphslice.nn.mixers``.
        mixer_settings: settings of the mixer's own, such as {"groups": 2} of csp.
        layers: number of blocks.
        dim: channels C of every atom.
        heads: heads H of the bias and of the attention map.
        ffn_dim: channels inside the feed-forward network.
        tasks: how many numbers it puts out: one a target, but of several classes one a class.
        readout: what the prediction is read from: token, or the mean, sum, max or quantiles (minimum,
            quartiles and maximum) of the atoms, channel by channel, or several joined with "+", such as
            token+mean.
        init: standard deviations at the start: graphormer (linear maps 0.02 / sqrt(layers), embeddings
            0.02) or balanced, which learns sooner: every row of an embedding of atoms as large as a
            layer norm's output, linear maps 1 / sqrt(inputs), and those that end a branch 1 / sqrt(2
            layers) of it, so that all branches together add as much as there was.
        distance_start: let head h begin by reading the pairs that are h mod 6 bonds apart.
        norm: pre (a layer norm before every mixer and feed-forward network, and one after the last) or post
            (one after each sum, as the later Graphormer).
        embedding_norm: a layer norm after the atom encoder.
        bond_messages: beside every mixer, let each atom hear what those that are bonded to it say over the bonds
            (GINE): a sum that knows the bonds and their rings, where the map averages over distances and paths.
        head: linear, or mlp (linear, GELU, layer norm, linear), which takes the place of the norm after the last layer.
        dropout: after every mixer and feed-forward network.
        input_dropout: after the atom encoder.
        attention_dropout: on the attention map.
        activation_dropout: after the GELU of every feed-forward network.
        embedding_layout: of the embedding tables: ogb (as many rows as values) or graphormer (512
            rows a feature, as in the original checkpoints).
        num_degrees: rows of each degree table; larger degrees share the last.
        num_distances: rows of the spatial table; larger distances share the last but one.
        num_path_positions: matrices of the edge encoding, of which max_path are used.
        max_path: bonds of a shortest path that the edge encoding reads.
        descriptors: numbers of a molecule that are read beside its graph; as many as data.features has.
        level: what the predictions are of, as data.level says: molecule, atom or bond.
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
            if readout not in READOUTS:
                raise InputError(
                    f"unknown readout {shown(readout)}{nearest(readout, READOUTS)}: choose from {', '.join(READOUTS)}, "
                    "or join several with '+'"
                )
        for name, choices in _CHOICES.items():
            if getattr(self, name) not in choices:
                raise InputError(f"model.{name} is {' or '.join(choices)}, not {shown(getattr(self, name))}")
        for name in ("layers", "dim", "heads", "ffn_dim", "tasks", "max_path"):
            if getattr(self, name) < 1:
                raise InputError(f"model.{name} must be at least 1, not {getattr(self, name)}")
        if self.descriptors < 0:
            raise InputError(f"model.descriptors must be at least 0, not {self.descriptors}")
        if self.dim % self.heads:
            raise InputError(f"model.heads ({self.heads}) must divide model.dim ({self.dim})")
        if self.max_path > self.num_path_positions:
            raise InputError(
                f"model.max_path ({self.max_path}) is more than model.num_path_positions ({self.num_path_positions})"
            )
        if self.num_distances < 8 or self.num_degrees < 2:
            raise InputError("model.num_distances must be at least 8 and model.num_degrees at least 2")
        for name in ("dropout", "input_dropout", "attention_dropout", "activation_dropout"):
            if not 0 <= getattr(self, name) < 1:
                raise InputError(f"model.{name} must be at least 0 and less than 1, not {getattr(self, name)}")

    @classmethod
    def preset(cls, name: str) -> ModelConfig:
        """The model of a preset, such as ``"pcqm4m-slice"``; see :data:`PRESETS`."""
        return cls(**read_preset(name).get("model", {}))


@dataclass
class TrainerConfig:
    """How a model is trained.

    Attributes:
        max_epochs: passes over the training molecules.
        max_steps: optimiser steps.
        max_minutes: minutes of training, validation included. The run ends, and its learning rate has come down, at
            the first of the three limits that are given; without any, after as many epochs as suit the number of
            molecules: 30 up to 10,000 of them, then fewer.
        batch_size: molecules of one optimiser step, over all devices together.
        gradient_clip: largest norm of the gradient; 0 leaves it alone.
        accelerator: auto (a CUDA GPU where there is one, else cpu), cpu, cuda or mps.
        devices: how many devices; auto takes one CPU process, or a GPU for every 32 molecules of a batch.
        precision: auto (bf16-mixed on GPUs that have it, 16-mixed on V100, T4 and RTX 20), 32, bf16-mixed or 16-mixed.
        compile: on (torch.compile, with CUDA graphs on a GPU), off, or auto (on a GPU, where the rest of the
            run, as long as its first steps foretell, earns the minutes back that it takes).
        workers: threads that prepare batches while the model works; auto (2 for a GPU, else none).
        patience: stop after this many epochs without a better validation MAE; never when not given.
        checkpoint_minutes: how often the last checkpoint is renewed within an epoch.
        loss: of the numbers mae, mse, huber, or gaussian, which learns the deviation of its errors too; bce of yes or
            no and cross-entropy of several classes go by themselves.
        metric: what chooses the best epoch, as mae, rmse, spearman, auroc, auprc, accuracy; mae of numbers, auroc of
            classes, the loss where there are both.
        target_weights: of targets in the loss, TARGET=2,OTHER=0.5; 1 when not given.
        class_weights: none, or balanced, which gives every class of a target the same share in the loss.
        baselines: on trains a random forest and gradient boosting beside the network, on Morgan counts and RDKit's
            descriptors, says which is best, and lets all answer together, with weights chosen on validation; off;
            auto: on where there are SMILES and up to 20,000 labels.
        ensemble: how many models are trained, whose mean is the prediction and whose deviation its spread.
        freeze: what does not learn: none, embeddings, or blocks:N (the embeddings and the first N blocks).
        seed: of the initial weights, the order of the molecules and the dropout.
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
    class_weights: str = "none"
    baselines: str = "auto"
    ensemble: int = 1
    freeze: str = "none"
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("max_epochs", "batch_size", "max_steps", "patience", "ensemble"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise InputError(f"trainer.{name} must be at least 1, not {value}")
        if not 0 <= self.seed < 2**32:  # as numpy and scikit-learn take them
            raise InputError(f"trainer.seed must be from 0 to {2**32 - 1}, not {self.seed}")
        if not self.gradient_clip >= 0:
            raise InputError(f"trainer.gradient_clip must be at least 0, not {self.gradient_clip}")
        for name in ("checkpoint_minutes", "max_minutes"):
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise InputError(f"trainer.{name} must be more than 0, not {value}")
        if not re.fullmatch(r"none|embeddings|blocks:\d+", self.freeze):
            raise InputError(f"trainer.freeze is none, embeddings or blocks:N, not {shown(self.freeze)}")
        if self.workers != "auto" and not self.workers.isdigit():
            raise InputError(f"trainer.workers is auto or a number, not {shown(self.workers)}")
        if self.metric is not None:
            self.metric = self.metric.strip().lower().replace(" ", "_").replace("-", "_")
        if self.loss not in LOSSES:
            raise InputError(f"trainer.loss is {', '.join(LOSSES[:-1])} or {LOSSES[-1]}, not {shown(self.loss)}")
        if self.baselines not in ("auto", "on", "off"):
            raise InputError(f"trainer.baselines is auto, on or off, not {shown(self.baselines)}")
        if self.class_weights not in ("none", "balanced"):
            raise InputError(f"trainer.class_weights is none or balanced, not {shown(self.class_weights)}")
        if self.compile not in ("auto", "on", "off"):
            raise InputError(f"trainer.compile is auto, on or off, not {shown(self.compile)}")
        if self.precision not in ("auto", "32", "bf16-mixed", "16-mixed"):
            raise InputError(f"trainer.precision is auto, 32, bf16-mixed or 16-mixed, not {shown(self.precision)}")

    @property
    def inference_device(self) -> str | None:
        """Where the trained model answers: the CPU if it was trained there on purpose; None: where models do."""
        return "cpu" if self.accelerator == "cpu" else None


@dataclass
class RunConfig:
    """Everything about a run.

    ``init_from`` is whose weights it starts from: a run folder, a checkpoint, or a model that comes with the package;
    ``"none"`` for random ones. None: the data decide, see :func:`~graphslice.training.fine_tuning.choose_init_from`.
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
                f"trainer.freeze {self.trainer.freeze} keeps weights as they are: without --init-from they are random"
            )

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> RunConfig:
        """From nested plain values, such as a YAML file holds.

        Raises:
            InputError: naming an unknown key, with the nearest known one, or a value of the wrong
                type.
        """
        values = migrate_config(values)
        check_keys(values, cls)
        kinds = typing.get_type_hints(cls)
        sections = {name: part for name, part in values.items() if dataclasses.is_dataclass(kinds[name])}
        found = {name: parse_section(kinds[name], name, part) for name, part in sections.items()}
        origin = values.get("init_from")
        if not isinstance(origin, str | None):
            raise InputError(f"init_from must be str or empty, not {shown(origin)}")
        return cls(**found, init_from=origin)

    @classmethod
    def preset(cls, name: str) -> RunConfig:
        """The run of a preset of :data:`PRESETS`."""
        return cls.from_dict(read_preset(name))

    def fine_tuned_from(self, origin: RunConfig, path: str | Path) -> RunConfig:
        """The configuration of a run that starts from another one's weights: that one's model, molecules and optimiser.

        Its learning rate warms up and decays over its own steps, to the same peak.

        Args:
            origin: configuration of the other.
            path: its run folder or checkpoint, or the name of a model that comes with the package.
        """
        optimizer = dataclasses.replace(origin.optimizer, warmup_steps=None, total_steps=None)
        where = str(path) if is_packaged_model(path) else str(Path(path).resolve())
        return dataclasses.replace(self, model=origin.model, graph=origin.graph, optimizer=optimizer, init_from=where)

    @property
    def origin(self) -> str | None:
        """Whose weights it starts from; None of random ones, or where the data are still to decide."""
        return None if self.init_from == FROM_SCRATCH else self.init_from

    @property
    def num_models(self) -> int:
        """The number of models that the run trains: the members of an ensemble, or one for each fold.

        Raises:
            InputError: if it asks for both.
        """
        number, repeats = self.data.folds_and_repeats
        folds = number * repeats if self.data.is_cross_validation else 0
        if folds and self.trainer.ensemble > 1:
            raise InputError("--folds trains a model for each fold, and these are an ensemble: leave out --ensemble")
        return folds or self.trainer.ensemble

    @property
    def collate_settings(self) -> dict[str, Any]:
        """What ``collate_rows`` has to know of a model."""
        return {
            "path_ties": self.graph.path_ties,
            "max_path": self.model.max_path,
            "descriptors": self.data.descriptors,
            "level": self.model.level,
            "bonds": self.model.bond_messages,
        }

    def to_dict(self) -> dict[str, Any]:
        values = dataclasses.asdict(self)
        if self.init_from is None:
            del values["init_from"]
        return values

    def to_yaml(self) -> str:
        return yaml.safe_dump(self.to_dict(), sort_keys=False)
