"""Sums of rows of a table: what the kernel must refuse, since it checks no bounds."""

import pytest
import torch
from torch.nn import functional as F

from graphslice.ops import sum_rows

TABLE, ROWS, BEGINS, WEIGHTS = torch.randn(9, 16), torch.tensor([8, 0, 3]), torch.tensor([0, 1]), torch.ones(3)


@pytest.mark.parametrize(
    ("rows", "begins", "weights"),
    [
        (torch.tensor([0, 9, 1]), BEGINS, WEIGHTS),
        (torch.tensor([0, -1, 1]), BEGINS, WEIGHTS),
        (ROWS, torch.tensor([0, 2, 1]), WEIGHTS),
        (ROWS, torch.tensor([0, 4]), WEIGHTS),
        (ROWS, torch.tensor([1, 2]), WEIGHTS),
        (ROWS, BEGINS, WEIGHTS[:2]),
        (ROWS.int(), BEGINS.int(), WEIGHTS),
        (ROWS[:0], BEGINS[:1], WEIGHTS[:0]),
        (ROWS.view(1, 3), BEGINS, WEIGHTS),
    ],
)
def test_what_would_be_read_from_elsewhere_is_refused(rows, begins, weights):
    assert sum_rows.choose(TABLE, rows, begins, weights) == "torch"


def test_it_is_the_embedding_of_torch():
    assert sum_rows.choose(TABLE, ROWS, BEGINS, WEIGHTS) == "numba"
    found = sum_rows(TABLE, ROWS.view(3, 1).flatten(), torch.arange(3), torch.tensor([1.0, 1.0, 1.0]))
    torch.testing.assert_close(found, F.embedding(ROWS, TABLE), rtol=0, atol=0)
