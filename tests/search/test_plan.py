import pytest

from graphslice.errors import InputError
from graphslice.search.plan import parse_budget, parse_variants


@pytest.mark.parametrize(
    ("text", "settings"),
    [
        ("90s", {"max_minutes": 1.5}),
        ("10m", {"max_minutes": 10}),
        ("0.5h", {"max_minutes": 30}),
        ("5000steps", {"max_steps": 5000, "max_minutes": None}),
        ("1step", {"max_steps": 1}),
        ("20 epochs", {"max_epochs": 20, "max_steps": None, "max_minutes": None}),
    ],
)
def test_budget_is_parsed(text, settings):
    found = parse_budget(text)
    assert {key: found[key] for key in settings} == settings


@pytest.mark.parametrize("text", ["", "10", "-3m", "0s", "1.5epochs", "10x"])
def test_invalid_budget_is_rejected(text):
    with pytest.raises(InputError, match="budget"):
        parse_budget(text)


def test_every_mixer_is_varied_with_every_value():
    variants = parse_variants("softmax, csp:groups=2:shifts=linear", ["model.layers=1,2", "optimizer.peak_lr=1e-3"])
    assert [variant.label for variant in variants] == [
        "softmax layers=1 peak_lr=1e-3",
        "softmax layers=2 peak_lr=1e-3",
        "csp:groups=2:shifts=linear layers=1 peak_lr=1e-3",
        "csp:groups=2:shifts=linear layers=2 peak_lr=1e-3",
    ]


def test_configuration_of_a_variant(tiny_config):
    """It has the mixer, settings and values of the variant, the seed of the run, and the common values otherwise."""
    (variant,) = parse_variants("csp:groups=2:shifts=linear", ["model.layers=3", "optimizer.peak_lr=1e-3"])
    expected = tiny_config().to_dict()
    expected["model"] |= {"mixer": "csp", "mixer_settings": {"groups": 2, "shifts": "linear"}, "layers": 3}
    expected["optimizer"]["peak_lr"] = 1e-3
    expected["trainer"]["seed"] = 7
    expected["init_from"] = "none"  # from scratch, like the other variants
    assert variant.config(tiny_config(), seed=7).to_dict() == expected


def test_a_mixer_with_settings_of_its_own(tiny_config):
    """One comparison then has each mixer with its best rate, at equal numbers of parameters."""
    wide, narrow = parse_variants("csp:groups=2:optimizer.peak_lr=3e-3,softmax:model.dim=16", ["model.layers=3"])
    configs = [variant.config(tiny_config(), seed=0) for variant in (wide, narrow)]
    assert [config.model.dim for config in configs] == [tiny_config().model.dim, 16]
    assert configs[0].model.mixer_settings == {"groups": 2} and configs[1].model.mixer_settings is None
    assert configs[0].optimizer.peak_lr == 3e-3 and {config.model.layers for config in configs} == {3}


def test_every_variant_has_its_own_folder():
    folders = [variant.folder for variant in parse_variants("softmax,csp:groups=2", ["model.layers=1,2"])]
    assert folders == ["softmax_layers=1", "softmax_layers=2", "csp_groups=2_layers=1", "csp_groups=2_layers=2"]


def test_a_variant_given_twice_is_one():
    assert [variant.label for variant in parse_variants("csp,softmax, csp")] == ["csp", "softmax"]


@pytest.mark.parametrize(
    ("mixers", "varied", "reason"),
    [
        ("csp:2", [], "csp:groups=2"),
        ("csp", ["model.laiers=1"], "cannot vary 'model.laiers=1'.*did you mean 'model.layers'"),
        ("csp:trainer.seed=3", [], "cannot vary 'trainer.seed=3'"),
        ("csp", ["data.split=random,scaffold"], "different molecules or metrics are not comparable"),
        ("csp", ["trainer.max_steps=3,30"], "--budget sets the length"),
        ("csp", ["model.level=molecule,atom"], "determined by the data"),
    ],
)
def test_invalid_variants_are_rejected(mixers, varied, reason):
    with pytest.raises(InputError, match=reason):
        parse_variants(mixers, varied)
