"""ListOps: predict the value of nested operations on digits, such as ``[MAX 2 9 [MIN 4 7 ] 0 ]``, which is 9.

    python examples/listops.py --mixer slice-quantile --steps 500
    python examples/listops.py --max-depth 10 --min-length 500 --max-length 2000 --train 96000 --test 2000 ...

The grammar and its probabilities are those of Long Range Arena (Tay et al. 2021), whose sizes the second command uses;
the task is by Nangia and Bowman (2018). There are ten classes, which are not equally frequent.
"""

from __future__ import annotations

import random
import statistics
from collections.abc import Callable, Sequence

import torch
from torch import nn

from experiment import Samples, classify, options, parse_options, positive, run_main
from graphslice.errors import InputError

#: Functions of the operators; a median between two values is rounded down.
OPERATORS: dict[str, Callable[[Sequence[int]], int]] = {
    "[MIN": min,
    "[MAX": max,
    "[MED": lambda values: int(statistics.median(values)),
    "[SM": lambda values: sum(values) % 10,
}
TOKENS = [*map(str, range(10)), *OPERATORS, "]"]

#: Probability that an argument is an operation, below the maximal depth.
NESTED = 0.25

#: Consecutive expressions of unsuitable length or that exist already after which generation gives up.
PATIENCE = 100_000


def expression(source: random.Random, max_depth: int, max_args: int, depth: int = 1) -> tuple[list[str], int]:
    """Draw an expression from the grammar; return its tokens and its value."""
    if depth >= max_depth or source.random() > NESTED:
        digit = source.randrange(10)
        return [str(digit)], digit
    operator = source.choice(list(OPERATORS))
    arguments = [expression(source, max_depth, max_args, depth + 1) for _ in range(source.randint(2, max_args))]
    tokens = [token for part, _ in arguments for token in part]
    return [operator, *tokens, "]"], OPERATORS[operator]([value for _, value in arguments])


def generate(count: int, seed: int, *, max_depth: int, max_args: int, min_length: int, max_length: int) -> Samples:
    """Generate ``count`` different expressions of ``min_length`` to ``max_length`` tokens.

    Raises:
        InputError: if the grammar does not give as many expressions of this length.
    """
    if max_args < 2:
        raise InputError(f"an operation has at least 2 arguments, not {max_args}: give a larger --max-args")
    source = random.Random(seed)
    values: dict[tuple[str, ...], int] = {}
    failures = 0
    while len(values) < count:
        tokens, value = expression(source, max_depth, max_args)
        if min_length <= len(tokens) <= max_length and tuple(tokens) not in values:
            values[tuple(tokens)] = value
            failures = 0
        elif (failures := failures + 1) > PATIENCE:
            raise InputError(f"depth {max_depth} gives too few expressions of {min_length} to {max_length} tokens")
    number = {token: i for i, token in enumerate(TOKENS)}
    rows = [torch.tensor([number[token] for token in tokens]) for tokens in values]
    inputs = nn.utils.rnn.pad_sequence(rows, batch_first=True)
    return Samples(inputs, torch.tensor([len(row) for row in rows]), torch.tensor(list(values.values())))


def first_token_baseline(train: Samples, test: Samples) -> float:
    """Return the test accuracy of predicting the most frequent class of training samples with the same first token."""
    right = 0.0
    for token in test.inputs[:, 0].unique():
        matching = train.targets[train.inputs[:, 0] == token]
        predicted = (matching if len(matching) else train.targets).mode().values
        right += (test.targets[test.inputs[:, 0] == token] == predicted).sum().item()
    return right / len(test.targets)


def main(arguments: list[str] | None = None) -> list[dict]:
    parser = options(__doc__)
    parser.add_argument("--min-length", type=positive, default=20, help="minimal number of tokens")
    parser.add_argument("--max-length", type=positive, default=100, help="maximal number of tokens")
    parser.add_argument("--max-depth", type=positive, default=3, help="maximal depth of nested operations")
    parser.add_argument("--max-args", type=positive, default=10, help="maximal number of arguments of an operation")
    parsed = parse_options(parser, arguments)
    sizes = {name: getattr(parsed, name) for name in ("max_depth", "max_args", "min_length", "max_length")}
    samples = generate(parsed.train + parsed.test, 0, **sizes)
    train, test = samples.split_at(parsed.train)  # all expressions are different, so the sets do not overlap
    baseline = (test.targets == train.targets.mode().values).float().mean()
    print(
        f"{parsed.train:,} training expressions, {parsed.test:,} test expressions; accuracy of the most frequent class "
        f"{baseline:.4f}, of the most frequent class per outermost operation {first_token_baseline(train, test):.4f}"
    )
    return classify(parsed, train, test, len(TOKENS), classes=10)


if __name__ == "__main__":
    run_main(main)
