"""Fine-tuning: copied weights, linear probe, frozen parameters, learning rates and the default initialisation."""

import io
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from rich.console import Console
from sklearn.linear_model import Ridge
from torch.nn import functional as F

from graphslice import GraphTransformer, InputError, ModelConfig, smiles_to_graph
from graphslice.config import FROM_SCRATCH, DataConfig, OptimizerConfig, RunConfig
from graphslice.data.batches import collate
from graphslice.data.datamodule import MoleculeData
from graphslice.data.labels import Labels
from graphslice.data.loaders import load_dataset
from graphslice.inference import load
from graphslice.report.model_card import model_card
from graphslice.report.write import write_report
from graphslice.runs.checkpoint import Checkpoint, read_checkpoint, save_checkpoint, write_run_directory
from graphslice.runs.run_files import read_metrics
from graphslice.system.machine import DEMO_CSV, MODELS, PRETRAINED_MODEL
from graphslice.tasks import Task, regression_tasks
from graphslice.training import resume, train
from graphslice.training.fine_tuning import load_pretrained_weights, ridge, seen_in_pretraining
from graphslice.training.loop import TrainingLoop, freeze, parameter_groups
from graphslice.training.module import PropertyModule
from graphslice.training.resolve import resolve


def model_of(tasks: int = 1, seed: int = 0, **settings) -> GraphTransformer:
    torch.manual_seed(seed)
    return GraphTransformer(ModelConfig(layers=3, dim=16, heads=2, ffn_dim=16, tasks=tasks, **settings))


def checkpoint_of(model: GraphTransformer, targets: list[str]) -> Checkpoint:
    return Checkpoint(
        RunConfig(model=model.config), regression_tasks(targets), {k: v.clone() for k, v in model.state_dict().items()}
    )


@pytest.mark.parametrize("head", ["linear", "mlp"])
def test_same_targets_copy_all_weights(head):
    origin, model = model_of(head=head), model_of(seed=1, head=head)
    origin.target_mean.fill_(3.0)
    checkpoint = checkpoint_of(origin, ["y"])
    checkpoint.tasks = [
        replace(checkpoint.tasks[0], unit="eV", description="of a packaged model", reference=(1.0, 2.0))
    ]
    message, is_all = load_pretrained_weights(model, checkpoint, regression_tasks(["y"]))
    assert is_all and "including the output head (same targets)" in message
    assert all(
        torch.equal(a, b) for a, b in zip(model.state_dict().values(), origin.state_dict().values(), strict=True)
    )


@pytest.mark.parametrize(
    ("head", "last"), [("linear", ["head.weight", "head.bias"]), ("mlp", ["head.output.weight", "head.output.bias"])]
)
def test_other_targets_get_a_new_output_layer(head, last):
    origin, model = model_of(head=head), model_of(tasks=2, seed=1, head=head)
    model.target_mean.fill_(7.0)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    message, is_all = load_pretrained_weights(model, checkpoint_of(origin, ["y"]), regression_tasks(["a", "b"]))
    assert not is_all and "newly initialised for a, b" in message
    for name, value in model.state_dict().items():
        kept = name in [*last, "target_mean", "target_std"]
        assert torch.equal(value, before[name] if kept else origin.state_dict()[name]), name


def test_another_level_gets_a_new_head():
    model, origin = model_of(seed=1, level="atom", readout="mean"), model_of(readout="mean")
    message, _ = load_pretrained_weights(model, checkpoint_of(origin, ["y"]), regression_tasks(["y"]))
    assert "the output head (newly initialised for y)" in message
    assert torch.equal(model.blocks[0].ffn.expand.weight, origin.blocks[0].ffn.expand.weight)


def test_same_targets_with_standard_deviations_get_a_new_output_layer():
    """The loss ``gaussian`` has further outputs, for which a linear probe is fitted."""
    model, origin = model_of(tasks=2, seed=1), checkpoint_of(model_of(), ["y"])
    message, is_all = load_pretrained_weights(model, origin, regression_tasks(["y"]))
    assert not is_all and "newly initialised for y" in message


def test_another_architecture_is_said_and_weights_of_another_size_are_rejected():
    model, origin = model_of(mixer="csp", readout="max+atomwise", seed=1), model_of()
    message, is_all = load_pretrained_weights(model, checkpoint_of(origin, ["y"]), regression_tasks(["y"]))
    assert not is_all and "except the first layer of the head (another readout)" in message
    assert "trained in another architecture: model.mixer is" in message
    assert torch.equal(model.blocks[0].ffn.expand.weight, origin.blocks[0].ffn.expand.weight)
    larger = GraphTransformer(ModelConfig(layers=3, dim=32, heads=2, ffn_dim=16))
    with pytest.raises(InputError, match=r"model\.dim is 16 in the checkpoint, but 32 in this run"):
        load_pretrained_weights(larger, checkpoint_of(origin, ["y"]), regression_tasks(["y"]))


def trainable(model: GraphTransformer) -> set[str]:
    names = [name.replace("blocks.", "blocks").split(".")[0] for name, p in model.named_parameters() if p.requires_grad]
    return set(names)


def test_frozen_parameters_are_not_trainable():
    everything = {"atoms", "pairs", "blocks0", "blocks1", "blocks2", "norm", "head"}
    for frozen, rest in [
        ("none", everything),
        ("embeddings", everything - {"atoms", "pairs"}),
        ("blocks:2", {"blocks2", "norm", "head"}),
        ("blocks:3", {"norm", "head"}),
    ]:
        model = model_of()
        freeze(model, frozen)
        assert trainable(model) == rest, frozen
    with pytest.raises(InputError, match="blocks must be from 0 to 3"):
        freeze(model_of(), "blocks:4")
    with pytest.raises(InputError, match=r"trainer\.freeze must be"):
        RunConfig.from_dict({"trainer": {"freeze": "all"}})
    with pytest.raises(InputError, match="needs pretrained weights: add init_from small"):
        RunConfig.from_dict({"trainer": {"freeze": "blocks:1"}})


def rate_of(model: GraphTransformer, **settings) -> dict[str, float]:
    """Return the learning rate of every parameter, and check that each is in exactly one group."""
    groups = parameter_groups(model, OptimizerConfig(peak_lr=1.0, **settings))
    names = {parameter: name for name, parameter in model.named_parameters()}
    rates = {names[parameter]: group["lr"] for group in groups for parameter in group["params"]}
    assert len(rates) == sum(len(group["params"]) for group in groups)
    return rates


def test_learning_rates_by_depth():
    model = model_of()
    assert set(rate_of(model).values()) == {1.0} and len(rate_of(model)) == len(list(model.parameters()))
    rates = rate_of(model, layer_lr_decay=0.5, structure_lr_factor=10.0)
    assert rates["head.weight"] == rates["norm.bias"] == 1.0
    assert [rates[f"blocks.{i}.ffn.expand.weight"] for i in range(3)] == [0.125, 0.25, 0.5]
    assert rates["atoms.token.weight"] == 0.0625 and rates["pairs.spatial.weight"] == 0.625
    freeze(model, "blocks:1")
    assert not any(name.startswith(("atoms", "pairs", "blocks.0")) for name in rate_of(model))


def test_training_logits_match_predicted_probabilities(tiny_config):
    """Also if the class frequencies differ from those of the checkpoint whose head is copied."""
    tasks, config = [Task("y", "binary", ("no", "yes"))], tiny_config(model={"dropout": 0.0, "input_dropout": 0.0})
    rare = PropertyModule(config, tasks, np.repeat([0.0, 1.0], [95, 5])[:, None], "auroc")
    module = PropertyModule(config, tasks, np.repeat([0.0, 1.0], [50, 50])[:, None], "auroc")
    load_pretrained_weights(module.model, Checkpoint(config, tasks, rare.model.state_dict()), tasks)
    labels = Labels.of_molecules(np.array([[1.0], [0.0]]))
    batch = collate([smiles_to_graph(smiles) for smiles in ("CCO", "CC")], targets=labels)
    predictions = module.eval().model(batch)
    expected = F.binary_cross_entropy_with_logits(predictions, batch.targets)
    torch.testing.assert_close(module(batch), expected)
    assert predictions.mean() < -2


def test_resumed_fine_tuning_with_frozen_blocks_matches_uninterrupted_run(
    run_directory, demo_rows, tiny_config, tmp_path, weights_of
):
    """A stopped and resumed run ends with the same weights as an uninterrupted one."""
    table = demo_rows.assign(a=demo_rows["gap_ev"] * 2, b=-demo_rows["gap_ev"]).drop(columns="gap_ev")
    table.to_csv(tmp_path / "two.csv", index=False)
    base = tiny_config(tmp_path / "two.csv", data={"targets": "a,b"})
    origin = read_checkpoint(run_directory)
    config = base.fine_tuned_from(origin.config, run_directory)
    config.trainer.freeze = "embeddings"
    assert config.optimizer.peak_lr == origin.config.optimizer.peak_lr and config.optimizer.warmup_steps is None
    train(config, tmp_path / "whole")
    weights = weights_of(tmp_path / "whole")
    assert np.array_equal(weights["atoms.atom.weight"], origin.weights["atoms.atom.weight"])
    assert not np.array_equal(weights["blocks.0.ffn.expand.weight"], origin.weights["blocks.0.ffn.expand.weight"])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(TrainingLoop, "_finished", lambda self: self.state.step >= 3)
        train(config, tmp_path / "parts")
    (tmp_path / "parts" / "metrics.json").unlink()
    resume(tmp_path / "parts")
    again = weights_of(tmp_path / "parts")
    assert all(np.array_equal(value, again[name]) for name, value in weights.items())


def test_names_in_brackets_are_not_markup(run_directory, demo_rows, tiny_config, tmp_path):
    """A unit such as [/h] would be read as a closing tag."""
    home = tmp_path / "[final]"
    home.mkdir()
    demo_rows.rename(columns={"gap_ev": "rate [/h]"}).to_csv(home / "t.csv", index=False)
    config = tiny_config(home / "t.csv", data={"targets": "rate [/h]"}, trainer={"max_epochs": 1})
    screen = io.StringIO()
    train(replace(config, init_from=str(run_directory)), home / "run", console=Console(file=screen, width=500))
    output = screen.getvalue()
    assert "newly initialised for rate [/h]" in output and f"{home / 't.csv'}: 60 rows" in output
    assert f"model: {home / 'run'}" in output


def test_imported_model_is_fine_tuned(demo_csv, tmp_path, cli):
    """With the atom order and path choice of the original implementation, and its weights."""
    shape = {"mixer": "softmax", "layers": 1, "dim": 16, "heads": 2, "ffn_dim": 16, "norm": "post", "head": "mlp"}
    graph = {"atom_order": "input", "path_ties": "floyd-warshall"}
    config = RunConfig.from_dict({"model": shape, "graph": graph})
    model = GraphTransformer(config.model)
    write_run_directory(
        Checkpoint(config, regression_tasks(["homolumogap"]), model.state_dict()), tmp_path / "imported"
    )
    flags = ["--trainer.max_epochs", "1", "--trainer.freeze", "blocks:1", "--baselines", "off"]
    code, _, err = cli(
        "train", "--dataset", demo_csv, "--init-from", tmp_path / "imported", "-o", tmp_path / "run", *flags
    )
    assert code == 0 and "newly initialised for gap_ev" in err and "frozen: blocks:1; " in err
    found = read_checkpoint(tmp_path / "run")
    assert found.config.graph == config.graph and found.config.model.norm == "post"
    assert np.array_equal(
        found.weights["blocks.0.mixer.query.weight"], model.state_dict()["blocks.0.mixer.query.weight"]
    )
    assert not np.array_equal(found.weights["head.transform.weight"], model.state_dict()["head.transform.weight"])


# --- default initialisation -----------------------------------------------------------------------


@pytest.fixture
def packaged_model(run_directory, tmp_path, monkeypatch):
    """Make the tiny run the packaged model that small training sets are fine-tuned from."""
    origin = read_checkpoint(run_directory)
    slow = replace(origin.config, optimizer=replace(origin.config.optimizer, peak_lr=1e-4))
    # Carbon is 5: OGB counts from 0.
    known = replace(origin, config=slow, extra={"elements": [5, 6, 7, 8, 15, 16, 34]})
    save_checkpoint(known, tmp_path / "small.safetensors")
    monkeypatch.setitem(MODELS, PRETRAINED_MODEL, tmp_path / "small.safetensors")
    return origin


def initialised_from(packaged_model, table, tiny_config, **sections) -> RunConfig:
    """Return the complete configuration of a run on a table."""
    config = replace(tiny_config(table, **sections), graph=packaged_model.config.graph)
    return resolve(config, load_dataset(config.data), Path(), Console(quiet=True))[0].config


def test_small_dataset_is_fine_tuned_from_the_packaged_model(
    packaged_model, demo_csv, tiny_config, tmp_path, monkeypatch
):
    def origin(**sections) -> str | None:
        return initialised_from(packaged_model, demo_csv, tiny_config, **sections).init_from

    config = replace(tiny_config(demo_csv), graph=replace(packaged_model.config.graph, max_atoms=600))
    train(config, tmp_path / "run")
    assert read_checkpoint(tmp_path / "run").config.init_from == PRETRAINED_MODEL
    assert resume(tmp_path / "run").metrics["init_from"] == PRETRAINED_MODEL
    assert origin(model={"dim": 32}) == FROM_SCRATCH
    monkeypatch.chdir(tmp_path)
    (tmp_path / PRETRAINED_MODEL).mkdir()  # a directory of the user with the same name
    assert origin() == str(MODELS[PRETRAINED_MODEL])
    monkeypatch.setattr("graphslice.training.resolve._MAX_FINE_TUNED", 40)
    assert origin() == FROM_SCRATCH


def test_molecules_that_the_checkpoint_was_trained_on_are_counted(
    run_directory, demo_csv, demo_rows, tiny_config, tmp_path
):
    """``--init-from`` a run on other rows of the same table; report and model card say so with the scores."""
    other = {"train": "test", "test": "train", "valid": "valid"}
    demo_rows.assign(split=demo_rows["split"].map(other)).to_csv(tmp_path / "swapped.csv", index=False)
    known, screen = int((demo_rows["split"] == "train").sum()), io.StringIO()
    for name, table in (("same", demo_csv), ("swapped", tmp_path / "swapped.csv")):
        config = replace(tiny_config(table), init_from=str(run_directory))
        train(config, tmp_path / name, console=Console(file=screen, width=500))
        model = load(tmp_path / name, "cpu")
        card = model_card(model, read_metrics(tmp_path / name), "me/mine", "mit")
        for text in (screen.getvalue(), write_report(tmp_path / name).read_text(), card):
            assert (f"{known} of the {known} test molecules" in text) == (name == "swapped")


def test_members_of_an_ensemble_start_from_the_same_model(packaged_model, demo_csv, tiny_config):
    config = replace(tiny_config(demo_csv, trainer={"ensemble": 2}), graph=packaged_model.config.graph)
    config = replace(config, optimizer=replace(config.optimizer, peak_lr=None))
    complete, _ = resolve(config, load_dataset(config.data), Path(), Console(quiet=True))
    starts = [(one.init_from, one.optimizer.peak_lr) for one in (complete.config, *complete.members.values())]
    assert starts == [(PRETRAINED_MODEL, 1e-4)] * 3


def test_learning_rate_of_the_packaged_model_unless_one_was_set(packaged_model, demo_csv, tiny_config):
    for value, expected in ((None, 1e-4), (5e-4, 5e-4)):
        found = initialised_from(packaged_model, demo_csv, tiny_config, optimizer={"peak_lr": value})
        assert found.optimizer.peak_lr == expected
    found = initialised_from(packaged_model, demo_csv, tiny_config, optimizer={"peak_lr": None}, model={"dim": 32})
    assert found.optimizer.peak_lr == 4e-3


def test_unknown_elements_train_from_scratch(packaged_model, demo_rows, tiny_config, tmp_path):
    demo_rows.assign(smiles="[Fe]." + demo_rows["smiles"]).to_csv(tmp_path / "iron.csv", index=False)
    assert initialised_from(packaged_model, tmp_path / "iron.csv", tiny_config).init_from == FROM_SCRATCH


@pytest.mark.parametrize(
    ("name", "alike"), [("molwt", "MolWt"), ("HOMO-LUMO gap", "homo"), ("exp. logP", "MolLogP"), ("solubility", None)]
)
def test_targets_seen_in_pretraining_are_named(tmp_path, name, alike):
    table = "".join(f"{'C' * (n % 30 + 1)}{'O' * (n // 30)},{n * 7 % 60}.5\n" for n in range(60))
    (tmp_path / "t.csv").write_text(f"smiles,{name}\n{table}")
    config = DataConfig(str(tmp_path / "t.csv"), targets=name, cache=str(tmp_path))
    splits = {"train": np.arange(58), "valid": np.array([58]), "test": np.array([59])}
    data = MoleculeData(load_dataset(config), RunConfig(data=config), splits=splits)
    note = seen_in_pretraining(checkpoint_of(model_of(), ["homo", "MolWt", "MolLogP"]), data)
    assert note is None if alike is None else f"similar to {name} ({alike}): " in note and "by their names" in note


def test_ridge_matches_scikit_learn():
    """With the best penalty on the validation rows, and the explained variance."""
    random = np.random.default_rng(0)
    x, truth = random.normal(size=(60, 9)) * np.arange(1, 10), random.normal(size=9)
    y = x @ truth + random.normal(size=60) * 20 + 5
    weight, bias, explained = ridge(x[:40], y[:40], x[40:], y[40:])
    total = np.square(x[:40] - x[:40].mean(axis=0)).sum()
    others = [Ridge(penalty * total).fit(x[:40], y[:40]) for penalty in np.logspace(-4, 1, 11)]
    best = max(others, key=lambda fit: fit.score(x[40:], y[40:]))
    np.testing.assert_allclose(weight, best.coef_, rtol=1e-8)
    assert bias == pytest.approx(best.intercept_) and explained == pytest.approx(best.score(x[40:], y[40:]))


def test_ridge_on_constant_features_predicts_the_mean():
    x = np.zeros((5, 3))
    weight, bias, explained = ridge(x, np.arange(5.0), x, np.arange(5.0))
    assert not weight.any() and bias == 2 and explained == pytest.approx(0)


@pytest.fixture
def two_targets(tmp_path):
    """A table with the gap, on which ``small`` was pretrained, whether it is wide, and random numbers."""
    rows = pd.read_csv(DEMO_CSV).head(300)
    wide = np.where(rows["gap_ev"] > rows["gap_ev"].median(), "yes", "no")
    table = rows.assign(wide=wide, chance=np.random.default_rng(0).normal(size=len(rows)))
    table.to_csv(tmp_path / "table.csv", index=False)
    return tmp_path / "table.csv"


def test_only_explained_targets_are_fitted(cli, two_targets, tmp_path):
    """After a single step the predictions are those of the fit; the random target was not fitted."""
    flags = ["--baselines", "off", "--trainer.max_steps", "1", "--optimizer.peak_lr", "1e-9", "--init-from", "small"]
    table = ["train", "--dataset", two_targets, "--targets", "gap_ev,wide,chance"]
    code, _, err = cli(*table, "-o", tmp_path / "run", *flags, "-v")
    assert code == 0 and "a linear probe initialises the output layer\nnote: peak learning rate 1e-09\n" in err
    assert " parameters, precision 32-true\n" in err
    rows = pd.read_csv(two_targets)
    rows = rows[rows["split"] == "test"]
    found = load(tmp_path / "run", "cpu").predict(rows["smiles"].tolist(), details=True)
    values = dict(zip(found.columns, found.values.T, strict=True))
    assert np.corrcoef(values["gap_ev"], rows["gap_ev"])[0, 1] > 0.85
    assert ((values["wide_prob_yes"] > 0.5) == (rows["wide"] == "yes")).mean() > 0.8
    assert np.ptp(values["chance"]) < 0.5
