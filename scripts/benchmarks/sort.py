"""Sorting every channel of a batch over its rows, beside ``torch.sort`` along the same dimension."""

from __future__ import annotations

import argparse

import torch

from benchmarks.report import figure, interleaved
from graphslice.ops import column_sort


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--shapes", nargs="+", default=["256x18x256"], help="B x N x C")
    parser.add_argument("--sizes", action="store_true", help="N from 2 to 4,096 as well")


def run(options: argparse.Namespace) -> list[dict]:
    shapes = [tuple(map(int, shape.split("x"))) for shape in options.shapes]
    if options.sizes:
        shapes += [(max(1, 4096 // rows), rows, 256) for rows in (2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096)]
    figures = []
    for shape in shapes:
        figures += _sorted(shape, asked=shape == (256, 18, 256))
    return figures


def _sorted(shape: tuple[int, int, int], asked: bool) -> list[dict]:
    x, upstream = torch.randn(shape), torch.randn(shape)
    leaf = x.clone().requires_grad_()
    times = interleaved(
        {
            "torch": lambda: torch.sort(x, dim=1, stable=True),
            "ours": lambda: column_sort(x),
            "torch both": lambda: torch.autograd.grad(torch.sort(leaf, dim=1, stable=True).values, leaf, upstream),
            "ours both": lambda: torch.autograd.grad(column_sort(leaf), leaf, upstream),
        },
        15,
    )
    name = " x ".join(map(str, shape))
    return [
        figure(
            f"{name}: forward",
            times["torch"] / times["ours"],
            "x torch.sort",
            asked=">= 20" if asked else ">= 1",
            beside=f"{1e3 * times['ours']:.3g} ms",
        ),
        figure(
            f"{name}: forward and backward",
            times["torch both"] / times["ours both"],
            "x torch.sort",
            asked=">= 10" if asked else ">= 1",
            beside=f"{1e3 * times['ours both']:.3g} ms",
        ),
    ]
