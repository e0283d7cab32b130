"""The mixers against slow loops, and the promises every one of them makes."""

import math

import numpy as np
import pytest
import torch

from graphslice import InputError
from graphslice.nn.mixers import MIXERS, Structure, build_mixer
from graphslice.ops import max_exchange

DIM, HEADS = 12, 3
NAMES = sorted(MIXERS)
SLICES = ["slice-ascend", "slice-interleave", "slice-max", "slice-released"]


def mixer_of(name, seed=0, **settings):
    torch.manual_seed(seed)
    return build_mixer(name, DIM, HEADS, **settings).double().eval()


def with_identity_projections(name, **settings):
    mixer = mixer_of(name, **settings)
    with torch.no_grad():
        for linear in (mixer.value, mixer.output):
            linear.weight.copy_(torch.eye(DIM))
            linear.bias.zero_()
    return mixer


def sample(rows, seed=0, batch=1):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(batch, rows, DIM, dtype=torch.float64, generator=generator)
    bias = torch.randn(batch, HEADS, rows, rows, dtype=torch.float64, generator=generator)
    return x, bias


def structure_of(bias, lengths=None):
    batch, _, width, _ = bias.shape
    return Structure(torch.full((batch,), width) if lengths is None else torch.tensor(lengths), width, bias)


@pytest.mark.parametrize("graph", [True, False], ids=["graph", "no graph"])
@pytest.mark.parametrize("name", NAMES)
def test_padding_never_matters(name, graph):
    mixer, lengths, width = mixer_of(name, layer=1, layers=3), [4, 9, 1], 9
    x, bias = sample(width, batch=3)
    for row, length in enumerate(lengths):
        x[row, length:] = 1e3 * (-1) ** row
        bias[row, :, length:] = bias[row, :, :, length:] = 50.0
    together = mixer(x, Structure(torch.tensor(lengths), width, bias if graph else None))
    assert together.shape == x.shape
    for row, n in enumerate(lengths):
        own = bias[row : row + 1, :, :n, :n] if graph else None
        alone = mixer(x[row : row + 1, :n], Structure(torch.tensor([n]), n, own))
        torch.testing.assert_close(together[row : row + 1, :n], alone, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("name", NAMES)
def test_renumbering_the_rows(name):
    """Renumbers the output of the mixers that say so, and changes that of the plain sorts."""
    mixer = mixer_of(name, layer=1, layers=3)
    x, bias = sample(9, seed=1)
    x[0, 3] = x[0, 6]  # equal rows stay equal
    new = torch.cat(
        [torch.zeros(1, dtype=torch.long), 1 + torch.randperm(8, generator=torch.Generator().manual_seed(2))]
    )
    before = mixer(x, structure_of(bias))
    after = mixer(x[:, new], structure_of(bias[:, :, new][:, :, :, new]))
    if mixer.equivariant:
        torch.testing.assert_close(after, before[:, new], rtol=1e-9, atol=1e-9)
    elif name in SLICES:
        assert (after - before[:, new]).abs().max() > 0.05


def test_which_mixers_promise_equivariance():
    known = {"softmax", "slice-max", "galerkin", "fourier", "slice-quantile", "map-only"}
    for name in NAMES:
        if name in known:
            assert MIXERS[name].equivariant, name


@pytest.mark.parametrize("name", NAMES)
def test_gradients_reach_every_input(name):
    mixer = mixer_of(name, layer=2, layers=3)
    x, bias = (tensor.requires_grad_() for tensor in sample(7, batch=2))
    out = mixer(x, structure_of(bias, [7, 5]))
    (out[0].sum() + (out[1, :5] * torch.arange(DIM)).square().sum()).backward()
    for what, tensor in {"x": x, "bias": bias, **dict(mixer.named_parameters())}.items():
        assert tensor.grad.isfinite().all(), what
        if what != "key.bias":  # adds the same to a whole row of scores
            assert tensor.grad.abs().max() > 1e-6, what
    assert x.grad[1, 5:].abs().max() == 0  # the padding gets none


@pytest.mark.parametrize("graph", [True, False], ids=["graph", "no graph"])
def test_softmax_attention_is_its_formula(graph):
    mixer, (x, bias), lengths, d = mixer_of("softmax"), sample(6, batch=2), [6, 4], DIM // HEADS
    found = mixer(x, Structure(torch.tensor(lengths), 6, bias if graph else None)).detach().numpy()
    weights = {name: value.detach().numpy() for name, value in mixer.state_dict().items()}
    for b, n in enumerate(lengths):
        q, k, v = (
            x[b, :n].numpy() @ weights[f"{p}.weight"].T + weights[f"{p}.bias"] for p in ("query", "key", "value")
        )
        mixed = np.zeros((n, DIM))
        for head in range(HEADS):
            part = slice(head * d, (head + 1) * d)
            for i in range(n):
                scores = [q[i, part] @ k[j, part] / math.sqrt(d) for j in range(n)]
                if graph:
                    scores = [s + bias[b, head, i, j].item() for j, s in enumerate(scores)]
                shares = np.exp(scores) / np.exp(scores).sum()
                mixed[i, part] = sum(share * v[j, part] for j, share in enumerate(shares))
        np.testing.assert_allclose(found[b, :n], mixed @ weights["output.weight"].T + weights["output.bias"], atol=1e-9)


def slow_slice(name, v, pv, layer, layers):
    """What the operation does to the columns of one sample, without the projections."""
    result = np.zeros_like(v)
    for c in range(DIM):
        if name == "slice-ascend":
            result[:, c] = sorted(pv[:, c])
        elif name == "slice-interleave":
            descending = math.sin(2 ** (layers - layer) * math.pi * (c + 1) / DIM) < -1e-9
            result[:, c] = sorted(pv[:, c], reverse=descending)
        elif name == "slice-released":
            result[:, c] = pv[:, c] + np.array(sorted(v[:, c]))
        elif name == "slice-max":
            first, *others = pv[:, c]
            gain = max(others, default=first) - first
            if gain > 0:
                shares = np.interp([(first + gain - v) / gain for v in others], [1e-3, 0.1], [1, 0])
                moved = shares / shares.sum() * (np.array(others) - first)
                first, others = first + moved.sum(), others - moved
            result[:, c] = [first, *others]
    return result


@pytest.mark.parametrize("graph", [True, False], ids=["graph", "no graph"])
@pytest.mark.parametrize("layer", [1, 2, 4])
@pytest.mark.parametrize("name", SLICES)
def test_slices_are_their_formulas(name, layer, graph):
    mixer, lengths, d = mixer_of(name, layer=layer, layers=4), [7, 4], DIM // HEADS
    x, bias = sample(7, seed=5, batch=2)
    found = mixer(x, Structure(torch.tensor(lengths), 7, bias if graph else None)).detach().numpy()
    weights = {key: value.detach().numpy() for key, value in mixer.state_dict().items()}
    for b, n in enumerate(lengths):
        v = x[b, :n].numpy() @ weights["value.weight"].T + weights["value.bias"]
        pv = v.copy()
        for head in range(HEADS if graph else 0):
            scores = np.exp(bias[b, head, :n, :n].numpy())
            part = slice(head * d, (head + 1) * d)
            pv[:, part] = scores / scores.sum(axis=1, keepdims=True) @ v[:, part]
        expected = slow_slice(name, v, pv, layer, layers=4)
        np.testing.assert_allclose(
            found[b, :n], expected @ weights["output.weight"].T + weights["output.bias"], atol=1e-9
        )


@pytest.mark.parametrize(("layer", "layers"), [(1, 1), (1, 2), (1, 6), (3, 12), (12, 12)])
def test_interleaved_orders_follow_the_sine(layer, layers):
    mixer = with_identity_projections("slice-interleave", layer=layer, layers=layers)
    x, _ = sample(6)
    found = mixer(x, Structure(torch.tensor([6]), 6))[0].T.tolist()
    for i, (column, values) in enumerate(zip(found, x[0].T.tolist(), strict=True), start=1):
        sine = math.sin(2 ** (layers - layer) * math.pi * i / DIM)
        # At a zero, which floating point misses, the paper's >= 0 says ascending.
        assert column == pytest.approx(sorted(values, reverse=sine < -1e-6)), (i, sine)


def test_interleaving_has_both_orders():
    x, _ = sample(6)
    for layer in (1, 2, 3):
        found = with_identity_projections("slice-interleave", layer=layer, layers=4)(x, Structure(torch.tensor([6]), 6))
        rising = (found[0].diff(dim=0) >= 0).all(dim=0)
        assert 0 < rising.sum() < DIM


def exchange(columns, length=None):
    """:func:`max_exchange` of one sample given as its channels."""
    v = torch.tensor(columns, dtype=torch.float64).T[None]
    mask = torch.arange(v.shape[1])[None] < (length or v.shape[1])
    return max_exchange(v, mask)[0].T.tolist()


@pytest.mark.parametrize(
    ("column", "expected"),
    [
        ([0.0, 2.0, 1.0], [2.0, 0.0, 1.0]),
        ([0.0, 1.0, 2.0, -3.0], [2.0, 1.0, 0.0, -3.0]),
        ([-9.0, -5.0, -7.0], [-5.0, -9.0, -7.0]),
        ([3.0, 2.0, 1.0], [3.0, 2.0, 1.0]),  # the first row has the largest
        ([3.0, 3.0, 1.0], [3.0, 3.0, 1.0]),
        ([4.0], [4.0]),
        ([-4.0], [-4.0]),
        ([1.0, 1.0, 1.0], [1.0, 1.0, 1.0]),
        ([0.0, 1.0, 1.0, 0.5], [1.0, 0.5, 0.5, 0.5]),  # two that tie give half each
        ([0.0, 3.0, 3.0, 3.0, -1.0], [3.0, 2.0, 2.0, 2.0, -1.0]),
    ],
    ids=repr,
)
def test_max_exchange_by_hand(column, expected):
    assert exchange([column])[0] == pytest.approx(expected, abs=1e-12)


def test_max_exchange_without_ties_is_the_hard_exchange():
    rng = np.random.default_rng(0)
    v = np.stack([rng.permutation(10) for _ in range(200)]).astype(float)  # gaps of 1, an exchange of at most 9
    expected = v.copy()
    for row in expected:
        top = row.argmax()
        row[0], row[top] = row[top], row[0]
    np.testing.assert_allclose(exchange(v), expected, atol=1e-12)


@pytest.mark.parametrize("seed", range(6))
def test_the_map_of_max_exchange_is_doubly_stochastic(seed):
    rng = np.random.default_rng(seed)
    column = torch.tensor(rng.normal(size=8))
    column[rng.integers(1, 6, size=3)] = column[:6].max() - torch.tensor(rng.uniform(0, 0.05, size=3))  # near ties
    mask = torch.arange(8)[None] < 6
    # The weights carry no gradient, so the Jacobian is the map itself.
    jacobian = torch.autograd.functional.jacobian(lambda v: max_exchange(v[None, :, None], mask)[0, :, 0], column)
    assert (jacobian >= -1e-12).all()
    torch.testing.assert_close(jacobian.sum(0), torch.ones(8, dtype=torch.float64))
    torch.testing.assert_close(jacobian.sum(1), torch.ones(8, dtype=torch.float64))
    torch.testing.assert_close(jacobian[6:], torch.eye(8, dtype=torch.float64)[6:])  # padding stays
    torch.testing.assert_close(jacobian @ column, max_exchange(column[None, :, None], mask)[0, :, 0])
    assert max_exchange(column[None, :, None], mask).sum().item() == pytest.approx(column.sum().item())


def test_max_exchange_is_continuous():
    """Where a hard exchange jumps by 1: two rows change places, or the first becomes the largest."""
    step = 1e-5
    moving = np.arange(0.9, 1.1, step)
    still = np.ones_like(moving)
    for columns in ([0 * still, still, moving, 0.3 * still], [moving, still, 0.99 * still, 0.3 * still]):
        v = torch.tensor(np.stack(columns, axis=1)).T[None]
        found = max_exchange(v, torch.ones(1, 4, dtype=torch.bool))
        assert found.diff(dim=2).abs().max() < 100 * step
        assert found[0, 1].min() < 0.97  # and something was exchanged on the way


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_max_exchange_in_low_precision(dtype):
    v = torch.randn(4, 9, 5, generator=torch.Generator().manual_seed(0)).to(dtype)
    v[:, 3] = v[:, 4]
    v[1, 1:] = v[1, :1]
    mask = torch.arange(9) < torch.tensor([9, 6, 2, 1])[:, None]
    found, expected = max_exchange(v, mask), max_exchange(v.double(), mask)
    assert found.dtype == dtype
    torch.testing.assert_close(found.double(), expected, rtol=0, atol=16 * torch.finfo(dtype).eps)


@pytest.mark.parametrize("name", NAMES)
def test_dropout_acts_on_the_map_in_training_alone(name):
    torch.manual_seed(0)
    mixer = build_mixer(name, DIM, HEADS, dropout=0.5).double()
    x, bias = sample(7)
    once, again = (mixer.train()(x, structure_of(bias)) for _ in range(2))
    assert not torch.allclose(once, again)
    once, again = (mixer.eval()(x, structure_of(bias)) for _ in range(2))
    assert torch.equal(once, again)


def test_structure_closes_the_columns_of_the_padding():
    _, bias = sample(5, batch=2)
    structure = structure_of(bias, [5, 3])
    expected = torch.softmax(bias[1, :, :3, :3], dim=-1)
    torch.testing.assert_close(structure.map[1, :, :3, :3], expected)
    assert structure.map[1, :, :, 3:].abs().max() == 0
    torch.testing.assert_close(structure.map.sum(-1), torch.ones(2, HEADS, 5, dtype=torch.float64))
    assert structure.mask.tolist() == [[True] * 5, [True] * 3 + [False] * 2]
    assert Structure(torch.tensor([2]), 4).map is None


def test_bad_settings():
    with pytest.raises(InputError, match=r"did you mean 'slice-max'"):
        build_mixer("slice-mx", DIM, HEADS)
    with pytest.raises(InputError, match=r"heads .5. must divide"):
        build_mixer("softmax", DIM, 5)
