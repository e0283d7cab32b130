"""``examples/listops.py``: its grammar, its values and that it is learned."""

import random

import pytest

import listops

SIZES = {"max_depth": 3, "max_args": 10, "min_length": 20, "max_length": 60}


def value_of(tokens: list[str]) -> int:
    """By rewriting the innermost operation until a digit is left."""
    tokens = list(tokens)
    while len(tokens) > 1:
        end = tokens.index("]")
        begin = max(i for i in range(end) if tokens[i].startswith("["))
        digits = sorted(int(token) for token in tokens[begin + 1 : end])
        middle = (digits[(len(digits) - 1) // 2] + digits[len(digits) // 2]) // 2
        results = {"[MIN": digits[0], "[MAX": digits[-1], "[MED": middle, "[SM": sum(digits) % 10}
        tokens[begin : end + 1] = [str(results[tokens[begin]])]
    return int(tokens[0])


def depth_of(tokens: list[str]) -> int:
    depths = [0]
    for token in tokens:
        depths.append(depths[-1] + token.startswith("[") - (token == "]"))
    assert depths[-1] == 0 == min(depths)
    return max(depths)


@pytest.mark.parametrize("max_depth", [1, 3, 10])
def test_values_are_those_of_rewriting(max_depth):
    source = random.Random(max_depth)
    for _ in range(300):
        tokens, value = listops.expression(source, max_depth, max_args=5)
        assert value_of(tokens) == value
        assert depth_of(tokens) < max_depth


def test_samples_are_as_long_as_asked_and_all_different():
    samples = listops.generate(200, 0, **SIZES)
    rows = [tuple(row[:n].tolist()) for row, n in zip(samples.inputs, samples.lengths.tolist(), strict=True)]
    assert len(set(rows)) == 200
    assert samples.lengths.min() >= 20 and samples.lengths.max() <= 60
    values = [value_of([listops.TOKENS[i] for i in row]) for row in rows]
    assert values == samples.targets.tolist()
    assert set(values) == set(range(10))


def test_it_is_learned(learned):
    """Short expressions of one operation are learned in seconds."""
    sizes = ["--max-depth", 2, "--min-length", 4, "--max-length", 8, "--train", 2000, "--test", 500]
    accuracy, out = learned(listops, "slice-quantile", "--steps", 150, *sizes)
    chance = float(out.split("accuracy of the most frequent class ")[1].split(",")[0])
    assert chance < 0.3 and accuracy > chance + 0.15
