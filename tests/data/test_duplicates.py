import re

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from graphslice.data.split_maker import Duplicates, count_shared, find_duplicates, keys_with_columns

NAN = np.nan


def ids(text: str) -> np.ndarray:
    """Hashes of molecules that are represented by letters."""
    return np.array([ord(letter) for letter in text], dtype=np.uint64)


def test_distinct_molecules_have_no_duplicates():
    result = find_duplicates(np.arange(3), ids("abc"), np.ones((3, 2)), np.zeros(2, bool))
    assert result == Duplicates(0, 0) and result.describe() is None
    assert find_duplicates(np.arange(0), ids(""), np.ones((0, 1)), np.zeros(1, bool)) == Duplicates(0, 0)


ROWS = st.lists(
    st.tuples(st.sampled_from("abcdefg"), st.sampled_from([NAN, 0.0, 1.0]), st.sampled_from([NAN, 0.0, 0.05, 3.0])),
    min_size=1,
    max_size=30,
)


@given(ROWS)
def test_matches_manual_computation(rows):
    identity, targets = ids("".join(row[0] for row in rows)), np.array([row[1:] for row in rows])
    classes, numbers = np.array([True, False]), np.arange(len(rows)) * 2 + 10
    groups = {}
    for i, row in enumerate(rows):
        groups.setdefault(row[0], []).append(i)
    repeated = {letter: members for letter, members in groups.items() if len(members) > 1}

    std = np.nanstd(targets[:, 1]) if not np.isnan(targets[:, 1]).all() else 0
    conflicting = set()
    for members in repeated.values():
        votes = [targets[i, 0] for i in members if targets[i, 0] == targets[i, 0]]
        values = [targets[i, 1] for i in members if targets[i, 1] == targets[i, 1]]
        spread = max(values) - min(values) if values else 0
        if len(set(votes)) > 1 or spread > 0.1 * std:
            conflicting.add(tuple(numbers[members].tolist()))
    found = find_duplicates(numbers, identity, targets, classes)
    assert (found.molecules, found.rows) == (len(repeated), sum(map(len, repeated.values())))
    assert set(found.conflicting) == conflicting and len(found.conflicting) == len(conflicting)


def test_keys_differ_by_feature_columns():
    columns = np.array([[0, np.nan], [-0.0, np.nan], [0, 1], [0, 1], [0, np.nan]], np.float32)
    columns[1, 1] = np.uint32(0x7FC00001).view(np.float32)  # nan with other bits
    result = keys_with_columns(ids("aaaab"), columns)
    assert result.dtype == np.uint64 and (result[:, None] == result).tolist() == [
        [True, True, False, False, False],
        [True, True, False, False, False],
        [False, False, True, True, False],
        [False, False, True, True, False],
        [False, False, False, False, True],
    ]


def test_families_shared_with_training_set_are_counted():
    splits = {"train": np.array([2, 5]), "valid": np.array([3]), "test": np.array([4, 8, 9])}
    result = count_shared(splits, np.array([2, 3, 4, 5, 8, 9]), ids("axabbx"))
    assert result == {"valid": 0, "test": 2}


def test_describe_gives_one_line():
    conflicting = ((2, 3), tuple(range(10, 21)), (7, 8), (0, 4))
    words = "17 rows of 4 molecules are duplicates, 4 .*: rows 3, 4; 11, 12, .*18 and 3 more; 8, 9; possible leakage"
    assert re.match(words, Duplicates(4, 17, conflicting, {"valid": 0, "test": 1}).describe())
    shared = Duplicates(1, 1200, (), {"valid": 2}).describe()
    assert re.match("1,200 rows of 1 molecule are duplicates, 0 .* leakage: 2 validation", shared)


def test_contradicting_bounds_of_one_molecule_conflict():
    bounds = np.array([[[10, np.inf]], [[-np.inf, 5]]])
    targets = np.full((2, 1), np.nan)
    for each in (bounds, bounds[::-1]):
        assert find_duplicates(np.arange(2), ids("aa"), targets, np.array([False]), each).conflicting == ((0, 1),)


def test_numbers_conflict_with_bounds_that_they_do_not_respect():
    targets = np.array([[3.0], [np.nan], [1.0], [np.nan]])
    bounds = np.array([[[-np.inf, np.inf]], [[5, np.inf]], [[-np.inf, np.inf]], [[-np.inf, 9]]])
    assert find_duplicates(np.arange(4), ids("aabb"), targets, np.array([False]), bounds).conflicting == ((0, 1),)
