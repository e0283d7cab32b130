"""Model: a trained model as a notebook uses it."""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from graphslice.calibration import Calibration
from graphslice.checkpoint import (
    Checkpoint,
    read_checkpoint,
    save_ensemble_calibration,
    write_run_directory,
)
from graphslice.checkpoint import save_checkpoint as write_checkpoint
from graphslice.config import DataConfig, join_names
from graphslice.data.frames import column_names, dataset_from_frame, is_frame
from graphslice.data.labelled_dataset import LabelledDataset
from graphslice.data.splits import SPLIT_METHODS, Splits
from graphslice.ensemble_check import read_calibration, read_checkpoints
from graphslice.errors import InputError, nearest
from graphslice.inference.embedding import compute_embeddings
from graphslice.inference.inputs import Columns
from graphslice.inference.predictor import Predictor
from graphslice.run_files import (
    CONFIG,
    CORPUS,
    ENSEMBLE_CALIBRATION,
    MEMBER,
    MOLECULES,
    contains_run,
    find_members,
    run_directory_of,
)
from graphslice.tasks import Task, output_slices

if TYPE_CHECKING:
    from pandas import DataFrame

    from graphslice.api.picture import Picture
    from graphslice.inference.predictor import Molecules


class Model(Predictor):
    """A trained model, or several that answer together, as :func:`graphslice.load` and :func:`graphslice.fit` give it.

    Can be pickled and copied: it is then what its checkpoints hold, and is read back without running code of its own.

    Args:
        checkpoints: of the model, or of the models.
        device: where it computes; a CUDA GPU where there is one, else the CPU.
        folder: the run folder, if there is one.
        keeps: anything that lives as long as the model, such as a temporary folder.
        calibration: what several models' answers are worth together.

    Attributes:
        tasks: what it predicts.
        config: how it was made.
        folder: the run folder, or None.
    """

    def __init__(
        self,
        checkpoints: Checkpoint | Sequence[Checkpoint],
        device: str | torch.device | None = None,
        folder: str | Path | None = None,
        keep_alive: object = None,
        calibration: Calibration | None = None,
    ) -> None:
        folder = None if folder is None else Path(folder)
        super().__init__(checkpoints, device, calibration=calibration, folder=folder)
        self._keeps = keep_alive

    # --- what it is -------------------------------------------------------------------------------

    def __repr__(self) -> str:
        targets = ", ".join(f"{task.name}: {_kind(task)}" for task in self.tasks[:4])
        more = f" and {len(self.tasks) - 4} more" if len(self.tasks) > 4 else ""
        said = self.describe()
        count = f"{said['models']} x " if said["models"] > 1 else ""
        trees = ", with trees beside" if said["trees"] else ""
        network = f"{count}{said['mixer']}, {said['parameters']:,} parameters{trees}"
        return f"Model({targets}{more}; {network}; {self.device})"

    def describe(self) -> dict[str, Any]:
        """What the model is, as plain values.

        Returns:
            ``level``, what it answers for (``molecule``, ``atom``, ``bond``);
            ``targets``, what is asked of each by its name (``regression``, ``binary``, ``multiclass``); ``classes`` of
            those that have some; ``models``, how many answer together; ``mixer``, ``layers``, ``dim`` and
            ``parameters`` of each; ``trees``, whether a forest and boosting answer beside; ``features``, what is read
            beside the graph; ``device``; ``folder``, None where there is none.
        """
        config = self.config
        return {
            "level": self.level,
            "targets": {task.name: task.kind for task in self.tasks},
            "classes": {task.name: list(task.classes) for task in self.tasks if task.classes},
            "models": len(self.models),
            "mixer": config.model.mixer,
            "layers": config.model.layers,
            "dim": config.model.dim,
            "parameters": self.models[0].num_parameters,
            "trees": any(stacking is not None for stacking in self.stackings),
            "features": list(config.data.descriptors),
            "device": str(self.device),
            "folder": None if self.folder is None else str(self.folder),
        }

    @property
    def metrics(self) -> dict[str, Any]:
        """The scores of each split, as in ``metrics.json`` of the run folder; empty where there is none."""
        path = None if self.folder is None else self.folder / "metrics.json"
        return json.loads(path.read_text()) if path is not None and path.is_file() else {}

    # --- what it makes of molecules ---------------------------------------------------------------

    def embed(self, molecules: Molecules, *, columns: Columns | None = None) -> np.ndarray:
        """What the network's last layer reads of each molecule: a description of it in numbers, for other models.

        It depends on the molecule alone. The trees beside a network have no part in it.

        Args:
            molecules, columns: as of :meth:`predict`.

        Returns:
            ``float32 [R, C]``: the readouts after the last norm, then the encoded descriptors where the model reads
            some. A row of nan for what is no molecule. Of several models theirs, side by side.

        Raises:
            InputError: as :meth:`predict`.
        """
        return compute_embeddings(self, self.featurize_molecules(molecules, columns))

    def attribute(
        self, smiles: str, target: str | None = None, *, orders: int = 256, columns: Columns | None = None
    ) -> np.ndarray:
        """What each atom adds to the prediction: see :func:`graphslice.analysis.attribute`.

        Of classes the logit is explained, of a target with a logarithm that, and of a model with trees beside it the
        network alone. Of several models it is the mean.

        Args:
            smiles: of one molecule.
            target: one of ``targets``; need not be given where there is one.
            orders: how many orders of the atoms are drawn where there are too many atoms to try all sets of them.
            columns: of a model that reads columns of a table, as of :meth:`predict`.

        Returns:
            ``float64 [N]``, of the atoms in the order of the SMILES; ``[N, K]`` of one of K > 2 classes.

        Raises:
            InputError: for what is no molecule, a target that is not known, or columns that are missing.
        """
        from graphslice.analysis.attribution import attribute

        if target is None and len(self.tasks) > 1:
            raise InputError(f"which target shall be explained? Give one of {', '.join(self.targets)}")
        target = self.targets[0] if target is None else target
        if target not in self.targets:
            known = ", ".join(self.targets)
            raise InputError(f"the model has no target {target!r}{nearest(target, self.targets)}: it has {known}")
        if not isinstance(smiles, str):
            raise InputError(
                f"attribute explains one SMILES, not {type(smiles).__name__}: analysis.attribute takes many"
            )
        found = attribute(self, smiles, orders=orders, columns=columns).values
        found = found[:, output_slices(self.tasks)[self.targets.index(target)]]
        return found[:, 0] if found.shape[1] == 1 else found

    def draw(
        self, smiles: str, target: str | None = None, *, orders: int = 256, columns: Columns | None = None
    ) -> Picture:
        """The contributions of :meth:`attribute` drawn on the molecule, as ``graphslice inspect`` draws them.

        Args:
            smiles, orders, columns: as of :meth:`attribute`.
            target: one of ``targets``, or a part of its name; the first when not given.

        Returns:
            A picture that shows itself in a notebook; ``save("atoms.svg")`` or ``.png`` writes it.

        Raises:
            InputError: as :meth:`attribute`.
        """
        from graphslice.api.picture import draw_attributions

        return draw_attributions(self, smiles, target, orders, columns)

    # --- how good it is ---------------------------------------------------------------------------

    def evaluate(
        self,
        data: DataFrame | str | Path | None = None,
        targets: str | Sequence[str] | None = None,
        *,
        split: str | None = None,
        smiles: str | None = None,
    ) -> dict[str, Any]:
        """Scores on labelled molecules, as ``graphslice evaluate``.

        Args:
            data: a data frame or a table; what the model was trained on when not given.
            targets: the columns of the labels: some of the model's targets, or as many others, in its order; those of
                its names when not given.
            split: train, valid, test or all; the test where the data is what the model was trained on or names a
                split, else all.
            smiles: the column of the SMILES; found by its name.

        Returns:
            Every metric by its name, the mean over the targets that have it; ``molecules``, how many there are;
            ``targets``, the same of each; ``unanswered``, how many have no prediction and are left out; ``learned``,
            how many have the fingerprint of one of the training molecules that the model keeps, 10,000 at most.

        Raises:
            InputError: if the data cannot be had, or has not these targets.
        """
        from graphslice.evaluation.evaluate import evaluate

        asked = {"targets": _names(targets), "smiles_column": smiles}
        given = {name: value for name, value in asked.items() if value is not None}
        dataset, splits = self._load_dataset(data, given, split)
        if split is None:
            split = "all" if splits is None else "valid" if dataset.is_pcqm4m else "test"
        return evaluate(self, dataset, split, splits)

    def _load_dataset(
        self, data: Any, given: dict[str, Any], split: str | None
    ) -> tuple[LabelledDataset, Splits | None]:
        from graphslice.evaluation.evaluate import (
            align_targets,
            available_targets,
            evaluation_splits,
            load_evaluation_data,
            select_tasks,
        )

        if not is_frame(data):
            if data is not None and not isinstance(data, str | Path):
                raise InputError(f"evaluate takes a data frame or the path of a table, not {type(data).__name__}")
            if self.folder is None and data is None:
                raise InputError("the model has no run folder to say what it was trained on: give labelled molecules")
            given = given if data is None else {**given, "dataset": str(data)}
            return load_evaluation_data(self, self.folder, given, split)
        trained, columns = self.config.data, column_names(data)
        targets = available_targets(self, given.get("targets"), columns)
        known = DataConfig(targets=targets, features=trained.features, level=self.level)
        if trained.smiles_column in columns:
            known = replace(known, smiles_column=trained.smiles_column)
        if split == "all":
            known = replace(known, split="random")  # whatever a column of that name says
        known = replace(known, **{**given, "targets": targets})
        tasks = select_tasks(self, targets)
        dataset = dataset_from_frame(data, known, tasks)
        if trained.split in (*SPLIT_METHODS, *columns):
            with suppress(InputError):  # of another frame, whose column says something else
                again = dataset_from_frame(data, replace(known, split=trained.split), tasks)
                dataset = again if again.fingerprint() == trained.fingerprint else dataset
        return align_targets(self, dataset, given.get("targets")), evaluation_splits(self, self.folder, dataset)

    # --- how it is kept ---------------------------------------------------------------------------

    def save(self, path: str | Path) -> None:
        """Write a run folder that :func:`graphslice.load` and the command line read; one that is there is replaced.

        Beside the model, or the models, it has the scores and the splits of the run, and the data frame that it was
        trained on, but not what training goes on from.

        Raises:
            InputError: if it cannot be written.
        """
        from graphslice.training.run_directory import foreign_file, remove_run

        path = Path(path)
        if path.exists() and not path.is_dir():
            raise InputError(f"cannot write the run folder {path}: it is a file")
        try:
            path.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryDirectory(dir=path, prefix=".") as new:
                self._write(Path(new), path.resolve())
                for folder in (path / written.name for written in find_members(new)):
                    if folder.exists() and not contains_run(folder):
                        raise InputError(f"{folder} is there, and holds no run: choose another folder")
                if name := foreign_file(path, (written.name for written in Path(new).iterdir())):
                    raise InputError(f"{path} holds no run, but a {name}: choose another folder")
                remove_run(path)
                for written in list(Path(new).iterdir()):
                    shutil.move(written, path / written.name)
        except OSError as error:
            raise InputError(f"cannot write the run folder {path}: {error.strerror or error}") from None

    def _write(self, new: Path, home: Path) -> None:
        """Write a run folder to ``new``, which shall be moved to ``home``."""
        from graphslice.training.run_directory import RUN_FILES

        parts = self.checkpoints
        names = [""] if len(parts) == 1 else [f"{MEMBER}{number}" for number in range(1, len(parts) + 1)]
        has_table = self.folder is not None and (self.folder / MOLECULES).is_file()
        for name, part in zip(names, parts, strict=True):
            data, trainer = part.config.data, part.config.trainer
            if has_table and Path(data.dataset).name == MOLECULES:  # it goes along
                data = replace(data, dataset=str(home / MOLECULES))
            config = replace(part.config, data=data)
            write_run_directory(replace(part, config=config), new / name)
            if name == names[0] != "":
                together = replace(trainer, ensemble=1 if self.is_cross_validation else len(parts))
                fold = None if self.is_cross_validation else data.fold
                whole = replace(config, data=replace(data, carve=0, fold=fold), trainer=together)
                (new / CONFIG).write_text(whole.to_yaml())
        if self.calibration is not None and len(parts) > 1:
            save_ensemble_calibration(self.calibration, new)
        if self.folder is not None:
            for kept in (Path(part, file) for part in {"", *names} for file in RUN_FILES):
                if kept.name != CORPUS and (self.folder / kept).is_file():  # which is large, and no part of a model
                    shutil.copyfile(self.folder / kept, new / kept)

    def __reduce__(self) -> tuple:
        parts = {}
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            for number, checkpoint in enumerate(self.checkpoints):
                write_checkpoint(checkpoint, folder / f"{number}")
            if self.calibration is not None and len(self.models) > 1:
                save_ensemble_calibration(self.calibration, folder)
            parts = {path.name: path.read_bytes() for path in sorted(folder.iterdir())}
        return _read_back, (type(self), parts, self.device.type)


def _read_back(kind: type[Model], parts: dict[str, bytes], device: str) -> Model:
    """A model of the bytes of its files, on such a device as it was on, where there is one."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for part, contents in parts.items():
            (folder / part).write_bytes(contents)
        checkpoints = [
            read_checkpoint(folder / f"{number}") for number in range(len(parts.keys() - {ENSEMBLE_CALIBRATION}))
        ]
        calibration = read_calibration(folder, checkpoints)
    return kind(checkpoints, "cpu" if device == "cpu" else None, calibration=calibration)


def load(path: str | Path, device: str | torch.device | None = None, *, keep_alive: object = None) -> Model:
    """Load the model of a run folder, of a checkpoint file or of a name that comes with the package, or the models of a
    folder of several.

    Reads weights only, never runs code.

    Args:
        path: of the run folder or of the checkpoint.
        device: where it computes; a CUDA GPU where there is one, else the CPU.
        keeps: anything that lives as long as the model.

    Raises:
        InputError: if there is no model there, or it cannot be read.
    """
    folder, checkpoints = run_directory_of(path), read_checkpoints(path)
    known = folder if folder is not None and (folder / CONFIG).is_file() else None
    return Model(checkpoints, device, known, keep_alive, read_calibration(path, checkpoints))


def _kind(task: Task) -> str:
    classes = f" ({', '.join(task.classes[:4])}{', ...' * (len(task.classes) > 4)})" if task.classes else ""
    return task.kind + classes


def _names(targets: str | Sequence[str] | None) -> str | None:
    """Names of columns as a configuration has them."""
    return targets if targets is None or isinstance(targets, str) else join_names([str(name) for name in targets])
