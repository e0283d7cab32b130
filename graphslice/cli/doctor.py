"""``graphslice doctor``."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from jsonargparse import ArgumentParser, Namespace
from rich.console import Console
from rich.table import Table

from graphslice.system.console import standard_error
from graphslice.system.machine import default_device

if TYPE_CHECKING:
    from graphslice.doctor.checks import OperatorCheck

MODULE = "graphslice.doctor.diagnosis"
EXAMPLES = "--device cpu", "--json"


def add_arguments(parser: ArgumentParser, arguments: list[str]) -> None:
    parser.add_argument("--device", help="cpu or cuda (default: a GPU if there is one)")


def run(options: Namespace, arguments: list[str]) -> dict[str, Any]:
    """Print hardware and operator checks; the exit code is 1 if there are ``problems``."""
    from graphslice.doctor.diagnosis import Diagnosis, check_model, check_operators, describe_machine
    from graphslice.inference.torch_networks import torch_device

    device = torch_device(options.device or default_device())
    console = Console(width=None if sys.stdout.isatty() else 120)
    found = Diagnosis(describe_machine(), str(device))
    about = Table(show_header=False, box=None)
    for name, value in found.machine.items():
        if name != "gpus":
            about.add_row(name, "none" if value is None else str(value))
    for gpu in found.machine["gpus"]:
        memory = gpu["memory_bytes"] / 2**30
        about.add_row("GPU", f"{gpu['name']}, capability {gpu['capability']}, {memory:.0f} GiB")
    console.print(about)

    def progress(what: str) -> None:  # the checks take minutes where kernels must be compiled
        standard_error().out(f"checking {what}", highlight=False)

    found.operators = check_operators(device, progress)
    console.print(_table(found.operators, found.device))
    progress("model")
    found.faults = check_model(device)
    for problem in found.problems:
        console.out(f"problem: {problem}", highlight=False)
    if not found.problems:
        console.print("all checks passed", highlight=False)
    return found.to_dict()


def _table(checks: list[OperatorCheck], device: str) -> Table:
    table = Table("operator", "dtype", "backend", "largest difference", "speed over torch", title=f"On {device}")
    for one in checks:
        figures = ["FAILS"] if one.problem else [] if one.error is None else [f"{one.error:.0e}", f"{one.speed:.1f} x"]
        table.add_row(one.operator, one.dtype, one.backend, *figures)
    return table
