"""Sliceformer, Table 3: steps a second and peak memory for sequences of 1K to 4K rows.

Every combination of mixer, rows and mode (training, inference) is timed once a round, in an order of the round's own:
what else the machine does meets all of them alike. On a CPU the time is that of one core, without what others had of
it; a rate is that of the median over the rounds, drawn with its quartiles.
"""

from __future__ import annotations

import argparse
import random
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from functools import partial
from itertools import product
from multiprocessing import get_context

import numpy as np
import torch

from benchmarks.results import markdown
from graphslice.config import ModelConfig
from graphslice.evaluation.plots import new_figure
from graphslice.nn.block import Block
from graphslice.nn.context import AttentionContext
from graphslice.nn.mixers import MIXERS
from graphslice.system.machine import peak_memory
from paper_figures.panels import PANEL

#: Sliceformer, Table 3 (JAX, four NVIDIA 3090): steps a second in training and inference, and GB; None: out of memory.
PAPER = {
    "softmax": {
        "training": (27.49, 9.45, 4.73, None),
        "inference": (41.54, 32.90, 16.09, None),
        "memory": (11.64, 32.45, 65.67, None),
    },
    "slice-ascend": {
        "training": (32.79, 32.26, 21.79, 16.25),
        "inference": (43.73, 43.72, 43.29, 42.89),
        "memory": (5.61, 8.12, 10.64, 13.14),
    },
}
ROWS = (1024, 2048, 3072, 4096)
MODES = ("training", "inference")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--mixers", nargs="+", default=list(MIXERS))
    parser.add_argument("--rows", nargs="+", type=int, default=list(ROWS))
    parser.add_argument("--batch", type=int, help="sequences of a step (default: 1 on a CPU, 32 on a GPU)")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--rounds", type=int, default=7, help="how often each step is timed")


def draw(options: argparse.Namespace) -> None:
    batch = options.batch or (32 if options.device == "cuda" else 1)
    print(f"{options.device}, batch {batch}, {options.rounds} rounds; 4 layers, C = 256, H = 4, feed-forward 1,024\n")
    cells = [(mixer, rows) for rows in options.rows for mixer in options.mixers]
    # First, while this process is small: one that it starts counts the memory of its parent as its own peak.
    memory = {cell: _memory_alone(*cell, batch, options.device) for cell in cells}
    steps = {mixer: Steps(mixer, options.device) for mixer in options.mixers}
    inputs = {rows: _sequences(batch, rows, options.device) for rows in options.rows}
    for mixer, mode in product(options.mixers, MODES):  # compile, fill the caches
        steps[mixer].step(inputs[min(options.rows)], mode)
    timed = [(mixer, rows, mode) for mixer, rows in cells if memory[mixer, rows] is not None for mode in MODES]
    functions = {name: partial(steps[name[0]].step, inputs[name[1]], name[2]) for name in timed}
    found = interleaved_rates(
        functions, options.rounds, time.perf_counter if options.device == "cuda" else time.process_time
    )
    _print_table(options, found, memory)
    _print_spread(found)
    figure, axes = new_figure(3, PANEL)
    for mixer in options.mixers:
        for axis, mode in zip(axes, MODES, strict=False):
            rates = [found.get((mixer, rows, mode), [np.nan] * 3) for rows in options.rows]
            low, middle, high = np.transpose(rates)
            (line,) = axis.plot(options.rows, middle, marker=".", label=mixer)
            axis.fill_between(options.rows, low, high, color=line.get_color(), alpha=0.2, linewidth=0)
        used = [memory[mixer, rows] for rows in options.rows]
        axes[2].plot(options.rows, [np.nan if value is None else value for value in used], marker=".", label=mixer)
    titles = [*(f"{mode}, steps a second" for mode in MODES), "training's peak memory, GiB"]
    for axis, title in zip(axes, titles, strict=True):
        axis.set(xlabel="rows", yscale="log", title=title)
    axes[0].legend(fontsize=7)
    figure.savefig(options.out / f"speed-{options.device}.png", dpi=120)


class Steps:
    """Steps of LRA's text model: four layers, C = 256, H = 4, feed-forward 1,024."""

    def __init__(self, mixer: str, device: str) -> None:
        torch.manual_seed(0)
        torch.set_num_threads(1)  # the time of the process is then that of a core
        config = ModelConfig(mixer=mixer, layers=4, dim=256, heads=4, ffn_dim=1024, dropout=0.0, attention_dropout=0.0)
        self.blocks = torch.nn.ModuleList(Block(config, layer) for layer in range(1, 5)).to(device)
        self.norm = torch.nn.LayerNorm(256).to(device)
        self.optimizer = torch.optim.AdamW(self.blocks.parameters(), fused=True)
        self.device = device

    def step(self, x: torch.Tensor, mode: str) -> None:
        """One step on sequences ``[B, N, 256]``; returns when it is done."""
        batch, rows, _ = x.shape
        context = AttentionContext(torch.full((batch,), rows, device=self.device), rows)
        self.blocks.train(mode == "training")
        with torch.set_grad_enabled(mode == "training"):
            for block in self.blocks:
                x = block(x, context)
            normed = self.norm(x)
            if mode == "training":
                self.optimizer.zero_grad()
                normed[:, 0].square().mean().backward()
                self.optimizer.step()
        if self.device == "cuda":
            torch.cuda.synchronize()


def _sequences(batch: int, rows: int, device: str) -> torch.Tensor:
    return torch.randn(batch, rows, 256, generator=torch.Generator().manual_seed(0)).to(device)


def interleaved_rates(
    functions: dict[tuple, Callable[[], None]], rounds: int, clock: Callable[[], float]
) -> dict[tuple, np.ndarray]:
    """``float64 [3]`` of each function: how often a second it runs, the quartiles of one timing a round."""
    times: dict[tuple, list[float]] = {name: [] for name in functions}
    for number in range(rounds):
        for name in random.Random(number).sample(list(functions), len(functions)):
            begin = clock()
            functions[name]()
            times[name].append(clock() - begin)
    return {name: 1 / np.percentile(values, [75, 50, 25]) for name, values in times.items()}


def training_memory(mixer: str, rows: int, batch: int, device: str) -> float | None:
    """GiB that two training steps take; None where there are not so many."""
    steps, x = Steps(mixer, device), _sequences(batch, rows, device)
    before = 0 if device == "cuda" else peak_memory()
    try:
        for _ in range(2):  # the second step has the moments of the optimizer in memory
            steps.step(x, "training")
    except torch.OutOfMemoryError:
        return None
    return (peak_memory(device) - before) / 2**30


def _memory_alone(*settings) -> float | None:
    """:func:`training_memory` in a process of its own; None too where the system ends it."""
    try:
        with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
            return pool.submit(training_memory, *settings).result()
    except BrokenProcessPool:
        return None


def _print_table(options: argparse.Namespace, found: dict, memory: dict) -> None:
    heads = [f"{n // 1024}K" for n in options.rows]
    lines: list[list[str]] = [["mixer"]]
    for title in ("training, steps/s at", "inference at", "training's memory, GiB, at"):
        lines[0] += [f"{title} {heads[0]}", *heads[1:]]
    for mixer in options.mixers:
        rates = [found.get((mixer, rows, mode)) for mode in MODES for rows in options.rows]
        values = [None if rate is None else rate[1] for rate in rates] + [memory[mixer, n] for n in options.rows]
        lines.append([f"`{mixer}`", *map(_cell, values)])
    for mixer, parts in PAPER.items():
        known = [parts[n][ROWS.index(r)] if r in ROWS else np.nan for n in (*MODES, "memory") for r in options.rows]
        lines.append([f"{mixer}, the paper", *map(_cell, known)])
    print(markdown(lines), end="")


def _print_spread(found: dict) -> None:
    if not found:  # nothing fits the memory
        return
    spread = {name: (high - low) / middle for name, (low, middle, high) in found.items()}
    widest = max(spread, key=lambda name: spread[name])
    print(f"\nBetween the quartiles of a rate lie {np.median(list(spread.values())):.0%} of it at the median, ", end="")
    print(f"{spread[widest]:.0%} at most ({widest[0]}, {widest[1]} rows, {widest[2]}).")


def _cell(value: float | None) -> str:
    if value is None:
        return "out of memory"
    return "" if np.isnan(value) else f"{value:.3g}"
