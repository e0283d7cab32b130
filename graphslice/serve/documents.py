"""Results of the tools of ``graphslice mcp``: objects whose keys are described by the texts under them.

The schemas of the tools and the tables of ``docs/programs.md`` are made from these classes. ``predict``, ``evaluate``
and ``train`` print the same documents with ``--json``.
"""

from __future__ import annotations

from typing import Annotated, Any, NotRequired

from pydantic import WithJsonSchema
from typing_extensions import TypedDict  # pydantic reads that of typing from Python 3.12 on

#: A SMILES of a request; what is no text has an error in its row.
Text = Annotated[Any, WithJsonSchema({"type": "string"})]


class TargetScores(TypedDict):
    """Scores of a target: further keys are its metrics, `coverage_90`, `width_90` or `classes_90` of intervals and the
    number of their `calibration_molecules`, each counted for every class of its atoms, and of one that is trained on
    its logarithm the typical error and the width as factors, `median_factor` and `factor_90`."""

    kind: str
    """task type: regression, binary or multiclass"""
    molecules: NotRequired[int]
    """number of labels; at atom or bond level `atoms` or `bonds`"""
    counts: NotRequired[dict[str, int]]
    """number of labels of each class"""


class Run(TypedDict):
    """A trained run."""

    folder: str
    """run directory, which every command takes as a model"""
    report: str | None
    """path of report.html; null if none was written"""
    metrics: dict[str, Any]
    """contents of metrics.json, one of the files of a run"""
    training: dict[str, Any]
    """contents of training.json: parameters, steps, seconds, device and so on"""


class Predictions(TypedDict):
    """Predictions."""

    rows: NotRequired[list[dict[str, Any]]]
    """the rows of the input, in its order: its columns, those in `columns`, and `error`; absent if a file is written"""
    columns: list[str]
    """the columns that predictions add to the input"""
    out: NotRequired[str]
    """the file that was written, in place of `rows`"""
    total: int
    """number of rows"""
    failed: int
    """number of rows with an error"""
    notes: list[str]
    """remarks, such as cells of feature columns that are no numbers"""


class Evaluation(TypedDict):
    """Scores of a dataset: further keys are metrics, each as its mean over the targets that have it."""

    dataset: str
    """name of the dataset"""
    split: str
    """train, valid, test or all"""
    molecules: int
    """number of labelled molecules that were predicted"""
    targets: dict[str, TargetScores]
    """scores of each target"""
    learned: NotRequired[int]
    """molecules with the fingerprint of a training molecule; only with a calibration"""
    unanswered: int
    """number of labelled molecules without a prediction, which are not evaluated"""
    first_unanswered: NotRequired[dict[str, Any]]
    """`row` of the first of them, from 1, and `error`, the reason"""
    unusable: int
    """number of rows of the dataset that cannot be used"""
    notes: list[str]
    """remarks on the dataset"""


class Contributions(TypedDict):
    """Explanation of a target."""

    explained: str
    """the output: a target, its logarithm, or the logit of a class"""
    contributions: list[float | None]
    """Shapley value of each atom; with `baseline` they sum to `prediction`"""
    standard_errors: list[float | None]
    """standard error of each value; 0 if it is exact"""
    prediction: float | None
    """prediction of the network, on the scale of the explained output"""
    baseline: float | None
    """prediction for blank atoms"""
    network_weight: float | None
    """weight of the network in the prediction; base models are not explained"""


class ExplainedMolecule(TypedDict):
    """An explained molecule."""

    number: int
    """position in the input, from 1"""
    smiles: str
    """SMILES of the molecule"""
    elements: list[str]
    """element of each atom, in the order of the SMILES"""
    targets: dict[str, Contributions]
    """explanation of each target"""


class Explanations(TypedDict):
    """Explanations of molecules."""

    molecules: list[ExplainedMolecule]
    """the explained molecules"""
    left_out: list[dict[str, Any]]
    """the molecules that could not be explained: `number`, `smiles`, and `error`, the reason"""
    more: bool
    """whether there are further molecules, which were not explained"""


class Description(TypedDict):
    """Description of a model."""

    level: str
    """molecule, atom or bond"""
    targets: dict[str, str]
    """task type of each target: regression, binary or multiclass"""
    classes: dict[str, list[str]]
    """classes of each classification target"""
    units: dict[str, str]
    """units of the targets, where they are known"""
    descriptions: dict[str, str]
    """descriptions of targets that have one"""
    models: int
    """number of members of an ensemble; 1 for a single model"""
    mixer: str
    """mixer of the network"""
    layers: int
    """number of layers"""
    dim: int
    """number of channels"""
    parameters: int
    """number of parameters of each network"""
    trees: bool
    """whether base models are stacked with the network"""
    features: list[str]
    """descriptors, and columns of a table, that the model reads in addition to the graph"""
    device: str
    """device of the predictions"""
    folder: str | None
    """run directory; null for a packaged model"""
    source: str | None
    """hf://user/name@commit of a model of the Hub"""
    calibrated: bool
    """whether it gives prediction intervals"""
    metrics: dict[str, Any]
    """contents of metrics.json, one of the files of a run; empty without the file"""
