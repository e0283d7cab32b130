import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from graphslice.ops import column_quantiles


@given(
    st.lists(st.integers(1, 40), min_size=1, max_size=4),
    st.lists(st.floats(0, 1, width=32), min_size=1, max_size=5),
    st.integers(0, 2**32 - 1),
)
def test_matches_numpy_quantiles_of_each_sample(lengths, levels, seed):
    rng = np.random.default_rng(seed)
    x = rng.integers(-5, 5, size=(len(lengths), max(lengths), 3)).astype(np.float64)  # with ties
    actual = column_quantiles(torch.tensor(x), torch.tensor(lengths), torch.tensor(levels)[:, None])
    for sample, length, rows in zip(x, lengths, actual, strict=True):
        expected = np.quantile(sample[:length], np.array(levels, dtype=np.float64), axis=0)
        np.testing.assert_allclose(rows, expected, atol=1e-5)


def test_gradcheck():
    x = torch.randn(2, 6, 3, dtype=torch.float64, requires_grad=True)
    levels = torch.tensor([[0.1, 0.33, 0.77], [0.5, 0.95, 0.05]], dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda x, p: column_quantiles(x, torch.tensor([6, 4]), p), (x, levels))


def test_half_precision_with_hundreds_of_rows():
    rows = torch.randperm(256)[:, None].to(torch.bfloat16)  # exact up to 256
    x = rows.repeat(2, 1)[None].contiguous()  # 512 rows, every value twice
    levels = torch.arange(512)[:, None] / 511
    actual = column_quantiles(x, torch.tensor([512]), levels)[0, :, 0]
    torch.testing.assert_close(actual.float(), torch.arange(512) // 2 * 1.0, atol=1, rtol=0)
