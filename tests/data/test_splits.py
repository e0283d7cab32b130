import numpy as np

from graphslice.data.splits import decode_splits, encode_splits, present_splits


def test_decode_splits_inverts_encode_splits():
    splits = {"train": np.array([4, 1]), "test-dev": np.array([2])}
    numbers = encode_splits(splits, 6)
    assert numbers.dtype == np.int8 and numbers.tolist() == [-1, 0, 3, -1, 0, -1]
    assert present_splits(numbers) == ["train", "test-dev"]
    usable = np.array([True, False, True, True, True, True])
    decoded = {split: rows.tolist() for split, rows in decode_splits(numbers, usable).items()}
    assert decoded == {"train": [4], "test-dev": [2]}
