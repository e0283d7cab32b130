"""``examples/digits.py``: its split and that it is learned."""

import digits


def test_the_split():
    train, test = digits.load()
    assert len(train.targets) == 1_437 and len(test.targets) == 360
    assert train.inputs.shape[1] == 64 and train.inputs.min() >= 0 and train.inputs.max() == 16
    assert set(test.targets.tolist()) == set(range(10))
    images = {tuple(row.tolist()) for row in train.inputs}
    assert not images & {tuple(row.tolist()) for row in test.inputs}


def test_it_is_learned(learned):
    accuracy, out = learned(digits, "slice-quantile", "--steps", 120, "--dropout", 0)
    assert "most frequent class 0.1000" in out and accuracy > 0.25
