"""Configuration: accepted values, and error messages for invalid ones."""

import pytest
import yaml

from graphslice import InputError, RunConfig
from graphslice.config import PRESETS, read_yaml, split_words
from graphslice.config.reading import parse_value, read_preset
from graphslice.system.machine import CONFIGS


@pytest.mark.parametrize("name", PRESETS)
def test_presets_round_trip_through_yaml(name):
    config = RunConfig.preset(name)
    written = yaml.safe_load((CONFIGS / f"{name}.yaml").read_text())
    base = RunConfig.preset(written.pop("preset")) if "preset" in written else RunConfig()
    changed = {f"{section}.{key}" for section, values in written.items() for key in values}
    for section in ("data", "graph", "model", "optimizer", "trainer"):
        for key, value in vars(getattr(base, section)).items():
            assert f"{section}.{key}" in changed or getattr(getattr(config, section), key) == value
    for section, values in written.items():
        for key, value in values.items():
            assert getattr(getattr(config, section), key) == value
    assert RunConfig.from_dict(yaml.safe_load(config.to_yaml())) == config
    assert RunConfig.from_dict(config.to_dict()) == config


@pytest.mark.parametrize("name", [name for name in PRESETS if name.startswith("pcqm4m")])
def test_pcqm4m_presets_match_their_sources(name):
    """Ying et al.: OGB-LSC/graphormer of their repository; the rerun: the script of the Sliceformer authors; the later
    model: fairseq's examples/property_prediction/pcqv2.sh."""
    config = RunConfig.preset(name)
    model, optimizer, trainer = config.model, config.optimizer, config.trainer
    later, authors = name.startswith("pcqm4mv2"), name == "pcqm4m-graphormer"
    assert (model.layers, model.dim, model.ffn_dim, model.heads, model.readout) == (12, 768, 768, 32, "token")
    dropouts = (model.input_dropout, model.dropout, model.attention_dropout, model.activation_dropout)
    assert dropouts == ((0.0, 0.0, 0.1, 0.1) if later else (0.0 if authors else 0.1, 0.1, 0.1, 0.0))
    layout = (model.norm, model.head, model.embedding_norm)
    assert layout == (("post", "mlp", True) if later else ("pre", "linear", False))
    weight_decay = 0.0 if later or authors else 0.01
    assert (optimizer.peak_lr, optimizer.end_lr, optimizer.weight_decay) == (2e-4, 1e-9, weight_decay)
    steps = (optimizer.warmup_steps, optimizer.total_steps, trainer.max_steps)
    assert steps == ((10_000, 1_500_000, 1_500_000) if authors else (60_000, 1_000_000, 1_000_000))
    batch = (trainer.batch_size, trainer.gradient_clip, model.max_path)
    assert batch == ((1024, 5.0, 20) if authors else (256, 5.0, 5))
    assert config.data.dataset == ("pcqm4mv2" if later else "pcqm4m")


@pytest.mark.parametrize(
    ("name", "mixer", "settings"),
    [
        ("pcqm4m-graphormer", "softmax", {}),
        ("pcqm4m-graphormer-rerun", "softmax", {}),
        ("pcqm4m-slice", "slice-ascend", {}),
        ("pcqm4m-slice-interleave", "slice-interleave", {}),
        ("pcqm4m-slice-max", "slice-max", {"exchange": "hard"}),
        ("pcqm4m-slice-released", "slice-released", {}),
        ("pcqm4m-slice-released-interleave", "slice-released", {"order": "interleave"}),
    ],
)
def test_mixers_of_the_presets_for_pcqm4m(name, mixer, settings):
    model = RunConfig.preset(name).model
    assert (model.mixer, model.mixer_settings or {}) == (mixer, settings)


def test_slim_preset_matches_the_paper():
    config = RunConfig.preset("zinc12k-slim")
    assert (config.model.layers, config.model.dim, config.model.ffn_dim, config.model.heads) == (12, 80, 80, 8)
    assert (config.optimizer.warmup_steps, config.optimizer.total_steps) == (40_000, 400_000)
    assert config.trainer.batch_size == 256


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"modle": {}}, r"'modle' \(did you mean 'model'\?\)"),
        ({"data": {"xyzzy": 3}}, r"'data.xyzzy'$"),
        ({"layers": 3}, r"unknown configuration key 'layers' \(did you mean model\.layers\?\)"),
        ({"model": None}, "the section model must be keys and values"),
        ({"init_from": [1]}, "init_from must be str or empty"),
        ({"model": {"layers": "four"}}, "model.layers must be int, not 'four'"),
        ({"model": {"layers": True}}, "model.layers must be int"),
        ({"model": {"dropout": 1.0}}, "model.dropout must be from 0 to 0.99"),
        ({"trainer": {"max_steps": "many"}}, "trainer.max_steps must be int or empty"),
        ({"graph": {"atom_order": "random"}}, "graph.atom_order must be canonical or input"),
        ({"trainer": {"workers": "several"}}, "trainer.workers must be auto or a number"),
        ({"trainer": {"freeze": "block:1"}}, "trainer.freeze must be none or embeddings or blocks:N"),
        ({"optimizer": {"peak_lr": 10**400}}, "optimizer.peak_lr must be float"),
    ],
    ids=repr,
)
def test_error_names_the_invalid_key_or_value(values, message):
    with pytest.raises(InputError, match=message):
        RunConfig.from_dict(values)


def test_misspelt_attribute_is_rejected():
    config = RunConfig.preset("small")
    config.trainer.max_epochs = 3
    for section, name, hint in (
        (config.trainer, "max_epoch", r"TrainerConfig has no setting 'max_epoch' \(did you mean 'max_epochs'\?\)"),
        (config.model, "mixr", "did you mean 'mixer'"),
        (config, "trainers", "RunConfig has no setting 'trainers'"),
    ):
        with pytest.raises(InputError, match=hint):
            setattr(section, name, 2)


def test_yaml_numbers_are_converted_to_the_field_type():
    trainer = {"devices": 2, "precision": 32, "workers": 0}
    config = RunConfig.from_dict({"optimizer": {"peak_lr": 1}, "trainer": trainer})
    assert (config.optimizer.peak_lr, type(config.optimizer.peak_lr)) == (1.0, float)
    assert (config.trainer.devices, config.trainer.precision, config.trainer.workers) == ("2", "32", "0")


def test_unquoted_on_and_off_are_accepted(tmp_path):
    file = tmp_path / "run.yaml"
    file.write_text("trainer:\n  baselines: off\n  compile: on\n")
    trainer = RunConfig.from_dict(read_yaml(file)).trainer
    assert (trainer.baselines, trainer.compile) == ("off", "on")


def test_from_dict_does_not_modify_its_input():
    values = {"optimizer": {"peak_lr": 1}, "trainer": {"devices": 2}}
    RunConfig.from_dict(values)
    assert values == {"optimizer": {"peak_lr": 1}, "trainer": {"devices": 2}}
    assert RunConfig.from_dict({}) == RunConfig()


def test_unknown_preset_suggests_the_nearest():
    with pytest.raises(InputError, match=r"'pcqm4m-slise' \(did you mean 'pcqm4m-slice'\?\)"):
        read_preset("pcqm4m-slise")
    with pytest.raises(InputError, match="small"):
        RunConfig.preset("../demo")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"model: [1, 2", "line 1"), (b"model:\n\tlayers: 2", "line 2"), (b"\xff\xfe\x00\x80", ""),
        (b"model: !!python/object/apply:os.getcwd []", ""), (b"data: {dataset: 2024-13-45}", ""),
        (b"a: !!int ''", ""), (b"[" * 400, ""), (b"", "expected sections"), (b"- model", "expected sections"),
    ],
)  # fmt: skip
def test_file_without_configuration_is_rejected(tmp_path, content, message):
    file = tmp_path / "run.yaml"
    file.write_bytes(content)
    with pytest.raises(InputError, match=rf"cannot read .*run.yaml.*{message}"):
        read_yaml(file)


def test_missing_file_is_reported(tmp_path):
    with pytest.raises(InputError, match=r"absent.yaml: .*No such file"):
        read_yaml(tmp_path / "absent.yaml")
    with pytest.raises(InputError, match="cannot read"):
        read_yaml(tmp_path)


@pytest.mark.parametrize(
    ("folds", "fold", "expected"), [("5", 0, (5, 1)), (5, 4, (5, 1)), ("5x3", 14, (5, 3)), (None, None, (0, 1))]
)
def test_folds(folds, fold, expected):
    data = RunConfig.from_dict({"data": {"folds": folds, "fold": fold}}).data
    assert data.folds_and_repeats == expected


@pytest.mark.parametrize("folds", ["", "1", "x3", "5x0", "five", "-5", "5x3x2", 1])
def test_invalid_folds_are_rejected(folds):
    with pytest.raises(InputError, match=r"data\.folds must be "):
        RunConfig.from_dict({"data": {"folds": folds}})


@pytest.mark.parametrize(
    "sizes",
    ["", "1,0,0", "0.8,0.2", "80,10,10", "0.8 0.1 0.1", "1.1,0.1,-0.2", "nan,1,0"],
)
def test_invalid_split_sizes_are_rejected(sizes):
    with pytest.raises(InputError, match=r"data\.split_sizes must be three shares with the sum 1"):
        RunConfig.from_dict({"data": {"split_sizes": sizes}})


def test_split_sizes_and_folds_are_rejected():
    with pytest.raises(InputError, match="folds decide the sizes of the sets"):
        RunConfig.from_dict({"data": {"split_sizes": "0.8,0.1,0.1", "folds": "5"}})


@pytest.mark.parametrize("text", ["a,\nb\n", "a\nb", " a , b", '"a"\r\nb,'])
def test_names_may_be_separated_by_line_breaks(text):
    assert split_words(text) == ["a", "b"]


@pytest.mark.parametrize("text", ["a: [&a x, *a]", "a: &a {k: v}\nb: {<<: [*a, *a]}\n", "a: &a [*a]\n"])
def test_aliases_are_rejected(text, tmp_path):
    """A small file with aliases of aliases can hold exponentially many values."""
    (tmp_path / "run.yaml").write_text(text)
    with pytest.raises(InputError, match=r"cannot read .*run.yaml: it has aliases"):
        read_yaml(tmp_path / "run.yaml")
    with pytest.raises(InputError, match="cannot read the value"):
        parse_value(text)


@pytest.mark.parametrize("value", [["x"] * 10**6, {"x" * 10**6: 1}, "x" * 10**6])
def test_messages_truncate_long_values(value):
    for values in ({"trainer": {"max_epochs": value}}, {"init_from": [value]}, {"model": {"norm": value}}):
        with pytest.raises(InputError) as rejected:
            RunConfig.from_dict(values)
        assert len(str(rejected.value)) < 500
