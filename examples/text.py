"""Byte-level text classification: from which of four packages a piece of Python source is.

    python examples/text.py --mixer slice-quantile
    python examples/text.py --length 4096 --train 100000 --steps 20000 --batch 64 ...

The four classes, of equal size, are the standard library, pandas, scikit-learn and torch. As in the text task of Long
Range Arena (Tay et al. 2021), the model reads single bytes; the data are the sources of the installed packages, so they
depend on their versions. The split is by file, and files with the same content are used once.
"""

from __future__ import annotations

import hashlib
import importlib.util
import sysconfig
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch

from experiment import Samples, classify, options, parse_options, positive, run_main

PACKAGES = ("pandas", "sklearn", "torch")
CLASSES = ("the standard library", *PACKAGES)

#: Excluded folders: vendored packages, and tests, which would dominate some packages.
EXCLUDED = {"site-packages", "dist-packages", "test", "tests", "_vendor", "externals"}

#: One of this many files is in the test set.
FOLD = 5


def folders() -> list[Path]:
    """Return the source folder of each class, without importing the packages."""
    specs = [importlib.util.find_spec(name) for name in PACKAGES]
    packages = [Path(spec.submodule_search_locations[0]) for spec in specs if spec and spec.submodule_search_locations]
    return [Path(sysconfig.get_paths()["stdlib"]), *packages]


def sources(folder: Path) -> Iterator[bytes]:
    """Yield the contents of the Python files in a folder and its subfolders, sorted by name."""
    for path in sorted(folder.rglob("*.py")):
        if not EXCLUDED & set(path.relative_to(folder).parts):
            yield path.read_bytes()


def split(classes: list[list[bytes]]) -> tuple[list[list[bytes]], list[list[bytes]]]:
    """Split the files of each class into training and test set by a hash of their content."""
    train: list[list[bytes]] = [[] for _ in classes]
    held_out: list[list[bytes]] = [[] for _ in classes]
    seen: set[bytes] = set()
    for label, files in enumerate(classes):
        for content in files:
            digest = hashlib.sha256(content).digest()
            if content.strip() and digest not in seen:
                seen.add(digest)
                (held_out if digest[0] % FOLD == 0 else train)[label].append(content)
    return train, held_out


def windows(classes: list[list[bytes]], count: int, length: int, seed: int) -> Samples:
    """Draw ``count`` pieces of at most ``length`` bytes, equally many per class, from files in proportion to size."""
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
    parser.add_argument("--length", type=positive, default=128, help="length of a piece in bytes")
    parsed = parse_options(parser, arguments)
    train_files, test_files = split([list(sources(folder)) for folder in folders()])
    train = windows(train_files, parsed.train, parsed.length, seed=0)
    test = windows(test_files, parsed.test, parsed.length, seed=1)
    files = zip(train_files, test_files, CLASSES, strict=True)
    counts = ", ".join(f"{len(a)} + {len(b)} of {name}" for a, b, name in files)
    print(f"training + test files: {counts}; accuracy by chance {1 / len(CLASSES):.4f}")
    return classify(parsed, train, test, 256, len(CLASSES))


if __name__ == "__main__":
    run_main(main)
