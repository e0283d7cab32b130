"""Where the time of a training step goes on one core: kernels of the model's program, Python and torch around it.

The kernels are timed by the clock of the processor, within the program; the rest by parts of the step. The molecules
are those of ``step --preset``.
"""

from __future__ import annotations

import argparse
import time
from collections import defaultdict
from itertools import pairwise

import numpy as np
import torch
from llvmlite import ir
from numba import njit, types
from numba.core import cgutils
from numba.extending import intrinsic

from benchmarks.report import figure
from benchmarks.step import batches_of_all_sizes
from graphslice.config import RunConfig
from graphslice.nn import GraphTransformer
from graphslice.program import run as program
from graphslice.program.simd.lanes import address_of, keep_alive

_PASSES = "the rest of forward and backward: path types, head, loss"
_PARTS = ("zero_grad", _PASSES, "clipping", "AdamW")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--preset", default="small")
    parser.add_argument("--turns", type=int, default=20)


@intrinsic
def _clock(typing):
    """The counter of the processor."""

    def generate(context, builder, signature, args):
        function = ir.FunctionType(ir.IntType(64), [])
        name = "llvm.readcyclecounter"
        return builder.call(cgutils.get_or_insert_function(builder.module, function, name), [])

    return types.int64(), generate


_call = program.call


@njit(nogil=True)
def _timed(kernels, counts, operands, steps, group, begin, end, spent):
    current = np.empty_like(operands)
    at = address_of(current)
    for first in range(begin, end, group):
        for i in range(operands.shape[0]):
            for k in range(operands.shape[1]):
                current[i, k] = operands[i, k] + first * steps[i, k]
        for i in range(operands.shape[0]):
            before = _clock()
            _call(kernels[i], counts[i], at + 8 * i * operands.shape[1], min(group, end - first))
            spent[i] += _clock() - before
    keep_alive(current)


def run(options: argparse.Namespace) -> list[dict]:
    torch.set_num_threads(1)
    whole = RunConfig.preset(options.preset)
    batches = batches_of_all_sizes(whole.trainer.batch_size)
    torch.manual_seed(0)
    model = GraphTransformer(whole.model)
    parameters = list(model.parameters())
    optimizer = torch.optim.AdamW(parameters, fused=True)
    of_parts: dict[str, float] = defaultdict(float)
    of_kernels: dict[str, float] = defaultdict(float)
    ticks = _ticks_per_second()

    def timed_part(part: program.Part, *arguments) -> None:
        names = [kernel.__name__ for kernel, _ in part.instructions]
        spent = np.zeros(len(names), np.int64)
        program._run = lambda *given: _timed(*given, spent)
        begin = time.perf_counter()
        untimed(part, *arguments)
        around = time.perf_counter() - begin - spent.sum() / ticks
        for name, cycles in zip(names, spent, strict=True):
            of_kernels[f"kernel {name}"] += cycles / ticks
        of_kernels["the program around them"] += around

    untimed, ran = program.Part.run, program._run
    program.Part.run = timed_part  # type: ignore[method-assign]
    try:
        for turn in range(-2, options.turns):
            if turn == 0:
                of_parts.clear()
                of_kernels.clear()
            for batch in batches:
                times = [time.perf_counter()]
                optimizer.zero_grad()
                times.append(time.perf_counter())
                model.standardised(batch).abs().mean().backward()
                times.append(time.perf_counter())
                torch.nn.utils.clip_grad_norm_(parameters, 5.0)
                times.append(time.perf_counter())
                optimizer.step()
                times.append(time.perf_counter())
                for name, (begin, end) in zip(_PARTS, pairwise(times), strict=True):
                    of_parts[name] += end - begin
    finally:
        program.Part.run, program._run = untimed, ran  # type: ignore[method-assign]
    steps = options.turns * len(batches)
    total = sum(of_parts.values())
    of_parts[_PASSES] -= sum(of_kernels.values())
    parts = {**of_kernels, **of_parts}
    parts = dict(sorted(parts.items(), key=lambda part: -part[1]))
    found = [figure("a step", 1e6 * total / steps, "us", comparison="100%")]
    return found + [
        figure(name, 1e6 * s / steps, "us", comparison=f"{100 * s / total:.1f}%") for name, s in parts.items()
    ]


def _ticks_per_second() -> float:
    clock = njit(lambda: _clock())
    clock()
    begin, first = time.perf_counter(), clock()
    time.sleep(0.3)
    return float((clock() - first) / (time.perf_counter() - begin))
