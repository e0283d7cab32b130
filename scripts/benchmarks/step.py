"""Training and inference of the model: share of the arithmetic floor, and rate compared with plain PyTorch.

One batch, or with ``--stream`` the prediction of molecules in memory, whose batches are collated within the time.

The floor is the time of the matrix products of the layers alone, at the rate of a large matrix
product measured in the same turn (training: three times the products of inference).
"""

import argparse
import time
from collections.abc import Callable
from dataclasses import replace
from itertools import islice

import numpy as np
import pandas as pd
import torch

from benchmarks import eager
from benchmarks.report import figure
from graphslice.batch import GraphBatch
from graphslice.config import GraphConfig, ModelConfig, RunConfig
from graphslice.data.batches import TrainBatches, collate_rows
from graphslice.data.featurize import parse
from graphslice.data.store import GraphStore
from graphslice.inference.predictor import Predictor
from graphslice.nn import GraphTransformer
from graphslice.runs.checkpoint import Checkpoint
from graphslice.system.machine import DEMO_CSV
from graphslice.system.threads import single_threaded_torch
from graphslice.tasks import regression_tasks

# Shares of the floor that the original code reached on a 2-core AMD EPYC: (training, inference).
REFERENCE = {
    ("slice-ascend", 256): (417 / 1257, 1415 / 3770),
    ("softmax", 256): (251 / 838, 1579 / 2510),
}
MIXERS_ALONE = ("slice-ascend", "softmax", "slice-max")
# Molecules of a batch and atoms of each, without a preset, and measurements of each figure.
BATCH, ATOMS, TURNS = 128, 18, 9


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--preset", help="its model and batch size, of molecules of 10 to 40 atoms; also on one core")
    parser.add_argument(
        "--stream", type=int, metavar="MOLECULES", help="predict so many molecules, in batches of a store"
    )
    parser.add_argument("--mixers", nargs="+", help="default: slice-ascend, softmax and slice-max, or the preset's")


def run(options: argparse.Namespace) -> list[dict]:
    store, rows = demo_of()
    if options.preset:
        whole = RunConfig.preset(options.preset)
        configs = [replace(whole.model, mixer=mixer) for mixer in options.mixers or [whole.model.mixer]]
        batches = batches_of_all_sizes(whole.trainer.batch_size)
    else:
        configs = [model_config(mixer) for mixer in options.mixers or MIXERS_ALONE]
        batches = [collate_rows(store, np.resize(rows, BATCH))]
    figures = []
    for config in configs:
        torch.manual_seed(0)
        model = GraphTransformer(config)
        if options.stream:
            figures += _stream(model, store, np.resize(rows, options.stream))
        else:
            figures += _steps(model, batches, options)
    return figures


def batches_of_all_sizes(size: int) -> list[GraphBatch]:
    """Eight batches of the demo set's molecules of 10 to 40 atoms, as training makes them."""
    store, _ = demo_of()
    rows = np.flatnonzero((store.sizes >= 10) & (store.sizes <= 40))
    made = TrainBatches(store.sizes[rows], size, seed=0)
    return [collate_rows(store, rows[indices]) for indices in islice(made, 8)]


def model_config(mixer: str) -> ModelConfig:
    dropouts = dict.fromkeys(("dropout", "input_dropout", "attention_dropout"), 0.1)
    return ModelConfig(mixer, layers=6, dim=256, heads=16, ffn_dim=256, readout="token", **dropouts)


def demo_of() -> tuple[GraphStore, np.ndarray]:
    """The demo set, and its rows of :data:`ATOMS` atoms."""
    store = GraphStore.from_arrays(*parse(pd.read_csv(DEMO_CSV)["smiles"].tolist(), GraphConfig())[:2])
    return store, np.flatnonzero(store.sizes == ATOMS)


def products(config: ModelConfig, batch: GraphBatch) -> float:
    """Floating-point operations of the layers' matrix products, forward."""
    rows = batch.path_types.shape[1] + 1
    projections = 4 if config.mixer in ("softmax", "galerkin", "fourier") else 2
    linear = rows * config.dim * (projections * config.dim + 2 * config.ffn_dim)
    maps = (2 if config.mixer == "softmax" else 1) * rows**2 * config.dim
    return 2.0 * len(batch) * config.layers * (linear + maps)


def matrix_rate(device: str, dtype: torch.dtype) -> Callable[[], float]:
    """A function that measures floating-point operations per second of a large matrix product."""
    size = 2048 if device == "cpu" else 8192
    a, b = torch.randn(2, size, size, device=device, dtype=dtype)

    def measure() -> float:
        return 2 * size**3 / seconds(lambda: a @ b, device)

    return measure


def seconds(function: Callable[[], object], device: str) -> float:
    if device != "cpu":
        torch.cuda.synchronize()
    begin = time.perf_counter()
    function()
    if device != "cpu":
        torch.cuda.synchronize()
    return time.perf_counter() - begin


def _steps(model: GraphTransformer, batches: list[GraphBatch], options: argparse.Namespace) -> list[dict]:
    functions = _functions(model, batches)
    if options.preset and torch.get_num_threads() > 1:
        functions |= {f"{name}, one core": _on_one_core(functions[name]) for name in list(functions)}
    work = sum(products(model.config, batch) for batch in batches)
    taken, shares = _interleaved_seconds(functions, work)
    return _figures(model.config, taken, shares, sum(map(len, batches)))


def _stream(model: GraphTransformer, store: GraphStore, rows: np.ndarray) -> list[dict]:
    """Predict molecules of a store in batches: on a CPU every core takes batches of its own, made within the time."""
    config, checkpoint = model.config, RunConfig(model=model.config)
    predictor = Predictor(Checkpoint(checkpoint, regression_tasks(["y"]), model.state_dict()), "cpu")
    predictor.model.eval()

    def plain() -> None:
        with torch.inference_mode():
            for begin in range(0, len(rows), BATCH):
                batch = collate_rows(store, rows[begin : begin + BATCH])
                eager.standardised(predictor.model, batch)

    functions: dict[str, Callable[[], object]] = {"inference of a stream": lambda: predictor.predict_store(store, rows)}
    if config.mixer in eager.MIXERS:
        functions["eager inference of a stream"] = plain
    work = products(config, collate_rows(store, rows[:1])) * len(rows)
    return _figures(config, *_interleaved_seconds(functions, work), len(rows))


def _functions(model: GraphTransformer, batches: list[GraphBatch]) -> dict[str, Callable[[], object]]:
    """What is timed: inference and training on all batches, and the same in plain PyTorch where that has the mixer."""
    parameters = list(model.parameters())

    def infer(forward: Callable[[GraphBatch], torch.Tensor]) -> Callable[[], None]:
        def step() -> None:
            model.eval()
            with torch.inference_mode():
                for batch in batches:
                    forward(batch)

        return step

    def train(forward: Callable[[GraphBatch], torch.Tensor]) -> Callable[[], None]:
        optimizer = torch.optim.AdamW(parameters, fused=True)

        def step() -> None:
            model.train()
            for batch in batches:
                optimizer.zero_grad()
                forward(batch).abs().mean().backward()
                torch.nn.utils.clip_grad_norm_(parameters, 5.0)
                optimizer.step()

        return step

    def as_in_a_run(step: Callable[[], None]) -> Callable[[], None]:
        def run() -> None:
            with single_threaded_torch():
                step()

        return run

    functions: dict[str, Callable[[], object]] = {
        "inference": infer(model.standardised),
        "training": as_in_a_run(train(model.standardised)),
    }
    if model.config.mixer in eager.MIXERS:
        functions["eager inference"] = infer(lambda batch: eager.standardised(model, batch))
        functions["eager training"] = train(lambda batch: eager.standardised(model, batch))
    return functions


def _on_one_core(function: Callable[[], object]) -> Callable[[], object]:
    cores = torch.get_num_threads()

    def run() -> object:
        torch.set_num_threads(1)
        try:
            return function()
        finally:
            torch.set_num_threads(cores)

    return run


def _interleaved_seconds(
    functions: dict[str, Callable[[], object]], work: float
) -> tuple[dict[str, list[float]], dict[str, list[float]]]:
    """The seconds of each function in each turn, and its share of the rate of a large matrix product around it."""
    measure = matrix_rate("cpu", torch.float32)
    measure_alone = _on_one_core(measure)
    taken: dict[str, list[float]] = {name: [] for name in functions}
    shares: dict[str, list[float]] = {name: [] for name in functions}
    for turn in range(-3, TURNS):
        for name, function in functions.items():
            rate = measure_alone if "one core" in name else measure
            before = rate()
            time_of = seconds(function, "cpu")
            if turn >= 0:
                taken[name].append(time_of)
                operations = work * (3 if "training" in name else 1)
                shares[name].append(operations / time_of / ((before + rate()) / 2))
    return taken, shares


def _figures(
    config: ModelConfig, taken: dict[str, list[float]], shares: dict[str, list[float]], molecules: int
) -> list[dict]:
    training, inference = REFERENCE.get((config.mixer, config.dim), (None, None))
    known = {"training": training, "inference": inference, "inference of a stream": inference}
    figures = []
    for name in (name for name in taken if not name.startswith("eager")):
        label = f"{config.mixer}, {name}"
        median, share = float(np.median(taken[name])), float(np.median(shares[name]))
        comparison = f"{molecules / median:,.0f} molecules/s"
        figures.append(figure(f"{label}: share of the floor", 100 * share, "%", comparison=comparison))
        if "eager " + name in taken:
            ratios = np.divide(taken["eager " + name], taken[name])
            figures.append(figure(f"{label}: rate", float(np.median(ratios)), "x plain PyTorch"))
        if known.get(name):
            comparison = f"its share: {100 * known[name]:.0f}%"
            figures.append(figure(f"{label}: share", share / known[name], "x the original's", comparison=comparison))
        if (alone := f"{name}, one core") in taken:
            ratios = np.divide(taken[alone], taken[name])
            figures.append(
                figure(f"{label}: rate", float(np.median(ratios)), f"x one core, on {torch.get_num_threads()}")
            )
    return figures
