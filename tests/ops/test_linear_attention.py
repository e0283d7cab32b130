"""linear_attention compared with the quadratic form for each sample, and head_norm with torch's layer norm."""

import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from loops import check_backends
from torch.nn import functional as F

from graphslice.ops import head_norm, linear_attention


def reference(q, k, v, lengths, heads):
    """Compute ``(Q K^T) V / n`` for each sample and head."""
    out = torch.zeros_like(v)
    head_dim = v.shape[2] // heads
    for b, n in enumerate(lengths.tolist()):
        for h in range(heads):
            block = (b, slice(n), slice(h * head_dim, (h + 1) * head_dim))
            out[block] = (q[block] @ k[block].T) @ v[block] / max(1, n)
    return out


@settings(max_examples=30)
@given(
    st.integers(0, 2**20),
    st.lists(st.integers(0, 21), min_size=1, max_size=4),
    st.sampled_from([1, 2, 4]),
    st.sampled_from([4, 8, 10, 16, 24]),
    st.sampled_from([torch.float32, torch.float64]),
)
def test_matches_quadratic_form(seed, sizes, heads, head_dim, dtype):
    torch.manual_seed(seed)
    lengths, width = torch.tensor(sizes), max(1, *sizes) + seed % 2
    parts = [torch.randn(len(sizes), width, heads * head_dim, dtype=dtype).requires_grad_() for _ in range(3)]
    args, upstream = (*parts, lengths, heads), torch.randn_like(parts[0])
    has_kernel = dtype == torch.float32 and heads * head_dim % 16 == 0 and head_dim >= 8
    check_backends(linear_attention, args, reference(*args), upstream, has_kernel=has_kernel, atol=2e-4)


@settings(max_examples=30)
@given(
    st.integers(0, 2**20),
    st.tuples(st.integers(1, 3), st.integers(1, 9)),
    st.sampled_from([1, 2, 4]),
    st.sampled_from([4, 8, 10, 16, 24]),
    st.sampled_from([torch.float32, torch.float64]),
)
def test_head_norm_matches_layer_norm_of_each_head(seed, shape, heads, head_dim, dtype):
    torch.manual_seed(seed)
    x = torch.randn(*shape, heads * head_dim, dtype=dtype).requires_grad_()
    scales, shifts = (torch.randn(3, heads, head_dim, dtype=dtype).requires_grad_() for _ in range(2))
    has_kernel = dtype == torch.float32 and heads * head_dim % 16 == head_dim % 8 == 0
    for index in range(3):
        parts = []
        for h in range(heads):
            part = x[..., h * head_dim : (h + 1) * head_dim].double()
            parts.append(F.layer_norm(part, (head_dim,), scales[index, h].double(), shifts[index, h].double()))
        args, expected, upstream = (x, scales, shifts, index), torch.cat(parts, dim=-1), torch.randn_like(x)
        check_backends(head_norm, args, expected, upstream, has_kernel=has_kernel, rtol=1e-3, atol=1e-3)
