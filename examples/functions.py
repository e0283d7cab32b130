"""Code shared by the operator-learning examples: functions as rows of values and coordinates, standardisation."""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
from torch import Tensor, nn

from experiment import FUNCTION, Samples, options, run
from graphslice.errors import InputError
from sequence_model import SequenceModel


def functions_as_rows(values: Tensor, coordinates: Tensor, targets: Tensor) -> Samples:
    """Represent functions on common points as samples with one row per point.

    Args:
        values: ``[n, N]``, values of the input functions.
        coordinates: ``[N, F]``, coordinates of the points.
        targets: ``[n, N]``, values of the functions to predict.

    Returns:
        Inputs float32 ``[n, N, 1 + F]`` and targets float32 ``[n, N]``.
    """
    n, points = targets.shape
    inputs = torch.cat([values[:, :, None].float(), coordinates.float().expand(n, -1, -1)], dim=-1)
    return Samples(inputs, torch.full((n,), points), targets.float())


def read_tensors(path: Path) -> dict[str, Tensor]:
    """Read a torch file of tensors by name, without running code from it.

    Raises:
        InputError: if the file does not exist or has other contents.
    """
    if not path.is_file():
        raise InputError(f"{path} does not exist: give --data a folder with the files of the package neuraloperator")
    try:
        tensors = torch.load(path, map_location="cpu", weights_only=True)
    except Exception:  # a damaged file can raise almost any error
        tensors = None
    if not isinstance(tensors, dict) or not {"x", "y"} <= tensors.keys():
        raise InputError(f"{path} is not a torch file with tensors x and y: give --data the files of neuraloperator")
    return tensors


def operator_options(description: str, **defaults: object) -> argparse.ArgumentParser:
    """Create a parser with the shared options, ``--data`` and ``--unordered``."""
    parser = options(description, mixer=["galerkin"], **defaults)
    parser.add_argument(
        "--data", type=Path, metavar="FOLDER", help="use the files of neuraloperator instead of generated data"
    )
    parser.add_argument("--unordered", action="store_true", help="shuffle the points of every function")
    return parser


def unordered(samples: Samples, seed: int) -> Samples:
    """Shuffle the rows of every sample, inputs and targets in the same order."""
    order = torch.rand(samples.targets.shape, generator=torch.Generator().manual_seed(seed)).argsort(dim=1)
    inputs = samples.inputs.gather(1, order[:, :, None].expand_as(samples.inputs))
    return samples._replace(inputs=inputs, targets=samples.targets.gather(1, order))


def standardise(samples: Samples, train: Samples) -> Samples:
    """Divide every feature and the targets by their standard deviation in the training set, unless it is zero.

    Relative errors are unchanged.
    """
    deviation, unit = train.inputs.flatten(0, 1).std(dim=0), train.targets.std()
    inputs = samples.inputs / deviation.where(deviation > 0, 1.0)
    return samples._replace(inputs=inputs, targets=samples.targets / unit.where(unit > 0, 1.0))


def train_and_evaluate(arguments: argparse.Namespace, train: Samples, tests: dict[str, Samples]) -> list[dict]:
    """Train and evaluate every mixer, and print the error of a baseline, the mean function of the training set."""
    n, points = train.targets.shape
    targets = tests["test"].targets
    error = FUNCTION.score(train.targets.mean(dim=0)[:, None].expand(*targets.shape, 1), targets).mean()
    if arguments.unordered:
        train = unordered(train, 0)
        tests = {name: unordered(samples, i) for i, (name, samples) in enumerate(tests.items(), 1)}
    print(f"training set: {n:,} functions on {points} points; their mean has a {FUNCTION.score_name} of {error:.4f}")
    inputs = train.inputs.shape[2]
    return run(
        arguments,
        lambda config: SequenceModel(config, nn.Linear(inputs, config.dim), outputs=1, positions=False, per_row=True),
        standardise(train, train),
        {name: standardise(samples, train) for name, samples in tests.items()},
        FUNCTION,
    )
