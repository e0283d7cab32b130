"""Prediction of molecules in memory: batches of a store through a model, compared with plain PyTorch and the floor.

What ``step`` measures of one batch, of a stream of batches: on a CPU every core takes batches of its
own, and the batches are made from the store within the time.
"""

from __future__ import annotations

import argparse

import numpy as np
import torch

from benchmarks import eager
from benchmarks.report import figure
from benchmarks.step import MIXERS_ALONE, add_model_arguments, demo_of, matrix_rate, model_config, products, seconds
from graphslice.checkpoint import Checkpoint
from graphslice.config import ModelConfig, RunConfig
from graphslice.data.batch_loader import collate_rows
from graphslice.data.store import GraphStore
from graphslice.inference.predictor import Predictor
from graphslice.nn import GraphTransformer
from graphslice.tasks import regression_tasks


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_model_arguments(parser)
    parser.add_argument("--molecules", type=int, default=2048)


def run(options: argparse.Namespace) -> list[dict]:
    store, rows = demo_of(options.atoms)
    rows = np.resize(rows, options.molecules)
    figures = []
    for mixer in options.mixers or MIXERS_ALONE:
        figures += _predicted(model_config(mixer, options), store, rows, options)
    return figures


def _predicted(config: ModelConfig, store: GraphStore, rows: np.ndarray, options: argparse.Namespace) -> list[dict]:
    torch.manual_seed(0)
    weights = GraphTransformer(config).state_dict()
    predictor = Predictor(Checkpoint(RunConfig(model=config), regression_tasks(["y"]), weights), options.device)
    predictor.model.eval()

    def plain() -> None:
        with torch.inference_mode():
            for begin in range(0, len(rows), options.batch):
                batch = collate_rows(store, rows[begin : begin + options.batch])
                eager.standardised(predictor.model, batch.to(options.device)).cpu()

    functions = {"ours": lambda: predictor.predict_store(store, rows)}
    if config.mixer in eager.MIXERS:
        functions["plain"] = plain
    measure = matrix_rate(options.device, torch.float32)
    work = products(config, collate_rows(store, rows[:1])) * len(rows)
    taken: dict[str, list[float]] = {name: [] for name in functions}
    shares: list[float] = []
    for turn in range(-1, options.turns):
        for name, function in functions.items():
            before = measure()
            time_of = seconds(function, options.device)
            if turn >= 0:
                taken[name].append(time_of)
                if name == "ours":
                    shares.append(work / time_of / ((before + measure()) / 2))
    rate = len(rows) / float(np.median(taken["ours"]))
    figures = [
        figure(
            f"{config.mixer}: share of the floor", 100 * float(np.median(shares)), "%", comparison=f"{rate:,.0f} mol/s"
        )
    ]
    if "plain" in taken:
        ratio = float(np.median(np.divide(taken["plain"], taken["ours"])))
        figures.append(figure(f"{config.mixer}: rate", ratio, "x plain PyTorch"))
    return figures
