import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from loops import check_backends

from graphslice.ops import read_out
from graphslice.ops.read_out import ATOMWISE, KINDS, QUANTILES

BACKENDS = ["torch", "numba"]
FUNCTIONS = {
    "token": lambda rows: rows[0],
    "max": lambda rows: rows[1:].amax(0),
    "sum": lambda rows: rows[1:].sum(0),
    "mean": lambda rows: rows[1:].mean(0),
    "quantiles": lambda rows: torch.quantile(rows[1:], torch.tensor(QUANTILES, dtype=torch.float64), dim=0).flatten(),
}


def make_inputs(seed, batch, rows, channels, dtype, ties):
    random = np.random.default_rng(seed)
    x = random.integers(-2, 3, (batch, rows, channels)) if ties else random.normal(size=(batch, rows, channels))
    lengths = torch.from_numpy(random.integers(2, rows + 1, batch))
    return torch.from_numpy(x).to(dtype).requires_grad_(), lengths


@settings(max_examples=60)
@given(
    st.integers(0, 2**20),
    st.integers(1, 4),
    st.integers(2, 9),
    st.sampled_from([5, 16, 48]),
    st.sampled_from([torch.float32, torch.float64]),
    st.booleans(),
    st.lists(st.sampled_from(sorted([*FUNCTIONS, ATOMWISE])), min_size=1, max_size=5),
)
def test_matches_loop(seed, batch, rows, channels, dtype, ties, kinds):
    """Also with a readout several times."""
    x, lengths = make_inputs(seed, batch, rows, channels, dtype, ties)
    contributions = make_inputs(seed + 1, batch, rows, channels, dtype, ties)[0]
    expected = torch.stack(
        [
            torch.cat(
                [
                    added[1:length].double().sum(0) if kind == ATOMWISE else FUNCTIONS[kind](sample[:length].double())
                    for kind in kinds
                ]
            )
            for sample, added, length in zip(x, contributions, lengths.tolist(), strict=True)
        ]
    )
    has_kernel = dtype == torch.float32 and channels % 16 == 0 and set(kinds) <= {*KINDS, ATOMWISE}
    generator = torch.Generator().manual_seed(seed)
    upstream = torch.randn(expected.shape, generator=generator, dtype=torch.float64)
    ordered = ties and "quantiles" in kinds  # quantiles of ties have another subgradient
    args = x, lengths, kinds, contributions
    check_backends(read_out, args, expected, upstream, has_kernel=has_kernel, gradients=not ordered, atol=1e-5)


@pytest.mark.parametrize("kinds", [["means"], ["max", ATOMWISE]])
def test_unknown_readout_is_rejected(kinds):
    with pytest.raises(ValueError, match="unknown readout, or no contributions"):
        read_out(torch.zeros(1, 3, 16), torch.tensor([3]), kinds)


@pytest.mark.parametrize("backend", BACKENDS)
def test_nan_and_infinity(backend):
    inf, nan = torch.inf, torch.nan
    x = torch.zeros(1, 4, 16)
    x[0, :, :5] = torch.tensor([[7, 7, 7, 7, nan], [1, nan, inf, -inf, 1], [3, 2, 1, -inf, 2], [9, 9, 9, 9, 9]])
    actual = read_out.using(backend)(x, torch.tensor([3]), ("max", "sum", "token")).view(3, 16)[:, :5]
    expected = torch.tensor([[3, nan, inf, -inf, 2], [4, nan, inf, -inf, 3], [7, 7, 7, 7, nan]])
    torch.testing.assert_close(actual, expected, rtol=0, atol=0, equal_nan=True)
