"""Fuzz GraphSlice with malformed inputs: ``python scripts/fuzz.py [TARGET ...] [--examples N] [--seed S]``.

Every external input must give a result or an error message of one line (InputError, MoleculeError, ValueError), never
another exception or an access out of bounds. The compiled code therefore runs with bounds checks
(``NUMBA_BOUNDSCHECK=1``; the first start compiles all of it) in a child process, and a crash of that is a finding too.
Inputs are numbered: ``--only`` runs a single one again and shows the traceback.
"""

from __future__ import annotations

import argparse
import faulthandler
import importlib
import mmap
import os
import random
import struct
import subprocess
import sys
import tempfile
import time
import traceback
from collections import Counter
from pathlib import Path

TARGETS = {
    "rdkit_pickle": "RDKit's binary molecules, and their renumbering",
    "store": "files of preprocessed datasets",
    "paths": "manually constructed molecules and batches",
    "checkpoint": "checkpoint files",
    "trees": "arrays of random forests, gradient boosting and kernel machines",
}
_MEMORY = 1 << 35  # address space of a process in bytes; more means that a size in the input was not checked


def fuzz(name: str, numbers: range, seed: int, folder: Path, progress=lambda number: None) -> tuple[Counter, list]:
    """Run some inputs of a target in this process.

    Returns:
        The counts of the outcomes (completed, rejected, failed), and ``(number, traceback)`` of each failed input.
    """
    from graphslice.chem.parse import MoleculeError
    from graphslice.errors import InputError

    run = importlib.import_module(f"fuzzing.{name}").target(folder)
    outcomes: Counter = Counter()
    findings: list[tuple[int, str]] = []
    for number in numbers:
        progress(number)
        try:
            run(random.Random(f"{name} {seed} {number}"))
            outcome = "completed"
        except Exception as error:
            outcome = "rejected"
            if type(error) not in (InputError, MoleculeError, ValueError) or "\n" in str(error):
                outcome = "failed"
                findings.append((number, traceback.format_exc()))
        outcomes[outcome] += 1
    return outcomes, findings


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("targets", nargs="*", metavar="TARGET", help=", ".join(TARGETS) + "; all by default")
    parser.add_argument("--examples", type=int, default=1000, help="number of inputs for each target (default: 1000)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", type=int, help="run only the input with this number")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    parser.add_argument("--first", type=int, default=0, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if unknown := set(options.targets) - set(TARGETS):
        parser.error(f"unknown target {sorted(unknown)[0]!r}: choose from {', '.join(TARGETS)}")
    if options.child:
        return _child(options)
    failures = 0
    for name in options.targets or TARGETS:
        failures += _supervise(name, options)
    return 1 if failures else 0


def _supervise(name: str, options: argparse.Namespace) -> int:
    """Run the inputs of a target in a child process, a new one after each crash; return the number of failures."""
    cache = Path(tempfile.gettempdir()) / f"graphslice-fuzz-{os.getuid() if hasattr(os, 'getuid') else 'user'}"
    environment = {**os.environ, "NUMBA_BOUNDSCHECK": "1", "NUMBA_CACHE_DIR": str(cache), "OMP_NUM_THREADS": "1"}
    first, end = (0, options.examples) if options.only is None else (options.only, options.only + 1)
    start, failures, total = time.perf_counter(), 0, end - first
    with tempfile.NamedTemporaryFile() as shared:
        shared.write(bytes(8))
        shared.flush()
        while first < end:
            command = [sys.executable, __file__, name, "--child", shared.name, "--seed", str(options.seed)]
            command += ["--first", str(first), "--examples", str(end)]
            process = subprocess.run(command, env=environment)
            if process.returncode in (0, 1):
                failures += process.returncode
                break
            (number,) = struct.unpack("<q", Path(shared.name).read_bytes())
            print(f"{name} {number}: the process ended with exit code {process.returncode}", flush=True)
            first, failures = number + 1, failures + 1
    print(f"{name}: {total:,} inputs in {time.perf_counter() - start:,.0f} s, seed {options.seed}", flush=True)
    return failures


def _child(options: argparse.Namespace) -> int:
    sys.path.insert(0, str(Path(__file__).parents[1]))
    import torch

    if len(range(options.first, options.examples)) == 1:
        faulthandler.enable()
    torch.set_num_threads(1)
    if os.name == "posix":
        import resource

        resource.setrlimit(resource.RLIMIT_AS, (_MEMORY, _MEMORY))
    (name,) = options.targets
    with open(options.child, "r+b") as file, tempfile.TemporaryDirectory() as folder:
        shared = mmap.mmap(file.fileno(), 8)
        numbers = range(options.first, options.examples)

        def progress(number: int) -> None:
            shared[:8] = struct.pack("<q", number)

        outcomes, findings = fuzz(name, numbers, options.seed, Path(folder), progress)
    seen: Counter = Counter()
    for number, text in findings:
        what = text.strip().splitlines()
        seen[what[-1][:100]] += 1
        if seen[what[-1][:100]] <= 3:
            print(f"{name} {number}: {text if len(numbers) == 1 else what[-1]}", flush=True)
    for what, count in seen.most_common():
        print(f"  {count:,} x {what}")
    print(f"{name}: " + ", ".join(f"{count:,} {outcome}" for outcome, count in sorted(outcomes.items())), flush=True)
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main())
