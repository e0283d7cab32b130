"""What the examples of operators share: functions as rows of values and places, and their units."""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
from torch import Tensor, nn

from experiment import FUNCTION, Samples, options, run
from graphslice.errors import InputError
from sequence_model import SequenceModel


def functions_as_rows(values: Tensor, places: Tensor, answers: Tensor) -> Samples:
    """Functions of the same points, each point a row.

    Args:
        values: ``[n, N]``, of the functions that are given.
        places: ``[N, F]``, coordinates of the points.
        answers: ``[n, N]``, of the functions that are asked.

    Returns:
        Inputs float32 ``[n, N, 1 + F]`` and targets float32 ``[n, N]``.
    """
    n, points = answers.shape
    inputs = torch.cat([values[:, :, None].float(), places.float().expand(n, -1, -1)], dim=-1)
    return Samples(inputs, torch.full((n,), points), answers.float())


def read_tensors(path: Path) -> dict[str, Tensor]:
    """A torch file of tensors by name; no code of it is run.

    Raises:
        InputError: if it is not there, or is no such file.
    """
    if not path.is_file():
        raise InputError(f"{path} is not there: give --data the folder that holds the package neuraloperator's files")
    try:
        found = torch.load(path, map_location="cpu", weights_only=True)
    except Exception:  # whatever the bytes made of torch's readers
        found = None
    if not isinstance(found, dict) or not {"x", "y"} <= found.keys():
        raise InputError(f"{path} is no torch file of tensors by name: give --data the package neuraloperator's files")
    return found


def operator_options(description: str, **defaults: object) -> argparse.ArgumentParser:
    """Those of every example, a folder of data in place of a generator, and whether the points have an order."""
    parser = options(description, mixer=["galerkin"], **defaults)
    parser.add_argument("--data", type=Path, metavar="FOLDER", help="neuraloperator's files, in place of a generator")
    parser.add_argument("--unordered", action="store_true", help="the points of every function in an order of its own")
    return parser


def unordered(samples: Samples, seed: int) -> Samples:
    """The rows of every sample in a random order of their own, inputs and answers alike."""
    order = torch.rand(samples.targets.shape, generator=torch.Generator().manual_seed(seed)).argsort(dim=1)
    inputs = samples.inputs.gather(1, order[:, :, None].expand_as(samples.inputs))
    return samples._replace(inputs=inputs, targets=samples.targets.gather(1, order))


def standardise(samples: Samples, train: Samples) -> Samples:
    """Every feature and the answers as multiples of their deviation in training, where they have one; relative errors
    stay what they are."""
    deviation, unit = train.inputs.flatten(0, 1).std(dim=0), train.targets.std()
    inputs = samples.inputs / deviation.where(deviation > 0, 1.0)
    return samples._replace(inputs=inputs, targets=samples.targets / unit.where(unit > 0, 1.0))


def train_and_evaluate(arguments: argparse.Namespace, train: Samples, tests: dict[str, Samples]) -> list[dict]:
    """Train and test every mixer, beside the answer that does not look at what is given: the mean function."""
    n, points = train.targets.shape
    targets = tests["test"].targets
    error = FUNCTION.score(train.targets.mean(dim=0)[:, None].expand(*targets.shape, 1), targets).mean()
    if arguments.unordered:
        train = unordered(train, 0)
        tests = {name: unordered(samples, i) for i, (name, samples) in enumerate(tests.items(), 1)}
    print(f"{n:,} functions on {points} points to learn; their mean has a {FUNCTION.score_name} of {error:.4f}")
    inputs = train.inputs.shape[2]
    return run(
        arguments,
        lambda config: SequenceModel(config, nn.Linear(inputs, config.dim), outputs=1, positions=False, per_row=True),
        standardise(train, train),
        {name: standardise(samples, train) for name, samples in tests.items()},
        FUNCTION,
    )
