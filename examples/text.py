"""Bytes: which package a piece of Python source was cut from, the standard library, pandas, scikit-learn or torch.

    python examples/text.py --mixer slice-quantile
    python examples/text.py --length 4096 --train 100000 --steps 20000 --batch 64 ...

The idea is that of Long Range Arena's text (Tay et al. 2021), which has to be read byte by byte, on text that is
installed wherever this runs. A file is learned or tested, never both, and files of the same content count once. Other
versions of the packages are other data. Four classes of equal size.
"""

from __future__ import annotations

import hashlib
import importlib.util
import sysconfig
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from torch import nn

from experiment import CLASS, Samples, options, parse_options, positive, run, run_main
from sequence_model import SequenceModel

PACKAGES = ("pandas", "sklearn", "torch")
CLASSES = ("the standard library", *PACKAGES)

#: Folders that are left out: packages of others, and tests, which are the bulk of some.
EXCLUDED = {"site-packages", "dist-packages", "test", "tests", "_vendor", "externals"}

#: One file in so many is held out.
FOLD = 5


def folders() -> list[Path]:
    """Where the sources of each class lie; no package is imported for it."""
    specs = [importlib.util.find_spec(name) for name in PACKAGES]
    found = [Path(spec.submodule_search_locations[0]) for spec in specs if spec and spec.submodule_search_locations]
    return [Path(sysconfig.get_paths()["stdlib"]), *found]


def sources(folder: Path) -> Iterator[bytes]:
    """The contents of the Python files below a folder, in the order of their names."""
    for path in sorted(folder.rglob("*.py")):
        if not EXCLUDED & set(path.relative_to(folder).parts):
            yield path.read_bytes()


def split(classes: list[list[bytes]]) -> tuple[list[list[bytes]], list[list[bytes]]]:
    """The files that are learned and those that are held out, by class; which is which hangs on the content alone."""
    learned: list[list[bytes]] = [[] for _ in classes]
    held_out: list[list[bytes]] = [[] for _ in classes]
    seen: set[bytes] = set()
    for label, files in enumerate(classes):
        for content in files:
            digest = hashlib.sha256(content).digest()
            if content.strip() and digest not in seen:
                seen.add(digest)
                (held_out if digest[0] % FOLD == 0 else learned)[label].append(content)
    return learned, held_out


def windows(classes: list[list[bytes]], count: int, length: int, seed: int) -> Samples:
    """``count`` pieces of at most ``length`` bytes, as many of each class; a file counts by its size."""
    source = np.random.default_rng(seed)
    inputs = torch.zeros(count, length, dtype=torch.int64)
    lengths, targets = torch.zeros(count, dtype=torch.int64), torch.arange(count) % len(classes)
    shares = [np.array([len(file) for file in files]) / sum(map(len, files)) for files in classes]
    for row, label in enumerate(targets.tolist()):
        file = classes[label][source.choice(len(shares[label]), p=shares[label])]
        begin = source.integers(max(1, len(file) - length + 1))
        piece = np.frombuffer(file[begin : begin + length], dtype=np.uint8)
        inputs[row, : len(piece)] = torch.from_numpy(piece.astype(np.int64))
        lengths[row] = len(piece)
    return Samples(inputs, lengths, targets)


def main(arguments: list[str] | None = None) -> list[dict]:
    parser = options(__doc__)
    parser.add_argument("--length", type=positive, default=128, help="bytes of a piece")
    given = parse_options(parser, arguments)
    learned, held_out = split([list(sources(folder)) for folder in folders()])
    train = windows(learned, given.train, given.length, seed=0)
    test = windows(held_out, given.test, given.length, seed=1)
    counts = ", ".join(f"{len(a)} + {len(b)} of {name}" for a, b, name in zip(learned, held_out, CLASSES, strict=True))
    print(f"files to learn + to test: {counts}; chance is {1 / len(CLASSES):.4f}")
    return run(
        given,
        lambda config: SequenceModel(config, nn.Embedding(256, config.dim), outputs=len(CLASSES)),
        train,
        {CLASS.score_name: test},
        CLASS,
    )


if __name__ == "__main__":
    run_main(main)
