"""Sorting every channel of a batch over its rows, compared with the torch backend and ``torch.sort`` alone; by the
first channel in groups of two rows, compared with one group."""

import argparse
from collections.abc import Callable

import torch

from benchmarks.report import figure, interleaved
from graphslice.ops import column_sort, sort_by_first


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--threads", type=int, help="cores; default: all")
    parser.add_argument("--sizes", action="store_true", help="N from 2 to 4,096 as well")


def run(options: argparse.Namespace) -> list[dict]:
    shapes = [(256, 18, 256), (256, 24, 128), (256, 30, 256)]  # B x N x C
    if options.sizes:
        shapes += [(max(1, 4096 // rows), rows, 256) for rows in (2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096)]
    if options.threads:
        torch.set_num_threads(options.threads)
    figures = []
    for shape in shapes:
        figures += _sorted(shape, is_goal=shape == (256, 18, 256))
    return figures + _in_pairs()


def _sorted(shape: tuple[int, int, int], is_goal: bool) -> list[dict]:
    """The plain sort is ``torch.sort``, whose gradient is a scatter; the torch backend honours lengths and orders."""
    x, upstream = torch.randn(2, *shape)
    leaf = x.clone().requires_grad_()

    def both(sort: Callable[[torch.Tensor], torch.Tensor]) -> Callable[[], object]:
        return lambda: torch.autograd.grad(sort(leaf), leaf, upstream)

    times = interleaved(
        {
            "plain": lambda: torch.sort(x, dim=1, stable=True),
            "torch": lambda: column_sort.reference(x),
            "ours": lambda: column_sort(x),
            "plain both": lambda: torch.autograd.grad(torch.sort(leaf, dim=1, stable=True).values, leaf, upstream),
            "torch both": both(column_sort.reference),
            "ours both": both(column_sort),
        }
    )
    name = " x ".join(map(str, shape))
    figures = []
    for step, suffix, least in (("forward", "", 20), ("forward and backward", " both", 10)):
        ours = times["ours" + suffix]
        figures.append(
            figure(
                f"{name}: {step}",
                times["torch" + suffix] / ours,
                "x the torch backend",
                goal=f">= {least if is_goal else 1}",
                comparison=f"{1e3 * ours:.3g} ms; {times['plain' + suffix] / ours:.3g} x torch.sort alone",
            )
        )
    return figures


def _in_pairs(rows: int = 16_384, channels: int = 64) -> list[dict]:
    leaf, upstream = torch.randn(2, 1, rows, channels)
    leaf, lengths = leaf.requires_grad_(), torch.tensor([rows])
    sorts = {
        "pairs": lambda: sort_by_first(leaf, lengths, 0),
        "whole": lambda: sort_by_first(leaf, lengths),
        "columns": lambda: column_sort(leaf, lengths),
    }

    def both(sort: Callable[[], torch.Tensor]) -> Callable[[], object]:
        return lambda: torch.autograd.grad(sort(), leaf, upstream)

    functions = sorts | {f"{name} both": both(sort) for name, sort in sorts.items()}
    times = interleaved(functions)
    return [
        figure(
            f"groups of two, 1 x {rows} x {channels}: {step}",
            times["whole" + suffix] / times["pairs" + suffix],
            "x one group",
            goal=">= 10",
            comparison=f"{1e3 * times['pairs' + suffix]:.3g} ms; "
            f"{times['columns' + suffix] / times['pairs' + suffix]:.3g} x column_sort",
        )
        for step, suffix in (("forward", ""), ("forward and backward", " both"))
    ]
