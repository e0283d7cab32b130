"""Measure GraphSlice: ``python scripts/benchmark.py BENCHMARK [--json]``; ``--help`` lists the benchmarks.

Every figure is measured in the same run as the one that it is compared with, since ratios vary less than times
between machines and over time. ``--json`` prints one line of JSON instead of the table.
"""

import argparse
import importlib
import json
import sys

import graphslice.cli.main  # noqa: F401  # first: it sets how OpenMP's threads wait, as for the commands
from benchmarks.report import print_table
from graphslice.system.machine import hardware_info

BENCHMARKS = {
    "shards": "prediction of millions of rows in shards: killed, on Ray, and as jobs of an array",
    "sort": "column_sort compared with torch.sort on a CPU",
    "gpu": "sort, training step, trainings and prediction on a GPU: for scripts/gpu_check.sh",
    "step": "training and inference of the model compared with plain PyTorch and the arithmetic floor",
    "tables": "GraphSlice and chemprop on TDC's ADMET group and MoleculeNet; makes docs/benchmarks.md",
    "intervals": "coverage of intervals and sets on TDC's tables, errors by distance; makes docs/intervals.md",
    "rate": "rate of the command predict compared with chemprop; makes a table of docs/benchmarks.md",
    "transfer": "pretrained networks on training rows of TDC's tables; makes a table of docs/log.md",
    "adme": "the packaged model adme compared with a model for each endpoint; makes docs/adme.md",
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parsers = parser.add_subparsers(dest="benchmark", required=True)
    modules = {}
    for name, text in BENCHMARKS.items():
        modules[name] = importlib.import_module(f"benchmarks.{name}")
        subparser = parsers.add_parser(name, help=text, description=modules[name].__doc__)
        subparser.add_argument("--json", action="store_true", help="print one line of JSON")
        modules[name].add_arguments(subparser)
    options = parser.parse_args()
    figures = modules[options.benchmark].run(options)
    if figures is None:  # the benchmark stores its results itself
        return
    if options.json:
        json.dump({"benchmark": options.benchmark, **hardware_info(), "figures": figures}, sys.stdout)
        print()
    else:
        print(" | ".join(f"{name} {value}" for name, value in hardware_info().items()))
        print_table(figures)


if __name__ == "__main__":
    main()
