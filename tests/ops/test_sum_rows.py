"""sum_rows compared with torch's embedding."""

import torch
from torch.nn import functional as F

from graphslice.ops import sum_rows


def test_single_rows_match_embedding():
    table, rows = torch.randn(9, 16), torch.tensor([8, 0, 3])
    assert sum_rows.choose(table, rows, torch.arange(3), torch.ones(3)) == "numba"
    actual = sum_rows(table, rows, torch.arange(3), torch.ones(3))
    torch.testing.assert_close(actual, F.embedding(rows, table), rtol=0, atol=0)
