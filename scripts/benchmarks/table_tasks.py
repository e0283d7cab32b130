"""Tasks of ``benchmark.py tables``: files, rows, splits and scores."""

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
from rdkit import Chem, rdBase
from rdkit.Chem.Scaffolds import MurckoScaffold
from scipy.stats import spearmanr
from sklearn.metrics import average_precision_score, roc_auc_score

from split_check import check_split

_VALID_SHARE = _TEST_SHARE = 0.1
# Of the training rows of TDC's tables, as its own function takes for validation.
_VALIDATION_SHARE = 0.125


@dataclass(frozen=True)
class Task:
    """A table of molecules and what is asked of it."""

    name: str
    file: str  # below the folder of the data
    metrics: tuple[str, ...]  # names in METRICS; the first is the task's own
    fixed_test: bool  # the column ``split`` has the rows of the test set

    @property
    def classes(self) -> bool:
        """Whether the labels are 0 and 1."""
        return self.metrics[0] in ("AUROC", "AUPRC")


def _tdc(metric: str, names: str) -> dict[str, Task]:
    return {name: Task(name, f"tdc_admet/{name}.csv", (metric,), True) for name in names.split()}


def _molecule_net(metrics: tuple[str, ...], files: str) -> dict[str, Task]:
    return {file.split(".")[0]: Task(file.split(".")[0], file, metrics, False) for file in files.split()}


#: Tasks of TDC's ADMET group, evaluated as on its leaderboard (which has no AUROC for bioavailability_ma).
TDC = (
    _tdc("MAE", "caco2_wang ppbr_az lipophilicity_astrazeneca solubility_aqsoldb ld50_zhu")
    | _tdc("Spearman", "half_life_obach vdss_lombardo clearance_hepatocyte_az clearance_microsome_az")
    | _tdc("AUROC", "hia_hou pgp_broccatelli bioavailability_ma bbb_martins cyp3a4_substrate_carbonmangels")
    | _tdc("AUROC", "herg ames dili")
    | _tdc(
        "AUPRC", "cyp2c9_substrate_carbonmangels cyp2d6_substrate_carbonmangels cyp2c9_veith cyp2d6_veith cyp3a4_veith"
    )
)
MOLECULE_NET = _molecule_net(("RMSE", "MAE"), "esol.csv freesolv.csv lipo.csv") | _molecule_net(
    ("AUROC",), "bbbp.csv bace.csv clintox.csv tox21.csv sider.csv hiv.csv.gz"
)
TASKS = TDC | MOLECULE_NET


@dataclass(frozen=True)
class Table:
    """The rows of a task for one seed."""

    task: Task
    smiles: np.ndarray  # R texts that RDKit can read
    labels: np.ndarray  # float64 [R, T], nan where there is none
    split: np.ndarray  # [R], train, valid or test

    @property
    def targets(self) -> list[str]:
        """Plain names: those of some tables hold commas and spaces."""
        return ["y"] if self.labels.shape[1] == 1 else [f"y{i}" for i in range(self.labels.shape[1])]

    def frame(self, *splits: str, labels: bool = True) -> pd.DataFrame:
        """The rows of some splits as every method gets them: smiles, targets, split; or the SMILES alone."""
        rows = np.isin(self.split, splits)
        frame = pd.DataFrame({"smiles": self.smiles[rows]})
        if labels:
            for name, column in zip(self.targets, self.labels[rows].T, strict=True):
                frame[name] = pd.array(column).astype("Int64") if self.task.classes else column
            frame["split"] = self.split[rows]
        return frame


def read_table(task: Task, data: Path, seed: int) -> Table:
    """The rows of a task with a split by a seed, without those that RDKit cannot read.

    A line on stderr counts the molecules and families that are in several parts of the split.
    """
    frame = pd.read_csv(data / task.file)
    smiles_column = "mol" if "mol" in frame else "smiles"
    with rdBase.BlockLogs():
        frame = frame[[Chem.MolFromSmiles(text) is not None for text in frame[smiles_column]]]
    smiles = frame[smiles_column].to_numpy(dtype=object)
    labels = frame.drop(columns=[smiles_column, "split"], errors="ignore").to_numpy(dtype=np.float64)
    if task.fixed_test:
        split = split_off_validation(frame["split"].to_numpy(dtype=object), smiles, seed)
    else:
        split = balanced_scaffold_split(smiles, seed)
    check_split(smiles.tolist(), split.tolist(), f"{task.name}, seed {seed}")
    return Table(task, smiles, labels, split)


def split_off_validation(split: np.ndarray, smiles: np.ndarray, seed: int) -> np.ndarray:
    """An eighth of the training rows becomes ``valid``, with no scaffold in both, as TDC's leaderboard has it.

    Its ``get_train_valid_split`` deals scaffolds in random order, each to training if it has room.
    """
    train = np.flatnonzero(split == "train")
    groups = [train[rows] for rows in _by_scaffold(smiles[train])]
    room = int((1 - _VALIDATION_SHARE) * len(train))
    split = split.copy()
    for i in np.random.default_rng(seed).permutation(len(groups)):
        if len(groups[i]) > room:
            split[groups[i]] = "valid"
        else:
            room -= len(groups[i])
    return split


def balanced_scaffold_split(smiles: Sequence[str], seed: int) -> np.ndarray:
    """80 / 10 / 10 percent with no Bemis-Murcko scaffold in two splits, other groups for another seed.

    As chemprop's and DeepChem's balanced split: groups larger than half a validation or test split train, the
    others go to training, validation or test in random order, each to the first with room. All without a ring
    are one group.
    """
    sizes = {"valid": int(_VALID_SHARE * len(smiles)), "test": int(_TEST_SHARE * len(smiles))}
    sizes["train"] = len(smiles) - sum(sizes.values())
    random = np.random.default_rng(seed)
    members = _by_scaffold(smiles)
    order = [members[i] for i in random.permutation(len(members))]
    half = min(sizes["valid"], sizes["test"]) / 2
    split = np.full(len(smiles), "test", dtype=object)
    taken = {"train": 0, "valid": 0}
    for group in sorted(order, key=lambda group: len(group) <= half):  # stable: the large ones first
        fitting = next((name for name in taken if taken[name] + len(group) <= sizes[name]), None)
        if fitting:
            split[group] = fitting
            taken[fitting] += len(group)
    return split


def _by_scaffold(smiles: Sequence[str]) -> list[list[int]]:
    """Return the rows of the molecules of each Bemis-Murcko scaffold, without stereochemistry."""
    groups: dict[str, list[int]] = defaultdict(list)
    with rdBase.BlockLogs():
        for row, text in enumerate(smiles):
            scaffold = MurckoScaffold.MurckoScaffoldSmiles(mol=Chem.MolFromSmiles(text), includeChirality=False)
            groups[scaffold].append(row)
    return list(groups.values())


def _ranked(score: Callable[[np.ndarray, np.ndarray], float]) -> Callable[[np.ndarray, np.ndarray], float]:
    """Make a classification score return nan if the labels have only one class."""
    return lambda true, predicted: score(true, predicted) if len(np.unique(true)) == 2 else np.nan


#: For each metric its function of ``float64 [R]`` labels and predictions of one target, and whether higher is better.
METRICS: dict[str, tuple[Callable[[np.ndarray, np.ndarray], float], bool]] = {
    "MAE": (lambda true, predicted: np.abs(true - predicted).mean(), False),
    "RMSE": (lambda true, predicted: np.sqrt(((true - predicted) ** 2).mean()), False),
    "Spearman": (lambda true, predicted: spearmanr(true, predicted).statistic, True),
    "AUROC": (_ranked(roc_auc_score), True),
    "AUPRC": (_ranked(average_precision_score), True),
}


def score(metric: str, labels: np.ndarray, predictions: np.ndarray) -> float:
    """Mean of a metric over the targets of ``float64 [R, T]``, without those whose labels have a single class."""
    function, _ = METRICS[metric]
    scores = []
    for true, predicted in zip(labels.T, predictions.T, strict=True):
        known = ~np.isnan(true)
        scores.append(function(true[known], predicted[known]) if known.any() else np.nan)
    return float(np.nanmean(scores)) if not np.isnan(scores).all() else float("nan")
