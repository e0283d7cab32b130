"""Code shared by the examples: options, a simple training loop, and the table of results."""

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
        lengths: int64 ``[n]``, number of valid rows of each sample.
        targets: int64 ``[n]`` classes, or float32 ``[n, N]`` values of a function.
    """

    inputs: Tensor
    lengths: Tensor
    targets: Tensor

    def split_at(self, count: int) -> tuple[Samples, Samples]:
        """Return the first ``count`` samples, and the others."""
        return Samples(*(part[:count] for part in self)), Samples(*(part[count:] for part in self))

    def take(self, rows: Tensor, device: str) -> Samples:
        """Return some of the samples, without columns that are padding in all of them."""
        lengths = self.lengths[rows]
        inputs = self.inputs[rows, : int(lengths.max())]
        return Samples(*(tensor.to(device) for tensor in (inputs, lengths, self.targets[rows])))


class Objective(NamedTuple):
    """Loss and score of a task.

    Attributes:
        score_name: name of the score.
        loss: maps outputs and targets to a scalar.
        score: maps outputs and targets to float32 ``[B]``.
    """

    score_name: str
    loss: Callable[[Tensor, Tensor], Tensor]
    score: Callable[[Tensor, Tensor], Tensor]


def relative_error(outputs: Tensor, targets: Tensor) -> Tensor:
    """Compute the relative L2 error ``||u - v|| / ||v||`` of functions on a uniform grid.

    Args:
        outputs: ``[B, N, 1]``.
        targets: ``[B, N]``.

    Returns:
        ``[B]``.
    """
    return (outputs.squeeze(-1) - targets).norm(dim=1) / targets.norm(dim=1)


def accuracy(outputs: Tensor, targets: Tensor) -> Tensor:
    """Return 1 where the largest of the outputs ``[B, classes]`` is that of the target ``[B]``, else 0: ``[B]``."""
    return (outputs.argmax(dim=1) == targets).float()


CLASS = Objective("accuracy", F.cross_entropy, accuracy)
FUNCTION = Objective("relative L2 error", lambda *pair: relative_error(*pair).mean(), relative_error)


def positive(text: str) -> int:
    """Parse an integer of at least 1 from an option."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of at least 1")
    return int(text)


def seed_number(text: str) -> int:
    """Parse a seed of torch's random generator from an option."""
    if not text.isdecimal() or int(text) >= 2**63:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number from 0 to {2**63 - 1}")
    return int(text)


def positive_number(text: str) -> float:
    """Parse a positive number from an option."""
    return _number(text, lambda number: 0 < number < math.inf, "above 0")


def fraction(text: str) -> float:
    """Parse a number from 0 to below 1 from an option."""
    return _number(text, lambda number: 0 <= number < 1, "from 0 to below 1")


def _number(text: str, allowed: Callable[[float], bool], limits: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not allowed(number):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number {limits}")
    return number


def options(description: str, **defaults: object) -> argparse.ArgumentParser:
    """Create a parser with the options shared by all examples; ``defaults`` replace their default values."""
    parser = argparse.ArgumentParser(
        description=description.splitlines()[0], formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    add = parser.add_argument
    add("--mixer", nargs="+", default=["slice-quantile"], metavar="NAME", help="one or more mixers to train")
    add("--settings", type=json.loads, default={}, help="""settings of the mixer, such as '{"groups": 4}' for csp""")
    add("--steps", type=positive, default=500, help="training steps")
    add("--seed", type=seed_number, nargs="+", default=[0], help="seeds of weights and batches; the data stay the same")
    add("--layers", type=positive, default=2)
    add("--dim", type=positive, default=64)
    add("--heads", type=positive, default=4)
    add("--norm", default="pre", choices=["pre", "post", "none"], help="layer norms of the blocks")
    add("--dropout", type=fraction, default=0.0)
    add("--batch", type=positive, default=32, help="batch size")
    add("--lr", type=positive_number, default=2e-3, help="peak learning rate")
    add("--train", type=positive, default=10_000, help="size of the training set")
    add("--test", type=positive, default=1_000, help="size of the test set")
    add("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.set_defaults(**defaults)
    return parser


def parse_options(parser: argparse.ArgumentParser, arguments: list[str] | None) -> argparse.Namespace:
    """Parse and check the options before data are generated.

    Args:
        parser: parser of the example.
        arguments: arguments to parse; None for those of the command line.

    Raises:
        InputError: for an unknown mixer, an invalid setting or size, or an unavailable device.
    """
    parsed = parser.parse_args(arguments)
    if not isinstance(parsed.settings, dict):
        parser.error("--settings must be a JSON object, such as {}")
    for mixer in parsed.mixer:
        check_mixer(mixer, parsed.settings)
        build_mixer(mixer, parsed.dim, parsed.heads, **parsed.settings)
    try:
        torch.zeros(1, device=parsed.device).item()
    except (RuntimeError, AssertionError) as error:  # also NotImplementedError, of a device without data such as meta
        raise InputError(f"there is no device {parsed.device!r}: {str(error).splitlines()[0]}") from None
    return parsed


def settings(arguments: argparse.Namespace, mixer: str) -> ModelConfig:
    """Return the model configuration that the options describe."""
    return ModelConfig(
        mixer=mixer,
        mixer_settings=arguments.settings,
        layers=arguments.layers,
        dim=arguments.dim,
        heads=arguments.heads,
        ffn_dim=2 * arguments.dim,
        norm=arguments.norm,
        dropout=arguments.dropout,
        attention_dropout=0.0,
    )


def fit(model: nn.Module, samples: Samples, objective: Objective, arguments: argparse.Namespace, seed: int) -> None:
    """Train with AdamW; the learning rate rises for a tenth of the steps and then falls to zero."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=arguments.lr, weight_decay=0.01)
    steps = max(3, arguments.steps)  # the schedule needs at least 3
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
    """Return the mean score."""
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
    """Train every mixer with every seed, evaluate it once on the test sets, and print a row for each.

    Args:
        arguments: options of :func:`parse_options`.
        make: creates a model from its configuration.
        train: training set.
        tests: test sets by name.
        objective: loss and score.

    Returns:
        The rows: ``mixer``, ``seed``, ``parameters``, ``seconds`` of training, ``core-seconds`` (processor time of
        the training on all cores, independent of the load of the machine), and the score on each test set.
    """
    heads = ("mixer", "seed", "parameters", "seconds", "core-seconds", *tests)
    print(f"{heads[0]:<16}{heads[1]:>5}", *(f"{name:>12}" for name in heads[2:]))
    results = []
    for mixer in arguments.mixer:
        for seed in arguments.seed:
            torch.manual_seed(seed)
            model = make(settings(arguments, mixer)).to(arguments.device)
            start = time.perf_counter(), time.process_time()
            fit(model, train, objective, arguments, seed)
            seconds = {"seconds": time.perf_counter() - start[0], "core-seconds": time.process_time() - start[1]}
            scores = {name: evaluate(model, samples, objective, arguments) for name, samples in tests.items()}
            parameters = sum(parameter.numel() for parameter in model.parameters())
            results.append({"mixer": mixer, "seed": seed, "parameters": parameters, **seconds, **scores})
            numbers = [*(f"{value:.1f}" for value in seconds.values()), *(f"{value:.4f}" for value in scores.values())]
            print(f"{mixer:<16}{seed:>5}{parameters:>13,}", *(f"{number:>12}" for number in numbers), flush=True)
    return results


def classify(arguments: argparse.Namespace, train: Samples, test: Samples, tokens: int, classes: int) -> list[dict]:
    """Train and evaluate a classifier of token sequences with every mixer: :func:`run`."""
    return run(
        arguments,
        lambda config: SequenceModel(config, nn.Embedding(tokens, config.dim), outputs=classes),
        train,
        {CLASS.score_name: test},
        CLASS,
    )


def run_main(main: Callable[[], object]) -> None:
    """Run an example and print an InputError as one line."""
    try:
        main()
    except InputError as error:
        print(f"error: {error}", file=sys.stderr)
        raise SystemExit(2) from None
