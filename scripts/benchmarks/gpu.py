"""A GPU compared with what its memory and matrix units could do: the sort, and a training step by kernels; what
trainings reached, and how fast their models predict. ``scripts/gpu_check.sh`` runs it.

Parts: ``sort``, ``step``, ``runs``. A part that fails is recorded with its error, since time on a GPU is scarce.
"""

import argparse
import re
import subprocess
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import torch

from benchmarks.report import figure
from benchmarks.step import demo_of, matrix_rate, products, seconds
from graphslice.batch import GraphBatch
from graphslice.config import ModelConfig, RunConfig
from graphslice.data.batches import collate_rows
from graphslice.nn import GraphTransformer
from graphslice.ops import aggregate, column_sort

#: Molecules of PCQM4Mv2's test-challenge split, whose predictions OGB-LSC scores.
TEST_CHALLENGE = 147_432
#: Kernels of a step by a regular expression of their names; the others are fused element-wise operations and copies.
KINDS = {
    "products": r"gemm|cutlass|nvjet|xmma|splitK",
    "sort": r"_(un)?sort_kernel",
    "optimiser and clipping": r"multi_tensor|adam|norm_kernel",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--parts", nargs="+", default=["sort", "step"], choices=list(PARTS))
    parser.add_argument("--runs", nargs="+", type=Path, default=[], help="run directories; the first one predicts")
    parser.add_argument("--molecules", type=Path, help="table whose molecules it predicts")
    parser.add_argument("--dry", action="store_true", help="tiny sizes on the CPU: shows that the parts run")


def run(options: argparse.Namespace) -> list[dict]:
    figures = []
    for part in options.parts:
        try:
            for line in PARTS[part](options):
                print(line, file=sys.stderr, flush=True)  # kept if the time runs out
                figures.append(line)
        except Exception as error:
            traceback.print_exc()
            figures.append(figure(f"{part}: failed", float("nan"), "", comparison=f"{type(error).__name__}: {error}"))
    return figures


def _device(options: argparse.Namespace) -> str:
    return "cpu" if options.dry else "cuda"


def _microseconds(function: Callable[[], object], device: str) -> float:
    """Median time of a function on the device alone: replays of a CUDA graph, which have no launches by Python."""
    if device == "cpu":
        return 1e6 * seconds(function, device)
    from triton.testing import do_bench_cudagraph

    return 1e3 * do_bench_cudagraph(function, rep=50, return_mode="median")


def _bandwidth(device: str) -> float:
    """Bytes per second, read and written, of a large copy."""
    source = torch.empty(1 << (16 if device == "cpu" else 30), dtype=torch.uint8, device=device)
    copy = torch.empty_like(source)
    return 2 * source.numel() / (1e-6 * _microseconds(lambda: copy.copy_(source), device))


# --- the sort ---------------------------------------------------------------------------------------


def _sorts(options: argparse.Namespace) -> Iterator[dict]:
    device = _device(options)
    bandwidth = _bandwidth(device)
    yield figure("copy", 1e-12 * bandwidth, "TB/s")
    batch, channels, heads = (2, 32, 4) if options.dry else (1024, 768, 32)
    for rows, dtype in [(24, torch.float32), *((rows, torch.bfloat16) for rows in (24, 16, 32, 64, 128))]:
        x = torch.randn(batch, rows, channels, device=device, dtype=dtype)
        floor = 1e6 * x.numel() * (2 * dtype.itemsize + 1) / bandwidth
        yield from _sort_figures(x, floor, f"column_sort, {_name(x)}")
    v = torch.randn(batch, 24, channels, device=device, dtype=torch.bfloat16)
    attn_weights = torch.softmax(torch.randn(batch, heads, 24, 24, device=device), -1).bfloat16()
    yield from _product_figures(attn_weights, v, bandwidth, options)


def _name(x: torch.Tensor) -> str:
    return f"{' x '.join(map(str, x.shape))}, {str(x.dtype).removeprefix('torch.')}"


def _passes(function: Callable[..., torch.Tensor], *tensors: torch.Tensor) -> dict[str, Callable[[], object]]:
    leaves = [tensor.clone().requires_grad_() for tensor in tensors]
    upstream = torch.randn_like(tensors[-1])

    def forward() -> object:
        with torch.no_grad():
            return function(*tensors)

    return {
        "forward": forward,
        "forward and backward": lambda: torch.autograd.grad(function(*leaves), leaves, upstream),
    }


def _sort_figures(x: torch.Tensor, floor: float, name: str) -> Iterator[dict]:
    """Compare with the faster of torch's sorts: before a correction of May 2026 the stable one was slow."""
    plain = [
        _passes(lambda x, stable=stable: torch.sort(x, dim=1, stable=stable).values, x) for stable in (True, False)
    ]
    for step, function in _passes(column_sort, x).items():
        ours = _microseconds(function, x.device.type)
        theirs = min(_microseconds(sort[step], x.device.type) for sort in plain)
        comparison = f"{theirs / ours:.3g} x the rate of torch.sort, stable or not, of torch {torch.__version__}"
        if step == "forward":
            comparison += f"; floor {floor:.0f}"
        yield figure(f"{name}: {step}", ours, "us", comparison=comparison)


def _product_figures(
    attn_weights: torch.Tensor, v: torch.Tensor, bandwidth: float, options: argparse.Namespace
) -> Iterator[dict]:
    lengths = torch.full((len(v),), v.shape[1], device=v.device)

    def sorted_product(attn_weights: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return column_sort(aggregate(attn_weights, v, 0.1), lengths)

    function = sorted_product if options.dry else torch.compile(sorted_product, dynamic=False)
    # Bytes that any program moves: P and V, and their gradients and that of the result; result and rows once each.
    of_p, of_v = attn_weights.nbytes, v.nbytes
    least = {"forward": of_p + 2 * of_v, "forward and backward": 3 * of_p + 6 * of_v + v.numel()}
    goals = {"forward": "<= 75", "forward and backward": "<= 195"}
    for step, call in _passes(function, attn_weights, v).items():
        comparison = f"floor {1e6 * least[step] / bandwidth:.0f}"
        value = _microseconds(call, v.device.type)
        yield figure(f"Sort_col(P V), {_name(v)}: {step}", value, "us", goal=goals[step], comparison=comparison)


# --- a training step --------------------------------------------------------------------------------


def _steps(options: argparse.Namespace) -> Iterator[dict]:
    device, config = _device(options), RunConfig.preset("pcqm4m-slice").model
    if options.dry:
        config = replace(config, layers=1, dim=32, heads=4, ffn_dim=32)
    store, _ = demo_of()
    rows = np.flatnonzero((store.sizes >= 10) & (store.sizes <= 23))
    bandwidth, rate = _bandwidth(device), matrix_rate(device, torch.float32 if options.dry else torch.bfloat16)()
    yield figure("matrix product", 1e-12 * rate, "TFLOP/s")
    for size in (4,) if options.dry else (256, 1024):
        batch = collate_rows(store, np.resize(rows, size), multiple=8).to(device)
        torch.manual_seed(0)
        model = GraphTransformer(config).to(device).train()
        if not options.dry:
            model.compile_blocks(size, mode="reduce-overhead")
        yield from _step_figures(model, batch, {"bandwidth": bandwidth, "rate": rate})


def _training_step(model: GraphTransformer, batch: GraphBatch) -> Callable[[], None]:
    """A step as that of the training loop."""
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    device = batch.lengths.device.type

    def step() -> None:
        optimizer.zero_grad()
        torch.compiler.cudagraph_mark_step_begin()
        with torch.autocast(device, torch.bfloat16, cache_enabled=False):
            loss = model.standardised(batch).abs().mean()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 5.0)
        optimizer.step()

    return step


def _step_figures(model: GraphTransformer, batch: GraphBatch, ceilings: dict[str, float]) -> Iterator[dict]:
    device, name = batch.lengths.device.type, f"step, batch {len(batch)}"
    step = _training_step(model, batch)
    for _ in range(1 if device == "cpu" else 5):
        step()
    if device == "cuda":
        torch.cuda.reset_peak_memory_stats()
    median = float(np.median([seconds(step, device) for _ in range(1 if device == "cpu" else 20)]))
    yield figure(name, 1e3 * median, "ms", comparison=f"{len(batch) / median:,.0f} molecules/s")
    if device == "cuda":
        yield figure(f"{name}: peak memory", torch.cuda.max_memory_allocated() / 2**20, "MiB")
    floors = step_floors(model.config, batch, sum(p.numel() for p in model.parameters()), ceilings)
    times, launches = _kernels(step, device)
    kinds: Counter[str] = Counter()
    for kernel, microseconds in times.items():
        kinds[next((kind for kind, pattern in KINDS.items() if re.search(pattern, kernel)), "others")] += microseconds
    kinds["without a kernel"] = max(0.0, 1e6 * median - sum(times.values()))
    for kind, microseconds in kinds.most_common():
        floor = f"floor {floors[kind]:.0f}" if kind in floors else ""
        yield figure(f"{name}: {kind}", microseconds, "us", comparison=floor)
    for kernel, microseconds in times.most_common(20):
        yield figure(f"{name}: {kernel[:90]}", microseconds, "us", comparison=f"{launches[kernel]} launches")


def step_floors(config: ModelConfig, batch: GraphBatch, parameters: int, ceilings: dict[str, float]) -> dict:
    """Microseconds of the parts of a step in bf16 that its arithmetic and its bytes allow.

    The sort reads and writes a value of two bytes and the number of its row, forward and backward. AdamW reads
    parameter, gradient and two moments of four bytes, and writes three; clipping reads the gradients, and scales them.
    """
    values = len(batch) * (batch.path_types.shape[1] + 1) * config.dim * config.layers
    return {
        "products": 1e6 * 3 * products(config, batch) / ceilings["rate"],
        "sort": 1e6 * 2 * 5 * values / ceilings["bandwidth"],
        "optimiser and clipping": 1e6 * (28 + 12) * parameters / ceilings["bandwidth"],
    }


def _kernels(step: Callable[[], None], device: str, steps: int = 3) -> tuple[Counter[str], Counter[str]]:
    """Microseconds and launches of every kernel in a step; on a CPU, of every operation."""
    from torch.autograd import DeviceType
    from torch.profiler import ProfilerActivity, profile

    kind = {"cpu": ProfilerActivity.CPU, "cuda": ProfilerActivity.CUDA}[device]
    with profile(activities=[kind]) as profiler:
        for _ in range(steps):
            step()
        if device == "cuda":
            torch.cuda.synchronize()
    times, launches = Counter[str](), Counter[str]()
    for event in profiler.events():
        if event.device_type == (DeviceType.CUDA if device == "cuda" else DeviceType.CPU):
            times[event.name] += event.time_range.elapsed_us() / steps
            launches[event.name] += 1
    return times, Counter({name: round(count / steps) for name, count in launches.items()})


# --- trainings --------------------------------------------------------------------------------------


def _trainings(options: argparse.Namespace) -> Iterator[dict]:
    for folder in options.runs:
        scores = pd.read_csv(next(folder.glob("logs/*/metrics.csv"))).dropna(subset=["seconds"])
        for epoch, minutes, mae in zip(scores["epoch"], scores["seconds"] / 60, scores["val_mae"], strict=True):
            label = f"{folder.name}: validation MAE after epoch {int(epoch) + 1}"
            yield figure(label, mae, "eV", comparison=f"{minutes:.2f} minutes")
    if options.runs and options.molecules is not None:
        yield _prediction(options)


def _prediction(options: argparse.Namespace) -> dict:
    """From SMILES to file, without the start of the command: the difference of all molecules and an eighth."""
    molecules = pd.read_csv(options.molecules, usecols=["smiles"])
    sizes, taken = (len(molecules) // 8, len(molecules)), []
    with tempfile.TemporaryDirectory() as folder:
        for size in sizes:
            table, out = Path(folder, f"{size}.csv"), Path(folder, f"out-{size}.csv")
            molecules.head(size).to_csv(table, index=False)
            begin = time.perf_counter()
            command = [sys.executable, "-m", "graphslice", "predict", options.runs[0], table, "-o", out]
            subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
            taken.append(time.perf_counter() - begin)
    rate = (sizes[1] - sizes[0]) / (taken[1] - taken[0]) if taken[1] > taken[0] else float("nan")
    comparison = f"{TEST_CHALLENGE:,} molecules in {TEST_CHALLENGE / rate:,.0f} s; all with the start: {taken[1]:.1f} s"
    return figure(f"{options.runs[0].name}: prediction", rate, "molecules/s", comparison=comparison)


PARTS = {"sort": _sorts, "step": _steps, "runs": _trainings}
