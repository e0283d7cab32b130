"""Digits written by hand, read pixel by pixel: scikit-learn's 1,797 images of 8 x 8 pixels and 17 grey levels.

    python examples/digits.py --mixer slice-quantile

The idea is that of Long Range Arena's images (Tay et al. 2021): a sequence of 64 grey levels, of which the model has to
find out by itself which are neighbours. The first 1,437 images are learned and the last 360 are the test, unshuffled.
"""

from __future__ import annotations

import torch
from sklearn.datasets import load_digits
from torch import nn

from experiment import CLASS, Samples, options, parse_options, run, run_main
from graphslice.errors import InputError
from sequence_model import SequenceModel

#: How many images are the test, the last ones.
HELD_OUT = 360


def load() -> tuple[Samples, Samples]:
    """The images that are learned and those of the test: grey levels 0 to 16, int64 ``[n, 64]``."""
    pixels, labels = load_digits(return_X_y=True)
    inputs, targets = torch.from_numpy(pixels).long(), torch.from_numpy(labels).long()
    lengths = torch.full((len(inputs),), inputs.shape[1])
    parts = (inputs, lengths, targets)
    return Samples(*(part[:-HELD_OUT] for part in parts)), Samples(*(part[-HELD_OUT:] for part in parts))


def main(arguments: list[str] | None = None) -> list[dict]:
    given = parse_options(options(__doc__, train=1_797 - HELD_OUT, test=HELD_OUT, dropout=0.1), arguments)
    train, test = load()
    for name, asked_for, there in (("train", given.train, train), ("test", given.test, test)):
        if asked_for > len(there.targets):
            raise InputError(f"there are {len(there.targets):,} images: give --{name} no more")
    train, test = Samples(*(part[: given.train] for part in train)), Samples(*(part[: given.test] for part in test))
    share = (test.targets == train.targets.mode().values).float().mean()
    n, m = len(train.targets), len(test.targets)
    print(f"{n:,} images to learn, {m:,} to test; the commonest answer is right for {share:.4f}")
    return run(
        given,
        lambda config: SequenceModel(config, nn.Embedding(17, config.dim), outputs=10),
        train,
        {CLASS.score_name: test},
        CLASS,
    )


if __name__ == "__main__":
    run_main(main)
