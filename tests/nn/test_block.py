"""Transformer blocks compared with their formulas; hooks and overrides of their modules."""

import pytest
import torch
from torch.nn import functional as F

from graphslice.config import ModelConfig
from graphslice.nn.block import Block, FeedForward, MLPHead
from graphslice.nn.context import AttentionContext

DIM = 32  # supported by the compiled kernels


def block_of(mixer: str = "slice-max", **settings) -> Block:
    torch.manual_seed(0)
    return Block(ModelConfig(mixer=mixer, dim=DIM, heads=2, ffn_dim=48, **settings), layer=1).eval()


def sample(rows: int = 9) -> tuple[torch.Tensor, AttentionContext]:
    torch.manual_seed(1)
    bias = torch.randn(2, 2, rows, rows)
    return torch.randn(2, rows, DIM), AttentionContext.from_bias(torch.tensor([rows, rows]), bias)


def test_block_without_norms_is_the_simple_attention_of_galerkin():
    """Blog on the Galerkin transformer: z = y + Attn(y), then z + sigma(z); Attn = Q (LN(K)^T LN(V)) / n."""
    block = block_of("galerkin", norm="none")
    assert not [name for name, _ in block.named_parameters() if name.startswith(("mixer_norm", "ffn_norm"))]
    y, n, d, mixer = torch.randn(9, DIM), 9, DIM // 2, block.mixer
    query, key, value = (linear(y).split(d, dim=1) for linear in (mixer.query, mixer.key, mixer.value))
    heads = [
        q @ (F.layer_norm(k, (d,)).T @ F.layer_norm(v, (d,))) / n for q, k, v in zip(query, key, value, strict=True)
    ]
    z = y + mixer.output(torch.cat(heads, dim=1))
    expected = z + block.ffn.contract(F.gelu(block.ffn.expand(z)))
    found = block(y[None], AttentionContext(torch.tensor([n]), n))[0]
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("norm", ["pre", "post"])
@pytest.mark.parametrize("mixer", ["slice-quantile", "softmax"])
def test_block_matches_formula(mixer, norm):
    block, (x, context) = block_of(mixer, norm=norm), sample()
    norm_1, norm_2 = (
        lambda x, n=n: F.layer_norm(x, (DIM,), n.weight, n.bias) for n in (block.mixer_norm, block.ffn_norm)
    )
    expand, contract = block.ffn.expand, block.ffn.contract

    def ffn(x):
        return F.linear(F.gelu(F.linear(x, expand.weight, expand.bias)), contract.weight, contract.bias)

    if norm == "pre":
        mixed = x + block.mixer(norm_1(x), context)
        expected = mixed + ffn(norm_2(mixed))
    else:
        mixed = norm_1(x + block.mixer(x, context))
        expected = norm_2(mixed + ffn(mixed))
    torch.testing.assert_close(block(x, context), expected, rtol=1e-5, atol=1e-5)


def test_mlp_head_matches_formula():
    torch.manual_seed(0)
    head, x = MLPHead(2 * DIM, DIM, 3), torch.randn(5, 2 * DIM)
    hidden = F.gelu(F.linear(x, head.transform.weight, head.transform.bias))
    normed = F.layer_norm(hidden, (DIM,), head.norm.weight, head.norm.bias)
    torch.testing.assert_close(head(x), F.linear(normed, head.output.weight, head.output.bias))


def test_activation_dropout_acts_only_in_training():
    ffn, x = FeedForward(DIM, 48, dropout=0.5), torch.randn(5, DIM)
    torch.testing.assert_close(ffn.eval()(x), ffn.contract(F.gelu(ffn.expand(x))))
    inputs_of_contract = []
    ffn.contract.register_forward_pre_hook(lambda module, inputs: inputs_of_contract.append(inputs[0]))
    ffn.train()(x)
    assert 0.3 < (inputs_of_contract[0] == 0).float().mean() < 0.7


@pytest.mark.parametrize("name", ["mixer_norm", "mixer", "mixer.value", "ffn.expand", "ffn.activation"])
def test_hooks_run_and_their_result_is_used(name):
    block, (x, context) = block_of(), sample()
    before = block(x, context)
    calls = []

    def zero(module, inputs, output):
        calls.append(module)
        return 0 * output

    block.get_submodule(name).register_forward_hook(zero)
    assert not torch.allclose(block(x, context), before, rtol=0, atol=1e-7)
    assert calls == [block.get_submodule(name)]
