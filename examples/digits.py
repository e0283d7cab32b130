"""Handwritten digits as pixel sequences: scikit-learn's 1,797 images of 8 x 8 pixels and 17 grey levels.

    python examples/digits.py --mixer slice-quantile

As in the image task of Long Range Arena (Tay et al. 2021), the model reads a sequence of 64 grey levels and must learn
which pixels are neighbours. The first 1,437 images are the training set and the last 360 the test set, unshuffled.
"""

from __future__ import annotations

import torch
from sklearn.datasets import load_digits

from experiment import Samples, classify, options, parse_options, run_main
from graphslice.errors import InputError

#: Number of images in the test set, the last ones.
HELD_OUT = 360


def load() -> tuple[Samples, Samples]:
    """Load training and test set: grey levels 0 to 16, int64 ``[n, 64]``."""
    pixels, labels = load_digits(return_X_y=True)
    inputs, targets = torch.from_numpy(pixels).long(), torch.from_numpy(labels).long()
    lengths = torch.full((len(inputs),), inputs.shape[1])
    return Samples(inputs, lengths, targets).split_at(len(inputs) - HELD_OUT)


def main(arguments: list[str] | None = None) -> list[dict]:
    parsed = parse_options(options(__doc__, train=1_797 - HELD_OUT, test=HELD_OUT, dropout=0.1), arguments)
    train, test = load()
    for name, size, images in (("train", parsed.train, train), ("test", parsed.test, test)):
        if size > len(images.targets):
            raise InputError(f"--{name} {size} is too large: there are {len(images.targets):,} images")
    train, test = train.split_at(parsed.train)[0], test.split_at(parsed.test)[0]
    share = (test.targets == train.targets.mode().values).float().mean()
    n, m = len(train.targets), len(test.targets)
    print(f"{n:,} training images, {m:,} test images; accuracy of the most frequent class {share:.4f}")
    return classify(parsed, train, test, tokens=17, classes=10)


if __name__ == "__main__":
    run_main(main)
