"""Fuzz GraphSlice with malformed inputs: ``python scripts/fuzz.py [TARGET ...] [--examples N] [--seed S]``.

Every external input must give a result or an error message of one line (InputError, MoleculeError, ValueError), never
another exception or an access out of bounds. The compiled code therefore runs with bounds checks
(``NUMBA_BOUNDSCHECK=1``; the first start compiles all of it) in a child process, and a crash of that is a finding too.
Inputs are numbered: ``--only`` runs a single one again and shows the traceback.
"""

import argparse
import faulthandler
import importlib
import os
import random
import sys
import tempfile
import time
import traceback
from collections import Counter
from multiprocessing import get_context
from pathlib import Path

TARGETS = {
    "rdkit_pickle": "RDKit's binary molecules, and their renumbering",
    "store": "files of preprocessed datasets",
    "paths": "manually constructed molecules and batches",
    "trees": "files of random forests, gradient boosting and kernel machines",
}
_MEMORY = 1 << 35  # address space of a process in bytes; more means that a size in the input was not checked


def fuzz(name: str, numbers: range, seed: int, folder: Path, progress=lambda number: None) -> tuple[Counter, list]:
    """Run some inputs of a target in this process; return counts of the outcomes, and the failures."""
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
    options = parser.parse_args()
    if unknown := set(options.targets) - set(TARGETS):
        parser.error(f"unknown target {sorted(unknown)[0]!r}: choose from {', '.join(TARGETS)}")
    cache = Path(tempfile.gettempdir()) / f"graphslice-fuzz-{os.getuid() if hasattr(os, 'getuid') else 'user'}"
    # Read by the child processes, when they import numba.
    os.environ |= {"NUMBA_BOUNDSCHECK": "1", "NUMBA_CACHE_DIR": str(cache), "OMP_NUM_THREADS": "1"}
    sys.path.insert(0, str(Path(__file__).parents[1]))
    numbers = range(options.examples) if options.only is None else range(options.only, options.only + 1)
    failures = sum(_supervise(name, numbers, options.seed) for name in options.targets or TARGETS)
    return 1 if failures else 0


def _supervise(name: str, numbers: range, seed: int) -> int:
    """Run the inputs of a target in a child process, a new one after each crash; return the number of failures."""
    start, failures, total = time.perf_counter(), 0, len(numbers)
    context = get_context("spawn")
    while numbers:
        current = context.Value("q", numbers.start, lock=False)
        process = context.Process(target=_child, args=(name, numbers, seed, current))
        process.start()
        process.join()
        if process.exitcode in (0, 1):
            failures += process.exitcode
            break
        print(f"{name} {current.value}: the process ended with exit code {process.exitcode}", flush=True)
        numbers, failures = range(current.value + 1, numbers.stop), failures + 1
    print(f"{name}: {total:,} inputs in {time.perf_counter() - start:,.0f} s, seed {seed}", flush=True)
    return failures


def _child(name: str, numbers: range, seed: int, current) -> None:
    """Run inputs, whose number ``current`` holds, and end the process with exit code 1 if some failed."""
    import torch

    if len(numbers) == 1:
        faulthandler.enable()
    torch.set_num_threads(1)
    if os.name == "posix":
        import resource

        resource.setrlimit(resource.RLIMIT_AS, (_MEMORY, _MEMORY))

    def progress(number: int) -> None:
        current.value = number

    with tempfile.TemporaryDirectory() as folder:
        outcomes, findings = fuzz(name, numbers, seed, Path(folder), progress)
    seen: Counter = Counter()
    for number, text in findings:
        what = text.strip().splitlines()
        seen[what[-1][:100]] += 1
        if seen[what[-1][:100]] <= 3:
            print(f"{name} {number}: {text if len(numbers) == 1 else what[-1]}", flush=True)
    for what, count in seen.most_common():
        print(f"  {count:,} x {what}")
    print(f"{name}: " + ", ".join(f"{count:,} {outcome}" for outcome, count in sorted(outcomes.items())), flush=True)
    sys.exit(1 if findings else 0)


if __name__ == "__main__":
    sys.exit(main())
