"""Give GraphSlice inputs that nobody meant: ``python scripts/fuzz.py [TARGET ...] [--examples N] [--seed S]``.

Whatever is read from outside must end in an answer or in a reason of one line (InputError, MoleculeError, ValueError):
never in another exception, and never beyond the end of an array. So the compiled code runs with its bounds checked
(``NUMBA_BOUNDSCHECK=1``; the first start compiles all of it), in a process of its own, whose death is a finding too.
An input is known by its number: ``--only`` runs it again and shows the traceback.
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
    "store": "files of stores",
    "paths": "molecules and batches made by hand",
    "checkpoint": "files of models",
    "trees": "arrays of forests and boosting",
}
_MEMORY = 1 << 35  # bytes of addresses that a process may take: what asks for more has believed a number


def fuzz(name: str, numbers: range, seed: int, folder: Path, progress=lambda number: None) -> tuple[Counter, list]:
    """Run some inputs of a target in this process.

    Returns:
        How often each kind of outcome came about, and ``(number, what happened)`` of each input that ended badly.
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
            outcome = "answered"
        except Exception as error:
            outcome = "refused"
            if type(error) not in (InputError, MoleculeError, ValueError) or "\n" in str(error):
                outcome = "found"
                findings.append((number, traceback.format_exc()))
        outcomes[outcome] += 1
    return outcomes, findings


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("targets", nargs="*", metavar="TARGET", help=", ".join(TARGETS) + "; all by default")
    parser.add_argument("--examples", type=int, default=1000, help="inputs of each target (default: 1000)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", type=int, help="the number of one input to run")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    parser.add_argument("--first", type=int, default=0, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if unknown := set(options.targets) - set(TARGETS):
        parser.error(f"no target {sorted(unknown)[0]!r}: choose from {', '.join(TARGETS)}")
    if options.child:
        return _child(options)
    found = 0
    for name in options.targets or TARGETS:
        found += _supervise(name, options)
    return 1 if found else 0


def _supervise(name: str, options: argparse.Namespace) -> int:
    """Run the inputs of a target in processes, a new one after each that died; returns how many ended badly."""
    cache = Path(tempfile.gettempdir()) / f"graphslice-fuzz-{os.getuid() if hasattr(os, 'getuid') else 'user'}"
    environment = {**os.environ, "NUMBA_BOUNDSCHECK": "1", "NUMBA_CACHE_DIR": str(cache), "OMP_NUM_THREADS": "1"}
    first, end = (0, options.examples) if options.only is None else (options.only, options.only + 1)
    begin, found, total = time.perf_counter(), 0, end - first
    with tempfile.NamedTemporaryFile() as shared:
        shared.write(bytes(8))
        shared.flush()
        while first < end:
            command = [sys.executable, __file__, name, "--child", shared.name, "--seed", str(options.seed)]
            command += ["--first", str(first), "--examples", str(end)]
            process = subprocess.run(command, env=environment)
            if process.returncode in (0, 1):
                found += process.returncode
                break
            (number,) = struct.unpack("<q", Path(shared.name).read_bytes())
            print(f"{name} {number}: the process ended with {process.returncode}", flush=True)
            first, found = number + 1, found + 1
    print(f"{name}: {total:,} inputs in {time.perf_counter() - begin:,.0f} s, seed {options.seed}", flush=True)
    return found


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
