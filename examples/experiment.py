"""What the examples share: their options, a plain training loop, and the table that they print."""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from graphslice.config import ModelConfig
from graphslice.errors import InputError
from graphslice.nn.mixers import build_mixer, check_mixer
from sequence_model import SequenceModel


class Samples(NamedTuple):
    """Padded samples.

    Attributes:
        inputs: ``[n, N]`` tokens (integers) or ``[n, N, F]`` features (float32).
        lengths: int64 ``[n]``, the valid rows of each.
        targets: int64 ``[n]`` classes, or float32 ``[n, N]`` values of a function.
    """

    inputs: Tensor
    lengths: Tensor
    targets: Tensor

    def take(self, rows: Tensor, device: str) -> Samples:
        """Some samples, without columns that are padding in all of them."""
        lengths = self.lengths[rows]
        inputs = self.inputs[rows, : int(lengths.max())]
        return Samples(*(tensor.to(device) for tensor in (inputs, lengths, self.targets[rows])))


class Objective(NamedTuple):
    """What is asked of a model, and how answers are judged.

    Attributes:
        score_name: the name of the score.
        loss: of outputs and targets, a scalar.
        score: of outputs and targets, float32 ``[B]``.
    """

    score_name: str
    loss: Callable[[Tensor, Tensor], Tensor]
    score: Callable[[Tensor, Tensor], Tensor]


def relative_error(outputs: Tensor, targets: Tensor) -> Tensor:
    """``||u - v|| / ||v||`` in L2 of functions on a uniform grid: ``[B]`` of ``[B, N, 1]`` and ``[B, N]``."""
    return (outputs.squeeze(-1) - targets).norm(dim=1) / targets.norm(dim=1)


def accuracy(outputs: Tensor, targets: Tensor) -> Tensor:
    """1 where the largest output is that of the class, else 0: ``[B]`` of ``[B, classes]`` and ``[B]``."""
    return (outputs.argmax(dim=1) == targets).float()


CLASS = Objective("accuracy", F.cross_entropy, accuracy)
FUNCTION = Objective("relative L2 error", lambda *pair: relative_error(*pair).mean(), relative_error)


def positive(text: str) -> int:
    """A whole number of one or more, for an option."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of at least 1")
    return int(text)


def seed_number(text: str) -> int:
    """A seed of torch's generator, for an option."""
    if not text.isdecimal() or int(text) >= 2**63:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number from 0 to {2**63 - 1}")
    return int(text)


def positive_number(text: str) -> float:
    """A number above 0, for an option."""
    try:
        number = float(text)
    except ValueError:
        number = 0.0
    if not 0 < number < math.inf:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number above 0")
    return number


def fraction(text: str) -> float:
    """A number from 0 to below 1, for an option."""
    try:
        number = float(text)
    except ValueError:
        number = 1.0
    if not 0 <= number < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number from 0 to below 1")
    return number


def options(description: str, **defaults: object) -> argparse.ArgumentParser:
    """The options that every example has; ``defaults`` replace theirs."""
    parser = argparse.ArgumentParser(
        description=description.splitlines()[0], formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    add = parser.add_argument
    add("--mixer", nargs="+", default=["slice-quantile"], metavar="NAME", help="one or several, one after the other")
    add("--settings", type=json.loads, default={}, help="""of the mixer, such as '{"groups": 4}' of csp""")
    add("--steps", type=positive, default=500)
    add(
        "--seed", type=seed_number, nargs="+", default=[0], help="of weights and batches; the data are the same for all"
    )
    add("--layers", type=positive, default=2)
    add("--dim", type=positive, default=64)
    add("--heads", type=positive, default=4)
    add("--dropout", type=fraction, default=0.0)
    add("--batch", type=positive, default=32, help="samples of a step")
    add("--lr", type=positive_number, default=2e-3, help="the largest learning rate")
    add("--train", type=positive, default=10_000, help="samples to learn")
    add("--test", type=positive, default=1_000, help="samples that are held out")
    add("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.set_defaults(**defaults)
    return parser


def parse_options(parser: argparse.ArgumentParser, arguments: list[str] | None) -> argparse.Namespace:
    """The options as given, of the command line without ``arguments``; all is checked before data are made.

    Raises:
        InputError: for a mixer or a setting that there is not, sizes that it cannot have, or no such device.
    """
    given = parser.parse_args(arguments)
    if not isinstance(given.settings, dict):
        parser.error("--settings is a JSON object, such as {}")
    for mixer in given.mixer:
        check_mixer(mixer, given.settings)
        build_mixer(mixer, given.dim, given.heads, **given.settings)
    try:
        torch.zeros(1, device=given.device).item()
    except (RuntimeError, AssertionError) as error:  # NotImplementedError, too, of a device that holds no numbers
        raise InputError(f"there is no device {given.device!r}: {str(error).splitlines()[0]}") from None
    return given


def settings(arguments: argparse.Namespace, mixer: str) -> ModelConfig:
    """The model that the options describe."""
    return ModelConfig(
        mixer=mixer,
        mixer_settings=arguments.settings,
        layers=arguments.layers,
        dim=arguments.dim,
        heads=arguments.heads,
        ffn_dim=2 * arguments.dim,
        dropout=arguments.dropout,
        attention_dropout=0.0,
    )


def fit(model: nn.Module, samples: Samples, objective: Objective, arguments: argparse.Namespace, seed: int) -> None:
    """Train by AdamW, the learning rate up for a tenth of the steps and then down to zero; an epoch has all samples."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=arguments.lr, weight_decay=0.01)
    steps = max(3, arguments.steps)  # fewer are no way up and down
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, arguments.lr, steps, pct_start=max(0.1, 2 / steps))
    generator = torch.Generator().manual_seed(seed)
    order = torch.empty(0, dtype=torch.int64)
    model.train()
    for _ in range(arguments.steps):
        if len(order) < arguments.batch:
            order = torch.cat([order, torch.randperm(len(samples.lengths), generator=generator)])
        rows, order = order[: arguments.batch], order[arguments.batch :]
        batch = samples.take(rows, arguments.device)
        loss = objective.loss(model(batch.inputs, batch.lengths), batch.targets)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()


@torch.no_grad()
def evaluate(model: nn.Module, samples: Samples, objective: Objective, arguments: argparse.Namespace) -> float:
    """The mean score."""
    model.eval()
    scores = []
    for rows in torch.arange(len(samples.lengths)).split(arguments.batch):
        batch = samples.take(rows, arguments.device)
        scores.append(objective.score(model(batch.inputs, batch.lengths), batch.targets).cpu())
    return torch.cat(scores).mean().item()


def run(
    arguments: argparse.Namespace,
    make: Callable[[ModelConfig], SequenceModel],
    train: Samples,
    tests: dict[str, Samples],
    objective: Objective,
) -> list[dict]:
    """Train every mixer with every seed, read the test sets once, and print a row of each.

    Returns:
        The rows: ``mixer``, ``seed``, ``parameters``, ``seconds`` of training, ``core-seconds`` (what of them the
        processor worked for it, on all cores, however busy the machine), and a score by test set.
    """
    heads = ("mixer", "seed", "parameters", "seconds", "core-seconds", *tests)
    print(f"{heads[0]:<16}{heads[1]:>5}", *(f"{name:>12}" for name in heads[2:]))
    found = []
    for mixer in arguments.mixer:
        for seed in arguments.seed:
            torch.manual_seed(seed)
            model = make(settings(arguments, mixer)).to(arguments.device)
            began = time.perf_counter(), time.process_time()
            fit(model, train, objective, arguments, seed)
            seconds = {"seconds": time.perf_counter() - began[0], "core-seconds": time.process_time() - began[1]}
            scores = {name: evaluate(model, samples, objective, arguments) for name, samples in tests.items()}
            parameters = sum(parameter.numel() for parameter in model.parameters())
            found.append({"mixer": mixer, "seed": seed, "parameters": parameters, **seconds, **scores})
            numbers = [*(f"{value:.1f}" for value in seconds.values()), *(f"{value:.4f}" for value in scores.values())]
            print(f"{mixer:<16}{seed:>5}{parameters:>13,}", *(f"{number:>12}" for number in numbers), flush=True)
    return found


def run_main(main: Callable[[], object]) -> None:
    """Run an example; what its user asked for wrongly is said in a line."""
    try:
        main()
    except InputError as error:
        print(f"error: {error}", file=sys.stderr)
        raise SystemExit(2) from None
