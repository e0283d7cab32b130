from collections import Counter

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from graphslice.data.split_maker import missing_classes, strata

NAN = np.nan


LABELS = st.integers(1, 30).flatmap(
    lambda rows: st.lists(st.lists(st.sampled_from([0.0, 1.0, 2.0, NAN]), min_size=rows, max_size=rows), max_size=4)
)


@given(LABELS, st.randoms())
def test_strata_and_missing_classes_match_a_loop(columns, random):
    rows = len(columns[0]) if columns else 7
    labels = np.array(columns, dtype=float).reshape(len(columns), rows).T
    counts = Counter((k, v) for k, column in enumerate(columns) for v in column if v == v)
    of_row = [
        {(k, column[row]) for k, column in enumerate(columns) if column[row] == column[row]} for row in range(rows)
    ]
    both = strata(labels)
    assert both.shape == (rows, 2)
    for (first, second), values in zip(both.tolist(), of_row, strict=True):
        assert (first < second) if values else (first == second == both.max())
        assert (second == both.max()) or len(values) > 1
    rarest = both[:, 0]
    rarity = {}
    for row, values in enumerate(of_row):
        rarity.setdefault(rarest[row], set()).add(min((counts[v] for v in values), default=np.inf))
        others = [values for r, values in enumerate(of_row) if rarest[r] == rarest[row]]
        assert not values or set.intersection(*others), "rows of a stratum share a class"
    assert all(len(counts) == 1 for counts in rarity.values())
    assert [min(rarity[s]) for s in sorted(rarity)] == sorted(min(counts) for counts in rarity.values())
    selected = np.array([random.random() < 0.5 for _ in range(rows)])
    selected_values = {v for row in range(rows) if selected[row] for v in of_row[row]}
    assert sorted(missing_classes(labels, selected)) == sorted(set(counts) - selected_values)
