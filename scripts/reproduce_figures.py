"""The papers' figures, drawn again beside their own numbers.

``python scripts/reproduce_figures.py smoothing|speed|spectra``

smoothing   Sliceformer, Fig. 2: the elements of a softmax become alike as there are more of them
speed       Sliceformer, Table 3: steps a second and peak memory for sequences of 1K to 4K rows
spectra     Sliceformer, Fig. 4, and CSP, Fig. 3: singular values of what the mixers of trained models put out

Each prints a table and writes a figure to --out.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import torch
from matplotlib.figure import Figure

from graphslice.machine import machine, peak_memory
from graphslice.nn.mixers import MIXERS

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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parsers = parser.add_subparsers(dest="figure", required=True)
    smoothing = parsers.add_parser("smoothing", help="the softmax against N")
    smoothing.add_argument("--trials", type=int, default=100)
    speed = parsers.add_parser("speed", help="rate and memory against N")
    speed.add_argument("--mixers", nargs="+", default=list(MIXERS))
    speed.add_argument("--rows", nargs="+", type=int, default=list(ROWS))
    speed.add_argument("--batch", type=int, help="sequences of a step (default: 1 on a CPU, 32 on a GPU)")
    speed.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    speed.add_argument("--steps", type=int, default=3)
    spectra = parsers.add_parser("spectra", help="singular values by layer")
    spectra.add_argument("runs", nargs="+", type=Path, help="run folders; each is named by its mixer")
    spectra.add_argument("--molecules", type=int, default=100)
    for part in (smoothing, speed, spectra):
        part.add_argument("--out", type=Path, default=Path("docs/figures"))
    one = parsers.add_parser("one-speed")  # one measurement in a process of its own, for its peak memory
    one.add_argument("settings")
    options = parser.parse_args()
    if options.figure == "one-speed":
        print(json.dumps(one_speed(**json.loads(options.settings))))
        return
    options.out.mkdir(parents=True, exist_ok=True)
    print(" | ".join(f"{name} {value}" for name, value in machine().items()) + "\n")
    {"smoothing": draw_smoothing, "speed": draw_speed, "spectra": draw_spectra}[options.figure](options)


def panels(count: int, width: float = 4.2, height: float = 3.6):
    figure = Figure(figsize=(width * count, height), layout="constrained")
    return figure, [figure.add_subplot(1, count, i + 1) for i in range(count)]


# --- Fig. 2 -------------------------------------------------------------------------------------


def draw_smoothing(options: argparse.Namespace) -> None:
    """The deviation of the elements of ``Softmax(x)``, x standard normal, and of a sort of x."""
    generator = torch.Generator().manual_seed(0)
    sizes = [10**k for k in range(1, 7)]
    found, theory = [], np.sqrt(np.e - 1)  # of exp(x) over its mean: sqrt(e^2 - e) / sqrt(e)
    print("| N | std of Softmax(x) | times N | theory, sqrt(e - 1) | std of Sort(x) |\n|---|---|---|---|---|")
    for size in sizes:
        deviations, kept = [], []
        for _ in range(options.trials):
            x = torch.randn(size, generator=generator, dtype=torch.float64)
            deviations.append(torch.softmax(x, 0).std().item())
            kept.append(x.sort().values.std().item())
        found.append((np.mean(deviations), np.std(deviations), np.mean(kept)))
        mean = found[-1][0]
        print(f"| {size:,} | {mean:.3g} | {mean * size:.3f} | {theory:.3f} | {found[-1][2]:.3f} |")
    print("\nThe paper draws it from 1e-1 at N = 10 down to 1e-6 at N = 1,000,000.")
    figure, (axes,) = panels(1)
    means, spreads, sorts = np.array(found).T
    axes.errorbar(sizes, means, spreads, marker=".", label="softmax")
    axes.plot(sizes, sorts, marker=".", label="sort")
    axes.plot(sizes, theory / np.array(sizes), ":", color="grey", label="sqrt(e - 1) / N")
    axes.set(xscale="log", yscale="log", xlabel="N", ylabel="standard deviation of the elements")
    axes.legend()
    figure.savefig(options.out / "smoothing.png", dpi=120)


# --- Table 3 ------------------------------------------------------------------------------------


def one_speed(mixer: str, rows: int, batch: int, device: str, steps: int) -> dict:
    """Steps a second, and GiB of training, of LRA's text model: four layers, C = 256, H = 4, feed-forward 1,024."""
    from graphslice.config import ModelConfig
    from graphslice.nn.block import AddNorm, Block
    from graphslice.nn.context import AttentionContext

    torch.manual_seed(0)
    config = ModelConfig(mixer=mixer, layers=4, dim=256, heads=4, ffn_dim=1024, dropout=0.0, attention_dropout=0.0)
    blocks = torch.nn.ModuleList(Block(config, layer) for layer in range(1, 5)).to(device)
    norm = AddNorm(256).to(device)
    x = torch.randn(batch, rows, 256, device=device)
    context = AttentionContext(torch.full((batch,), rows, device=device), rows)
    optimizer = torch.optim.AdamW(blocks.parameters(), fused=True)

    def step(training: bool) -> None:
        with torch.set_grad_enabled(training):
            h, y = x, None
            for block in blocks:
                h, y = block(h, y, context)
            normed = norm(h, y)[1]
            if training:
                optimizer.zero_grad()
                normed[:, 0].square().mean().backward()
                optimizer.step()

    def wait() -> None:
        if device == "cuda":
            torch.cuda.synchronize()

    def rate(training: bool) -> float | None:
        blocks.train(training)
        times = []
        try:
            for _ in range(steps + 1):
                begin = time.perf_counter()
                step(training)
                wait()
                times.append(time.perf_counter() - begin)
        except torch.OutOfMemoryError:
            optimizer.zero_grad()
            return None
        return 1 / float(np.median(times[1:]))

    before = 0 if device == "cuda" else peak_memory()
    found = {"training": rate(True)}
    found["memory"] = (peak_memory(device) - before) / 2**30 if found["training"] else None
    return found | {"inference": rate(False)}


def draw_speed(options: argparse.Namespace) -> None:
    batch = options.batch or (32 if options.device == "cuda" else 1)
    print(f"{options.device}, batch {batch}; four layers, C = 256, H = 4, feed-forward 1,024\n")
    found: dict[str, dict[str, list[float | None]]] = {}
    for mixer in options.mixers:
        found[mixer] = {"training": [], "inference": [], "memory": []}
        for rows in options.rows:
            settings = {"mixer": mixer, "rows": rows, "batch": batch, "device": options.device, "steps": options.steps}
            got = _in_a_process(settings) or {}
            for name, values in found[mixer].items():
                values.append(got.get(name))
    heads = [f"{n // 1024}K" for n in options.rows]
    print("| mixer | training, steps/s at " + " | ".join(heads) + " | inference at " + " | ".join(heads), end="")
    print(" | training's memory, GiB, at " + " | ".join(heads) + " |\n|---|" + "---|" * (3 * len(heads)))
    for mixer, parts in found.items():
        print(f"| `{mixer}` | " + " | ".join(_cell(v) for part in parts.values() for v in part) + " |")
    for mixer, parts in PAPER.items():
        known = [
            [values[ROWS.index(n)] if n in ROWS else float("nan") for n in options.rows] for values in parts.values()
        ]
        print(f"| {mixer}, the paper | " + " | ".join(_cell(v) for values in known for v in values) + " |")
    figure, axes = panels(3)
    for mixer, parts in found.items():
        for panel, (name, values) in zip(axes, parts.items(), strict=True):
            panel.plot(options.rows, [np.nan if v is None else v for v in values], marker=".", label=mixer)
            panel.set(xlabel="rows", yscale="log")
            panel.set_title({"memory": "training's peak memory, GiB"}.get(name, f"{name}, steps a second"))
    axes[0].legend(fontsize=7)
    figure.savefig(options.out / f"speed-{options.device}.png", dpi=120)


def _in_a_process(settings: dict) -> dict | None:
    """A measurement, or None where the memory does not suffice."""
    command = [sys.executable, __file__, "one-speed", json.dumps(settings)]
    done = subprocess.run(command, capture_output=True, text=True, env=os.environ)
    if done.returncode:
        if "out of memory" in done.stderr.lower() or done.returncode == -9:
            return None
        raise SystemExit(done.stderr)
    return json.loads(done.stdout.splitlines()[-1])


def _cell(value: float | None) -> str:
    if value is None:
        return "out of memory"
    return "" if np.isnan(value) else f"{value:.3g}"


# --- Fig. 4 -------------------------------------------------------------------------------------


def draw_spectra(options: argparse.Namespace) -> None:
    """Mean over molecules of 20 rows or more: each singular value over the largest, and the effective rank."""
    import csv

    import graphslice as gs
    from graphslice.analysis import rank_one_residual, singular_spectrum, trace
    from graphslice.resources import DEMO_CSV

    with open(DEMO_CSV) as file:
        graphs = [gs.smiles_to_graph(row["smiles"]) for row in csv.DictReader(file)]
    graphs = [graph for graph in graphs if 19 <= graph.num_atoms <= 40][: options.molecules]
    figure, axes = panels(2, 5)
    print(f"{len(graphs)} molecules of the demo set, 20 to 41 rows\n")
    print("| run | effective rank of the mixer's output, by layer | residual of the rows, by depth |\n|---|---|---|")
    for folder in options.runs:
        predictor = gs.load(folder, "cpu")
        name = predictor.config.model.mixer
        spectra, ranks, residuals = [], [], []
        for graph in graphs:
            seen = trace(predictor, graph)
            layers = [singular_spectrum(mixed) for mixed in seen.mixed]
            shares = [values / values.sum() for values in layers]
            ranks.append([np.exp(-(s[s > 0] * np.log(s[s > 0])).sum()) for s in shares])
            spectra.append([values[:20] / values[0] for values in layers])
            residuals.append([rank_one_residual(rows) for rows in seen.rows])
        mean = np.exp(np.log(np.maximum(spectra, 1e-6)).mean(axis=(0, 1)))
        axes[0].plot(range(1, 21), mean, marker=".", label=name)
        axes[1].plot(np.mean(residuals, axis=0), marker=".", label=name)
        by_layer = " ".join(f"{rank:.1f}" for rank in np.mean(ranks, axis=0))
        print(f"| `{name}` | {by_layer} | {' '.join(f'{r:.2f}' for r in np.mean(residuals, axis=0))} |")
    print("\nThe papers draw the spectra of sorts decaying far more slowly than attention's (CIFAR-10, ImageNet-1k).")
    axes[0].set(yscale="log", xlabel="singular value", ylabel="share of the largest, mean over layers")
    axes[1].set(xlabel="blocks passed", ylabel="rank-1 residual", ylim=(0, None))
    axes[0].legend(fontsize=7)
    figure.savefig(options.out / "spectra.png", dpi=120)


if __name__ == "__main__":
    main()
