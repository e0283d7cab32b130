"""Model: the notebook interface to a trained model, :func:`load`, and pictures that notebooks display."""

from __future__ import annotations

import json
import shutil
import tempfile
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from graphslice.api.arguments import as_dataset, name_setting
from graphslice.calibration import Calibration
from graphslice.errors import InputError, check_suffix, file_errors
from graphslice.inference.files import compute_embeddings
from graphslice.inference.inputs import Columns
from graphslice.inference.predictor import Predictor, metrics_text
from graphslice.runs.checkpoint import Checkpoint, save_ensemble_calibration, write_run_directory
from graphslice.runs.ensemble import read_calibration, read_checkpoints
from graphslice.runs.run_files import (
    CONFIG,
    CORPUS,
    MEMBER,
    METRICS,
    MOLECULES,
    RUN_FILES,
    check_folder,
    remove_run,
    run_directory_of,
    unfinished_note,
    write_start,
)
from graphslice.system import compile_note
from graphslice.system.console import interrupts_deferred
from graphslice.system.files import locked
from graphslice.system.hub import pinned_name
from graphslice.tasks import Task, output_slices

if TYPE_CHECKING:
    import torch
    from pandas import DataFrame
    from torch_geometric.data import Data

    from graphslice.explain.attribution import Explanation
    from graphslice.inference.predictor import Molecules


class Model(Predictor):
    """A trained model or an ensemble, as returned by :func:`graphslice.fit` and :func:`graphslice.load`.

    Its arguments and attributes are those of :class:`~graphslice.inference.Predictor`. A model can be pickled and
    copied, with its metrics but without its run directory, which lists the training molecules.
    """

    def __repr__(self) -> str:
        targets = ", ".join(f"{task.name}: {_kind(task)}" for task in self.tasks[:4])
        more = f" and {len(self.tasks) - 4} more" if len(self.tasks) > 4 else ""
        summary = self.describe()
        count = f"{summary['models']} x " if summary["models"] > 1 else ""
        trees = ", with base models" if summary["trees"] else ""
        network = f"{count}{summary['mixer']}, {summary['parameters']:,} parameters{trees}"
        return f"Model({targets}{more}; {network}; {self._device})"

    def describe(self) -> dict[str, Any]:
        """Describe the model with plain Python values.

        Returns:
            A dictionary with the keys that docs/programs.md lists under *Description*, all but ``metrics``: targets,
            classes and units, the architecture, descriptors, device, run directory and source.
        """
        config = self.config
        return {
            "level": self.level,
            "targets": {task.name: task.kind for task in self.tasks},
            "classes": {task.name: list(task.classes) for task in self.tasks if task.classes},
            "units": {task.name: task.unit for task in self.tasks if task.unit},
            "descriptions": {task.name: task.description for task in self.tasks if task.description},
            "calibrated": self.calibration is not None,
            "models": self.num_models,
            "mixer": config.model.mixer,
            "layers": config.model.layers,
            "dim": config.model.dim,
            "parameters": self.networks.num_parameters,
            "trees": any(stacking is not None for stacking in self.stackings),
            "features": list(config.data.descriptors),
            "device": self._device,
            "folder": None if self.folder is None else str(self.folder),
            "source": pinned_name(self.folder),
        }

    @property
    def metrics(self) -> dict[str, Any]:
        """Metrics of every split, as in ``metrics.json`` of the run directory; empty if there is no such file."""
        return json.loads(self._metrics) if self._metrics else {}

    def embed(self, molecules: Molecules, *, columns: Columns | None = None) -> np.ndarray:
        """Compute learned embeddings of molecules: the input of the output head.

        An embedding does not depend on the rest of the batch. Tree ensembles are not involved.

        Args:
            molecules, columns: as in :meth:`predict`.

        Returns:
            ``float32 [R, C]``: the graph readout after the last norm, followed by the encoded descriptors if the model
            reads any. Rows of invalid molecules are nan. The embeddings of ensemble members are concatenated.

        Raises:
            InputError: as in :meth:`predict`.
        """
        return compute_embeddings(self, self.featurize_molecules(molecules, columns))

    def attribute(
        self, smiles: str, target: str | None = None, *, orders: int = 256, columns: Columns | None = None
    ) -> np.ndarray:
        """Compute Shapley values of the atoms: see :func:`graphslice.explain.attribution.attribute`.

        Classification targets are explained on the logit, log-transformed targets on the logarithm. If base models
        are stacked with the network, only the network is explained, with a warning if its weight is small. Ensemble
        members are averaged.

        Args:
            smiles: SMILES of one molecule with N atoms.
            target: one of ``targets``, or a part of its name. Optional if the model has a single target.
            orders: number of sampled atom permutations, used if there are too many atoms for exact values.
            columns: feature columns of a model that reads some, as in :meth:`predict`.

        Returns:
            ``float64 [N]``: contribution of every atom, in the order of the SMILES, in the unit of the explained
            output; ``[N, K]`` for a target with K > 2 classes.

        Raises:
            InputError: if the SMILES is invalid, the target is unknown or feature columns are missing.
        """
        from graphslice.explain.attribution import attribute, match_target, weight_warning

        if target is None and len(self.tasks) > 1:
            raise InputError(f"the model has several targets: choose one with target=, of {', '.join(self.targets)}")
        index = match_target(target, self.targets)
        result, where = attribute(self, smiles, orders=orders, columns=columns), output_slices(self.tasks)[index]
        if note := weight_warning(float(result.network_weight[where].min())):
            warnings.warn(note, stacklevel=2)
        values = result.values[:, where]
        return values[:, 0] if values.shape[1] == 1 else values

    def draw(
        self, smiles: str, target: str | None = None, *, orders: int = 256, columns: Columns | None = None
    ) -> Picture:
        """Draw the atom contributions of :meth:`attribute` on the molecule, as ``graphslice inspect`` does.

        Args:
            smiles, orders, columns: as in :meth:`attribute`.
            target: one of ``targets``, or a part of its name. Default: the first target.

        Returns:
            A picture that is displayed in a notebook; ``save("atoms.svg")`` or ``save("atoms.png")`` writes it.

        Raises:
            InputError: as in :meth:`attribute`.
        """
        return explain_molecule(self, smiles, target, orders, columns)[1]

    def evaluate(
        self,
        data: DataFrame | Mapping[str, Sequence] | tuple | str | Path | Iterable[Data] | None = None,
        targets: str | Sequence[str] | None = None,
        *,
        split: str | None = None,
        smiles: str | None = None,
    ) -> dict[str, Any]:
        """Evaluate the model on labelled molecules, as ``graphslice evaluate`` does.

        Args:
            data: labelled molecules as for :func:`graphslice.fit`: a data frame, a dict of columns, the path of a
                dataset, a pair of SMILES and labels, or PyG graphs. Default: the dataset that the model was trained on.
            targets: label columns: some of the model's targets, or as many other columns as it has targets, in its
                order. Default: the columns named like the model's targets. For a pair, the names of its labels.
            split: ``train``, ``valid``, ``test`` or ``all``. Default: ``test`` without ``data``, or if it defines a
                split (``valid`` for PCQM4M, whose test labels are hidden), else ``all``.
            smiles: the SMILES column. Default: detected by name.

        Returns:
            A dictionary with every metric (mean over the targets that have it) and the keys

            - ``molecules``: number of labelled molecules that were predicted;
            - ``targets``: per target the task type, the number of labels, and the metrics; with a calibration also
              ``coverage_90`` and ``width_90`` (in the unit of the target) or ``classes_90``, and
              ``calibration_molecules``, their number; of a target that is trained on its logarithm
              ``median_factor`` and ``factor_90``, the typical error and the width as factors;
            - ``unanswered``: number of molecules without a prediction, which are left out;
            - ``learned``: number of molecules with the fingerprint of a training molecule (the model keeps at most
              10,000 of these); only with a calibration.

        Raises:
            InputError: if the dataset cannot be read, lacks the targets or the split, or has no labels there.
        """
        from graphslice.evaluation.evaluate import evaluate, evaluation_notes, load_evaluation_data

        fields = {"targets": name_setting(targets), "smiles_column": smiles}
        frame, named = as_dataset(data, fields["targets"], self.level)
        overrides = {name: value for name, value in (fields | named).items() if value is not None}
        if frame is None and "dataset" not in overrides:
            self.check_folder()
        dataset, splits = load_evaluation_data(self, self.folder, overrides, split, frame)
        if split is None:
            split = "all" if splits is None else "valid" if dataset.is_pcqm4m else "test"
        for note in evaluation_notes(dataset):
            warnings.warn(note, stacklevel=2)
        return evaluate(self, dataset, split, splits)

    def save(self, path: str | Path) -> None:
        """Write a run directory for :func:`graphslice.load` and the command line; an existing run is replaced.

        The directory holds the model (or the ensemble members), the metrics and splits of the run, and the data frame
        that it was trained on. It has no optimizer state, so training cannot be resumed from it.

        Args:
            path: the directory to write.

        Raises:
            InputError: if the directory cannot be written, or is neither empty nor that of a run.
        """
        path = Path(path).expanduser()
        check_folder(path, overwrite=True)
        with file_errors("write", path):
            path.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryDirectory(dir=path, prefix=".") as new:
                self._write(Path(new), path.resolve())
                with locked(path), interrupts_deferred():  # half of two models would be no model
                    remove_run(path)
                    for written in list(Path(new).iterdir()):
                        shutil.move(written, path / written.name)

    def _write(self, new: Path, home: Path) -> None:
        """Write a run directory to ``new``, which will be moved to ``home``."""
        checkpoints = self.checkpoints
        names = [""] if len(checkpoints) == 1 else [f"{MEMBER}{number}" for number in range(1, len(checkpoints) + 1)]
        has_table = self.folder is not None and (self.folder / MOLECULES).is_file()
        for name, checkpoint in zip(names, checkpoints, strict=True):
            data, trainer = checkpoint.config.data, checkpoint.config.trainer
            if has_table and Path(data.dataset).name == MOLECULES:  # copied below with the other files of the run
                data = replace(data, dataset=str(home / MOLECULES))
            config = replace(checkpoint.config, data=data)
            write_run_directory(replace(checkpoint, config=config), new / name)
            if name == names[0] != "":
                trainer = replace(trainer, ensemble=1 if self.is_cross_validation else len(checkpoints))
                fold = None if self.is_cross_validation else data.fold
                ensemble_config = replace(config, data=replace(data, carve=0, fold=fold), trainer=trainer)
                (new / CONFIG).write_text(ensemble_config.to_yaml())
                write_start(new)
        if self.calibration is not None and len(checkpoints) > 1:
            save_ensemble_calibration(self.calibration, new)
        if metrics_text(self.folder) != self._metrics:  # another run replaced that of the model
            (new / METRICS).write_text(self._metrics or "{}")
        elif self.folder is not None:
            for file in (Path(member, name) for member in {"", *names} for name in RUN_FILES):
                if file.name != CORPUS and (self.folder / file).is_file():  # the corpus is large and not needed
                    shutil.copyfile(self.folder / file, new / file)

    def __reduce__(self) -> tuple:
        return _restored, (type(self), self.checkpoints, self._device, self.calibration, self._metrics)


def _restored(
    kind: type[Model],
    checkpoints: list[Checkpoint],
    device: str,
    calibration: Calibration | None,
    metrics: str | None,
) -> Model:
    """Restore a pickled model, on the default device unless it was on the CPU."""
    model = kind(checkpoints, "cpu" if device == "cpu" else None, calibration=calibration)
    model._metrics = metrics
    return model


def load(path: str | Path, device: str | torch.device | None = None) -> Model:
    """Load a trained model.

    Only weights are read; no code of the file is run.

    Args:
        path: a run directory (of one model, an ensemble or a cross-validation), a checkpoint file, or the name of a
            model that comes with the package, such as ``"gap"``, or one on the Hugging Face Hub:
            ``hf://user/name`` or ``hf://user/name@revision``, with ``graphslice[hub]``.
        device: torch device for inference. Default: a CUDA GPU if available, else the CPU.

    Returns:
        The model; an ensemble is one :class:`Model`.

    Raises:
        InputError: if there is no model at this path, it cannot be read, or this machine has no such device.
    """
    compile_note.announce_compilation()
    folder, checkpoints = run_directory_of(path), read_checkpoints(path)
    run_directory = folder if folder is not None and (folder / CONFIG).is_file() else None
    if note := unfinished_note(folder):
        warnings.warn(note, stacklevel=2)
    return Model(checkpoints, device, calibration=read_calibration(path, checkpoints), folder=run_directory)


def _kind(task: Task) -> str:
    classes = f" ({', '.join(task.classes[:4])}{', ...' * (len(task.classes) > 4)})" if task.classes else ""
    return task.kind + classes


@dataclass(frozen=True)
class Picture:
    """A picture as an SVG document and as the bytes of a PNG file, displayed by notebooks."""

    svg: str = field(repr=False)
    png: bytes = field(repr=False)

    def _repr_svg_(self) -> str:
        return self.svg

    def save(self, path: str | Path) -> None:
        """Write the picture to a file whose name ends in ``.svg`` or ``.png``."""
        path = Path(path)
        check_suffix(path, (".svg", ".png"))
        with file_errors("write", path):
            path.write_bytes(self.svg.encode() if path.suffix == ".svg" else self.png)


def explain_molecule(
    model: Predictor, smiles: str, target: str | None, orders: int, columns: Columns | None
) -> tuple[Explanation, Picture]:
    """Return the atom contributions to one target, and their picture, as in :meth:`Model.draw`."""
    from graphslice.explain.attribution import explain_targets, match_target
    from graphslice.explain.pictures import draw_atoms

    index = match_target(target, model.targets)
    explanation = explain_targets(model, smiles, orders=orders, columns=columns)[index]
    return explanation, Picture(*draw_atoms(smiles, explanation))
