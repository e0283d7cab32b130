"""ListOps: the value of nested operations on lists of digits, such as ``[MAX 2 9 [MIN 4 7 ] 0 ]``, which is 9.

    python examples/listops.py --mixer slice-quantile --steps 500
    python examples/listops.py --max-depth 10 --min-length 500 --max-length 2000 --train 96000 --test 2000 ...

The grammar and its probabilities are those of Long Range Arena (Tay et al. 2021), whose sizes the second command has;
the task is that of Nangia and Bowman (2018). Ten classes; some answers are commoner than others.
"""

from __future__ import annotations

import random
import statistics
from collections.abc import Callable, Sequence

import torch
from torch import nn

from experiment import CLASS, Samples, options, parse_options, positive, run, run_main
from graphslice.errors import InputError
from sequence_model import SequenceModel

#: What an operator makes of its arguments; between two values the median is rounded down.
OPERATORS: dict[str, Callable[[Sequence[int]], int]] = {
    "[MIN": min,
    "[MAX": max,
    "[MED": lambda values: int(statistics.median(values)),
    "[SM": lambda values: sum(values) % 10,
}
TOKENS = [*map(str, range(10)), *OPERATORS, "]"]

#: How often an argument is an operation itself, above the largest depth.
NESTED = 0.25

#: Expressions in a row that are too short or too long before a length counts as impossible.
PATIENCE = 100_000


def expression(source: random.Random, max_depth: int, max_args: int, depth: int = 1) -> tuple[list[str], int]:
    """An expression by the grammar: its tokens, and its value."""
    if depth >= max_depth or source.random() > NESTED:
        digit = source.randrange(10)
        return [str(digit)], digit
    operator = source.choice(list(OPERATORS))
    arguments = [expression(source, max_depth, max_args, depth + 1) for _ in range(source.randint(2, max_args))]
    tokens = [token for part, _ in arguments for token in part]
    return [operator, *tokens, "]"], OPERATORS[operator]([value for _, value in arguments])


def generate(count: int, seed: int, *, max_depth: int, max_args: int, min_length: int, max_length: int) -> Samples:
    """``count`` different expressions of ``min_length`` to ``max_length`` tokens.

    Raises:
        InputError: if the grammar gives none, or not so many, of such a length.
    """
    if max_args < 2:
        raise InputError(f"an operation has at least 2 arguments, not {max_args}: give a larger --max-args")
    source = random.Random(seed)
    found: dict[tuple[str, ...], int] = {}
    in_vain = 0
    while len(found) < count:
        tokens, value = expression(source, max_depth, max_args)
        if min_length <= len(tokens) <= max_length and tuple(tokens) not in found:
            found[tuple(tokens)] = value
            in_vain = 0
        elif (in_vain := in_vain + 1) > PATIENCE:
            raise InputError(f"depth {max_depth} gives too few expressions of {min_length} to {max_length} tokens")
    number = {token: i for i, token in enumerate(TOKENS)}
    rows = [torch.tensor([number[token] for token in tokens]) for tokens in found]
    inputs = nn.utils.rnn.pad_sequence(rows, batch_first=True)
    return Samples(inputs, torch.tensor([len(row) for row in rows]), torch.tensor(list(found.values())))


def first_token_baseline(train: Samples, test: Samples) -> float:
    """The share of the test for which the commonest answer is right among learned samples that begin alike."""
    right = 0.0
    for token in test.inputs[:, 0].unique():
        alike = train.targets[train.inputs[:, 0] == token]
        answer = (alike if len(alike) else train.targets).mode().values
        right += (test.targets[test.inputs[:, 0] == token] == answer).sum().item()
    return right / len(test.targets)


def main(arguments: list[str] | None = None) -> list[dict]:
    parser = options(__doc__)
    parser.add_argument("--min-length", type=positive, default=20, help="tokens of an expression")
    parser.add_argument("--max-length", type=positive, default=100)
    parser.add_argument("--max-depth", type=positive, default=3)
    parser.add_argument("--max-args", type=positive, default=10)
    given = parse_options(parser, arguments)
    sizes = {name: getattr(given, name) for name in ("max_depth", "max_args", "min_length", "max_length")}
    samples = generate(given.train + given.test, 0, **sizes)
    # All are different, so none stands on both sides.
    train = Samples(*(part[: given.train] for part in samples))
    test = Samples(*(part[given.train :] for part in samples))
    commonest = (test.targets == train.targets.mode().values).float().mean()
    print(
        f"{given.train:,} expressions to learn, {given.test:,} to test; the commonest answer is right for "
        f"{commonest:.4f}, that of the outermost operation for {first_token_baseline(train, test):.4f}"
    )
    return run(
        given,
        lambda config: SequenceModel(config, nn.Embedding(len(TOKENS), config.dim), outputs=10),
        train,
        {CLASS.score_name: test},
        CLASS,
    )


if __name__ == "__main__":
    run_main(main)
