import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from graphslice.data.split_maker import GroupedRows, merge_groups


def grouped(groups, labels=None, stratified=False) -> GroupedRows:
    groups = np.array(groups, dtype=np.int64)
    labels = np.empty((len(groups), 0)) if labels is None else np.array(labels, dtype=float).reshape(len(groups), -1)
    stratified = np.full(labels.shape[1], stratified)
    return GroupedRows(np.arange(len(groups)) * 3 + 1, groups, labels, stratified)  # rejected rows leave gaps


def partition(rows: GroupedRows, want: list[int], seed: int = 0, **more) -> list[np.ndarray]:
    parts = rows.partition(want, np.random.default_rng(seed), **more)
    all_rows = np.concatenate(parts)
    assert len(parts) == len(want) and sorted(all_rows.tolist()) == rows.rows.tolist()
    assert all((np.diff(part) > 0).all() for part in parts)
    part_groups = [set(rows.groups[np.isin(rows.rows, part)].tolist()) for part in parts]
    assert sum(map(len, part_groups)) == len(set(rows.groups.tolist())), "a group is divided"
    return parts


@pytest.mark.parametrize("want", [[80, 10, 10], [47, 5, 5], [7, 1, 1], [1, 1, 1], [20] * 5, [7, 6, 6], [90, 10]])
@pytest.mark.parametrize("training", [True, False])
def test_single_row_groups_give_exact_sizes(want, training):
    assert list(map(len, partition(grouped(range(sum(want))), want, training=training))) == want


@given(
    st.lists(st.integers(1, 9), min_size=3, max_size=60),
    st.integers(0, 99),
    st.sampled_from([(0.8, 0.1, 0.1), (0.9, 0.1), (0.2,) * 5]),
    st.booleans(),
)
def test_sizes_are_exact_up_to_one_group(sizes, seed, shares, training):
    groups = np.repeat(np.arange(len(sizes)), sizes)
    want = [int(share * len(groups)) for share in shares]
    want[0] += len(groups) - sum(want)
    parts = partition(grouped(groups), want, seed, training=training)
    if len(sizes) >= len(want):
        assert all(map(len, parts)), "no part is empty if there are enough groups"
    assert all(len(part) <= wanted + max(sizes) * (len(want) - 1) for part, wanted in zip(parts, want, strict=True))
    if len(sizes) > 40 and max(sizes) < min(want):
        assert all(abs(len(part) - wanted) <= max(sizes) for part, wanted in zip(parts, want, strict=True))


def test_partition_depends_on_the_seed():
    rows = grouped(np.arange(100) // 2)
    first, repeated, other = (partition(rows, [80, 10, 10], seed)[2].tolist() for seed in (1, 1, 2))
    assert first == repeated != other
    in_test = [set(partition(rows, [80, 10, 10], seed)[2].tolist()) for seed in range(200)]
    counts = [sum(row in test for test in in_test) for row in rows.rows.tolist()]
    assert min(counts) >= 5 and max(counts) <= 45  # 20 on average; a file sorted by its labels is mixed


def test_large_groups_go_to_the_training_set():
    """Groups of 30 and 6 of 100 rows are larger than half of the test set of ten."""
    groups = [0] * 30 + [1] * 6 + list(range(2, 66))
    for seed in range(20):
        parts = partition(grouped(groups), [80, 10, 10], seed)
        assert list(map(len, parts)) == [80, 10, 10] and set(range(1, 107, 3)) <= set(parts[0].tolist())


def test_large_groups_go_to_different_folds():
    """Folds of equal size with three large groups."""
    parts = partition(grouped([0] * 20 + [1] * 15 + [2] * 10 + list(range(3, 33))), [25, 25, 25], training=False)
    assert list(map(len, parts)) == [25, 25, 25]


@pytest.mark.parametrize(("groups", "sizes"), [([0] * 7, [7, 0, 0]), ([0] * 5 + [1], [5, 1, 0]), ([], [0, 0, 0])])
def test_too_few_groups_leave_parts_empty(groups, sizes):
    assert list(map(len, partition(grouped(groups), [len(groups) - 2, 1, 1]))) == sizes


@pytest.mark.parametrize("want", [[800, 100, 100], [200] * 5])
def test_stratified_parts_have_equal_class_shares(want):
    labels = np.zeros(1000)
    labels[:130] = 1
    labels[130:160] = 2
    labels[160:200] = np.nan
    rows = grouped(np.arange(1000), labels, stratified=True)
    for seed in range(5):
        for part, wanted in zip(partition(rows, want, seed), want, strict=True):
            part_labels = labels[part // 3]
            for value, count in ((0, 800), (1, 130), (2, 30)):
                assert abs((part_labels == value).sum() - count * wanted / 1000) <= 2


def test_stratification_over_several_targets_uses_the_rarest_class():
    """Twelve targets as in Tox21, with few positives and gaps: the rarest classes are balanced within a few rows."""
    rng = np.random.default_rng(0)
    labels = (rng.random((5000, 12)) < np.linspace(0.02, 0.2, 12)).astype(float)
    labels[rng.random(labels.shape) < 0.2] = np.nan
    tenth = (labels == 1).sum(axis=0) / 10

    def errors(stratified: bool) -> np.ndarray:
        rows = grouped(np.arange(5000), labels, stratified)
        parts = [part for seed in range(5) for part in partition(rows, [4000, 500, 500], seed)[1:]]
        return np.array([(labels[part // 3] == 1).sum(axis=0) - tenth for part in parts])

    stratified_errors, random_errors = errors(True), errors(False)
    assert (np.abs(stratified_errors[:, 0]) < 1.5).all() and (np.abs(stratified_errors[:, 1]) < 4).all()
    assert np.sqrt((stratified_errors**2).mean()) < 0.7 * np.sqrt((random_errors**2).mean())


@pytest.mark.parametrize("stratified", [True, False])
def test_training_set_has_every_class(stratified):
    """One class has two of a hundred rows, and one is in a single group."""
    labels = np.zeros((100, 2))
    labels[:2, 0], labels[50:53, 1] = 1, 1
    groups = np.arange(100)
    groups[50:53] = 50
    for seed in range(60):
        train = partition(grouped(groups, labels, stratified), [80, 10, 10], seed)[0] // 3
        assert set(train.tolist()) & {0, 1} and 50 in train


@given(st.lists(st.tuples(st.integers(0, 12), st.integers(0, 12)), max_size=40))
def test_merged_groups_match_a_graph_search(pairs):
    first, second = (np.array([pair[i] for pair in pairs], dtype=np.uint64) for i in (0, 1))
    merged = merge_groups(first, second).tolist()
    for row in range(len(pairs)):
        reached, previous = {row}, set()
        while reached != previous:
            previous = set(reached)
            reached |= {r for r, p in enumerate(pairs) for q in previous if p[0] == pairs[q][0] or p[1] == pairs[q][1]}
        assert {r for r in range(len(pairs)) if merged[r] == merged[row]} == reached
