"""Traced programs of models compared with their modules in float64."""

import copy
import gc
import pickle
import weakref

import pytest
import torch
from tiny import COMPILED
from torch import nn
from torch.nn.modules import module as hooks_of_all
from torch.utils.flop_counter import FlopCounterMode

from graphslice.chem.molecule import smiles_to_graph
from graphslice.config import ModelConfig
from graphslice.data.batches import collate
from graphslice.nn import GraphTransformer
from graphslice.nn.mixers import MIXERS
from graphslice.nn.mixers.base import Mixer
from graphslice.nn.traced_model import has_hooks, is_observed, run_as_program
from graphslice.ops import column_sort, max_exchange
from graphslice.ops.dispatch import reference_only
from graphslice.program.run import programs_disabled
from graphslice.system.threads import single_threaded_torch

DIM, HEADS = 32, 2
RATES = ("input_dropout", "dropout", "attention_dropout", "activation_dropout")


def model_of(mixer="slice-quantile", **settings) -> GraphTransformer:
    torch.manual_seed(0)
    config = {"layers": 2, "dim": DIM, "heads": HEADS, "ffn_dim": 48, "init": "balanced"}
    config |= {**dict.fromkeys(RATES, 0.0), **settings}
    model = GraphTransformer(ModelConfig(mixer=mixer, **config))
    for parameter in model.parameters():
        if parameter.dim() == 1:
            nn.init.normal_(parameter, 0.5, 0.3)
    return model


SMILES = [
    "CC(=O)Oc1ccccc1C(=O)O",
    "C",
    "CCO",
    "c1ccc2c(c1)[nH]c1ccccc12",
    "CN1CCC[C@H]1c1cccnc1.Cl",
    "C#N",
    "OCC(F)(F)Br",
]


def batch_of(smiles=SMILES):
    return collate([smiles_to_graph(text) for text in smiles])


def traced(model, batch):
    return run_as_program(model, GraphTransformer._pool.__wrapped__, batch)


def results(model, run, batch):
    out = run(model, batch)
    upstream = torch.randn(out.shape, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    parameters = [p for name, p in model.named_parameters() if not name.startswith("head")]
    return [out, *torch.autograd.grad((out * upstream).sum(), parameters, materialize_grads=True, allow_unused=True)]


def by_modules(model, batch):
    with programs_disabled():
        return model.compute_embeddings(batch)


def check(model, batch, rtol=2e-4, atol=5e-4):
    actual = results(model, traced, batch)
    expected = results(copy.deepcopy(model).double(), by_modules, batch)
    for one, other in zip(actual, expected, strict=True):
        torch.testing.assert_close(
            one.double(), other, rtol=rtol, atol=atol * max(1, float(other.detach().abs().max()))
        )


@pytest.mark.parametrize(
    ("mixer", "norm"), [*((mixer, "pre") for mixer in sorted(MIXERS)), ("softmax", "post"), ("galerkin", "none")]
)
def test_program_matches_modules(mixer, norm):
    model = model_of(mixer, norm=norm)
    if mixer not in COMPILED and traced(model, batch_of()) is None:
        pytest.skip("its operations cannot be traced")
    check(model, batch_of())
    with torch.inference_mode():
        alone = traced(model, batch_of())
        assert torch.equal(alone, traced(model.eval(), batch_of()))
        torch.testing.assert_close(alone, by_modules(model, batch_of()), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("mixer", "norm"), [("slice-quantile", "pre"), ("softmax", "post")])
def test_program_matches_modules_with_bond_messages(mixer, norm):
    model = model_of(mixer, norm=norm, bond_messages=True)
    for smiles in (SMILES, ["C"]):
        check(model, collate([smiles_to_graph(text) for text in smiles], bonds=True))


SETTINGS = [
    {"readout": "mean+max", "embedding_norm": True},
    {"readout": "sum+token+mean"},
    {"readout": "max+atomwise", "embedding_norm": True},
]
PAIRS = {"mixer": "csp", "mixer_settings": {"groups": 0}}
ORIGINAL = {"mixer": "softmax", "embedding_layout": "graphormer", "num_degrees": 512, "head": "mlp", "ffn_dim": 80}


@pytest.mark.parametrize("settings", [*SETTINGS, ORIGINAL, {"num_degrees": 3}, PAIRS], ids=repr)
def test_program_matches_modules_for_other_settings(settings):
    check(model_of(**{"mixer": "galerkin", **settings}), batch_of())


@pytest.mark.parametrize("smiles", [["C"], ["CC", "CC"], ["C" * 255], ["C" * 19, "O"] * 60])
def test_program_matches_modules_for_batch_shapes(smiles):
    check(model_of("galerkin"), batch_of(smiles), 1e-3, 1e-3)


@pytest.mark.parametrize("mixer", ["slice-quantile", "softmax"])
def test_parallel_matches_serial(mixer):
    torch.set_num_threads(3)
    model, batch = model_of(mixer, **dict.fromkeys(RATES, 0.2)), batch_of(["C" * 19] * 12)

    def step():
        torch.manual_seed(5)
        return results(model, traced, batch)

    first, again = step(), step()
    assert all(torch.equal(one, other) for one, other in zip(first, again, strict=True))
    with single_threaded_torch():
        assert torch.get_num_threads() == 1
        assert all(torch.equal(one, other) for one, other in zip(first, step(), strict=True))
    torch.set_num_threads(1)
    for one, other in zip(first, step(), strict=True):  # sums of gradients in another order
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-4)


def test_parameters_that_nothing_reads_have_no_gradient(monkeypatch):
    """AdamW would decay them otherwise."""
    monkeypatch.setitem(MIXERS, "mine", NoGraph)
    model = model_of("mine")
    traced(model, batch_of()).sum().backward()
    assert all(p.grad is None for p in model.pairs.parameters())
    assert all(p.grad is not None for p in model.blocks.parameters())


def test_changes_after_tracing_are_used():
    model, batch = model_of().eval(), batch_of()

    def program_matches_modules():
        with torch.inference_mode():
            output = traced(model, batch)
            if output is not None:
                torch.testing.assert_close(output, by_modules(model, batch), rtol=1e-4, atol=1e-5)
        return output is not None

    assert program_matches_modules()
    for owner, name, value in (
        ("blocks.0.ffn.expand", "weight", nn.Parameter(torch.randn(48, DIM))),
        ("blocks.1.mixer_norm", "eps", 3.0),
        ("blocks.1.mixer", "output", nn.Linear(DIM, DIM)),
        ("blocks.1.mixer", "local_channels", ~model.blocks[1].mixer.local_channels),
        ("blocks.0.ffn.contract", "bias", None),
        ("blocks", "0", model_of("slice-max").blocks[0].eval()),
        ("atoms", "atom", nn.EmbeddingBag(174, DIM, mode="sum")),
        ("", "blocks", model_of("map-only", layers=3).blocks.eval()),
    ):
        setattr(model.get_submodule(owner), name, value)
        assert program_matches_modules(), (owner, name)
    model.blocks[0].ffn.activation = nn.ReLU()
    assert not program_matches_modules()


def test_rows_are_traced_where_the_readout_is_not():
    model, batch = model_of(readout="quantiles+max"), batch_of()
    assert traced(model, batch) is None
    assert run_as_program(model, GraphTransformer._encode.__wrapped__, batch).shape[1] == batch.atoms.shape[1] + 1


UNTRACEABLE = {
    "hook": lambda model: model.blocks[1].ffn.register_forward_hook(lambda *args: None),
    "method": lambda model: setattr(model.blocks[0].mixer, "mix", lambda x, context: x.cummax(dim=1).values),
    "dtype": lambda model: model.norm.double(),
    # Pruning may leave such weights.
    "narrow weight": lambda model: setattr(model.blocks[0].ffn.expand, "weight", nn.Parameter(torch.zeros(16, DIM))),
    "short table": lambda model: setattr(model.atoms.in_degree, "weight", nn.Parameter(torch.zeros(3, DIM))),
}


@pytest.mark.parametrize("change", UNTRACEABLE)
@pytest.mark.parametrize("early", [False, True])
def test_untraceable_change_runs_modules(change, early):
    model = model_of().eval()
    if not early:
        assert traced(model, batch_of()) is not None
    UNTRACEABLE[change](model)
    assert traced(model, batch_of()) is None


def test_modules_run_when_tracing_does_not_apply():
    model, batch, seen = model_of(), batch_of(), []
    hook = hooks_of_all.register_module_forward_hook(lambda *args: seen.append(args[0]))
    for context in (
        hook,
        programs_disabled(),
        reference_only(),
        reference_only(but=(max_exchange, "numba")),
        torch.autocast("cpu", torch.bfloat16),
        FlopCounterMode(display=False),
    ):
        with context:
            assert traced(model, batch) is None
    assert traced(model_of(ffn_dim=40), batch) is None
    assert traced(copy.deepcopy(model).double(), batch) is None
    assert traced(model, batch_of(["C" * 256])) is None
    seen.clear()
    assert traced(model, batch) is not None and not seen
    batch.lengths = batch.lengths.int()
    assert traced(model, batch) is None


@pytest.mark.parametrize("name", ["forward_hook", "forward_pre_hook", "full_backward_hook", "full_backward_pre_hook"])
def test_hooks_are_noticed(name):
    module = nn.Linear(2, 2)
    of_one, of_all = getattr(module, f"register_{name}"), getattr(hooks_of_all, f"register_module_{name}")
    for register, noticed in ((of_one, lambda: has_hooks(module)), (of_all, is_observed)):
        assert not noticed()
        with register(lambda *args: None):
            assert noticed()
    assert not has_hooks(module) and not is_observed()


def test_traced_model_can_be_copied_and_pickled():
    model, batch = model_of(), batch_of()
    before = traced(model, batch)
    for clone in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        with torch.no_grad():
            next(clone.blocks.parameters()).zero_()
        assert not torch.equal(traced(clone, batch), before)
    assert torch.equal(traced(model, batch), before)


def test_program_does_not_keep_the_model_alive():
    model = model_of()
    traced(model, batch_of())
    seen = weakref.ref(model)
    del model
    gc.collect()
    assert seen() is None


class Gated(Mixer):
    reads = ("attn_weights",)

    def __init__(self, dim, heads, **settings):
        super().__init__(dim, heads, **settings)
        self.value, self.gate = nn.Linear(dim, dim), nn.Linear(dim, dim, bias=False)
        self.norm, self.drop = nn.LayerNorm(dim), nn.Dropout(0.0)

    def mix(self, x, context):
        y = context.aggregate(self.norm(self.value(x)), self.active_dropout)
        y = column_sort(y, context.lengths, "descending") + max_exchange(y, context.lengths)
        return self.drop(y) * nn.functional.gelu(self.gate(x)) - 0.5 * x


class NoGraph(Mixer):
    def __init__(self, dim, heads, **settings):
        super().__init__(dim, heads, **settings)
        self.value = nn.Linear(dim, dim)

    def mix(self, x, context):
        return self.value(x)


def test_mixers_of_users_are_traced(monkeypatch):
    monkeypatch.setitem(MIXERS, "mine", Gated)
    check(model_of("mine"), batch_of())


READS = {
    "number": lambda gain: float(gain.detach() + 1),
    "array": lambda gain: float(gain.detach().numpy()),
    "condition": lambda gain: 3.0 if gain > 1 else 1.0,
    "comparison": lambda gain: 3.0 if torch.equal(gain, torch.ones(())) else 1.0,
}


@pytest.mark.parametrize("read", READS.values(), ids=READS)
def test_modules_run_if_a_mixer_reads_the_values_of_its_parameters(read, monkeypatch):
    """A program would keep those of its first call."""

    class Gain(Mixer):
        def __init__(self, dim, heads, **settings):
            super().__init__(dim, heads, **settings)
            self.gain = nn.Parameter(torch.ones(()))

        def mix(self, x, context):
            return x * read(self.gain)

    monkeypatch.setitem(MIXERS, "mine", Gain)
    model, batch = model_of("mine").eval(), batch_of()
    with torch.inference_mode():
        before = model.compute_embeddings(batch)
        for block in model.blocks:
            block.mixer.gain.fill_(2.0)
        assert not torch.equal(model.compute_embeddings(batch), before)
        assert torch.equal(model.compute_embeddings(batch), by_modules(model, batch))
