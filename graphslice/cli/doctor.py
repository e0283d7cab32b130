"""``graphslice doctor``."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from jsonargparse import ArgumentParser, Namespace
from rich.console import Console
from rich.table import Table

from graphslice.system.machine import default_device

if TYPE_CHECKING:
    from graphslice.doctor.checks import OperatorCheck
    from graphslice.doctor.diagnosis import Diagnosis

MODULE = "graphslice.doctor.diagnosis"
EXAMPLES = "--device cpu", "--json"


def add_arguments(parser: ArgumentParser, arguments: list[str]) -> None:
    parser.add_argument("--device", help="cpu or cuda (default: a GPU if there is one)")


def run(options: Namespace, arguments: list[str]) -> dict[str, Any]:
    """Print hardware and operator checks; the exit code is 1 if there are ``problems``."""
    from graphslice.doctor.diagnosis import Diagnosis, check_model, check_operators, describe_machine
    from graphslice.inference.torch_networks import torch_device

    device = torch_device(options.device or default_device())
    console, errors = Console(width=None if sys.stdout.isatty() else 120), Console(stderr=True)
    found = Diagnosis(describe_machine(), str(device))
    _print_machine(found.machine, console)
    with errors.status("") as status:

        def progress(what: str) -> None:
            # The checks take minutes where kernels must be compiled. A status is invisible without a terminal.
            if errors.is_terminal:
                status.update(f"checking {what}")
            else:
                errors.out(f"checking {what}", highlight=False)

        found.operators = check_operators(device, progress)
        _print_operators(found, console)
        progress("model")
        found.faults = check_model(device)
    for problem in found.problems:
        console.out(f"problem: {problem}", highlight=False)
    if not found.problems:
        console.print("all checks passed", highlight=False)
    return found.to_dict()


def _print_machine(machine: dict[str, Any], console: Console) -> None:
    about = Table(show_header=False, box=None)
    for name, value in machine.items():
        if name != "gpus":
            about.add_row(name, "none" if value is None else str(value))
    for gpu in machine["gpus"]:
        memory = gpu["memory_bytes"] / 2**30
        about.add_row("GPU", f"{gpu['name']}, capability {gpu['capability']}, {memory:.0f} GiB")
    console.print(about)


def _print_operators(found: Diagnosis, console: Console) -> None:
    dtypes = list(dict.fromkeys(one.dtype for one in found.operators))
    title = f"Operators on {found.device}: backend, largest difference, speed over torch"
    operators = Table("operator", *dtypes, title=title)
    for name in dict.fromkeys(one.operator for one in found.operators):
        cells = {one.dtype: _cell(one) for one in found.operators if one.operator == name}
        operators.add_row(name, *(cells.get(dtype, "") for dtype in dtypes))
    console.print(operators)


def _cell(check: OperatorCheck) -> str:
    if check.problem:
        return f"{check.backend}: FAILS"
    if check.error is None:
        return check.backend
    return f"{check.backend}, {check.error:.0e}, {check.speed:.1f} x"
