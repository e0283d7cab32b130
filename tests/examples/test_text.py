"""``examples/text.py``: whose files are where, its windows and that it is learned."""

from itertools import islice

import text


def test_no_content_is_on_two_sides():
    files = [[b"%d" % i for i in range(60)], [b"%d" % i for i in range(40, 100)], [b" "]]
    learned, held_out = text.split(files)
    both = [content for side in (learned, held_out) for label in side for content in label]
    assert len(both) == len(set(both)) == 100
    assert all(learned[i] and held_out[i] for i in range(2))
    assert not learned[2] + held_out[2]
    again, _ = text.split([files[0], [], []])
    assert again[0] == learned[0]


def test_windows_are_cut_from_the_files_of_their_class():
    classes = [[b"short", bytes(range(100))], [b"x" * 50]]
    samples = text.windows(classes, 40, 16, seed=0)
    assert samples.targets.bincount().tolist() == [20, 20]
    for row, length, label in zip(samples.inputs, samples.lengths, samples.targets, strict=True):
        piece = bytes(row[:length].tolist())
        assert any(piece in file for file in classes[label])
        assert len(piece) == 16 or piece == b"short"


def test_it_is_learned(learned, monkeypatch):
    monkeypatch.setattr(text, "sources", lambda folder, of=text.sources: islice(of(folder), 120))
    accuracy, out = learned(text, "slice-quantile", "--steps", 100, "--length", 64, "--train", 2000, "--test", 400)
    assert "by chance 0.2500" in out
    assert accuracy > 0.32
