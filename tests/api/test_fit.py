"""``gs.fit`` and ``gs.train``: same results as the command line, from every kind of input."""

import gc
import json
from dataclasses import replace

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import torch
from rdkit import Chem
from tiny import TINY
from torch_geometric.loader import DataLoader

import graphslice as gs
from graphslice.api.arguments import labelled_table
from graphslice.config import DataConfig, RunConfig
from graphslice.data.loaders import as_table, dataset_from_frame, load_dataset
from graphslice.report.load_run import read_run
from graphslice.training import resume

SETTINGS = {
    "model": dict(TINY),
    "trainer": {"max_epochs": 1, "batch_size": 16, "accelerator": "cpu", "baselines": "off"},
}


def fit(*arguments, **keywords):
    return gs.fit(*arguments, **{"config": SETTINGS, "quiet": True, **keywords})


PAPP = pd.DataFrame({"SMILES": ["C" * (1 + n) for n in range(20)], "Papp": [float(n) for n in range(20)]})


@pytest.mark.parametrize(
    ("arguments", "wrong", "meant"),
    [
        ({}, "pap", "Papp"),
        ({"features": "rdkit"}, "rdkit", "rdkit2d"),
        ({"split": "Scafold"}, "Scafold", "scaffold"),
    ],
)
def test_fit_suggests_columns(arguments, wrong, meant):
    with pytest.raises(gs.InputError, match=rf"no column {wrong!r} \(did you mean {meant!r}\?\)"):
        gs.fit(PAPP, "Papp" if arguments else wrong, **arguments, quiet=True)


@pytest.mark.parametrize("setting", [{"data.split": "no"}, {"data": {"split": "no"}}])
def test_settings_are_given_by_section_or_by_their_full_name(setting):
    with pytest.raises(gs.InputError, match="no column 'no'"):
        gs.fit(PAPP, "Papp", config=setting, quiet=True)


@pytest.fixture(scope="module")
def table(demo_rows) -> pd.DataFrame:
    """The demo set with numbers, classes, missing values and an arbitrary index; without its split column."""
    frame = demo_rows.drop(columns="split").copy()
    frame["active"] = pd.Categorical(np.where(frame["gap_ev"] > 3.3, "yes", "no"))
    frame["grade"] = np.array(["a", "b", "c"])[np.arange(60) % 3]
    frame["t"] = [*np.arange(59.0), np.nan]
    frame.loc[frame.index[4], "gap_ev"] = np.nan
    frame.index = pd.Index(range(200, 140, -1), name="row")
    return frame


def test_fine_tuning_from_another_run(table, tmp_path):
    """Model settings and weights are taken over from a run."""
    first = fit(table, "gap_ev", out=tmp_path / "first")
    settings = {"trainer": SETTINGS["trainer"], "optimizer": {"peak_lr": 1e-9}}
    second = fit(table, "gap_ev", init_from=tmp_path / "first", config=settings)
    np.testing.assert_allclose(second.predict(table), first.predict(table), atol=1e-4)
    assert second.config.model == first.config.model and second.metrics["init_from"] == str(tmp_path / "first")


def test_fit_matches_the_command_line(table, cli, tmp_path):
    table.to_csv(tmp_path / "t.csv", index=False)
    (tmp_path / "c.yaml").write_text(json.dumps(SETTINGS))
    targets, features = ["gap_ev", "active", "grade"], ["morgan", "t"]
    code, _, stderr = cli(
        *("train", "--dataset", tmp_path / "t.csv", "--targets", ",".join(targets), "--features", ",".join(features)),
        *("--config", tmp_path / "c.yaml", "--out", tmp_path / "of_cli"),
    )
    assert code == 0, stderr
    expected = gs.load(tmp_path / "of_cli", "cpu")
    model = fit(table, targets, features=features)
    assert model.tasks == expected.tasks and model.metrics == expected.metrics
    np.testing.assert_array_equal(model.predict(table), expected.predict(table))
    assert (model.folder / "split.csv").read_text() == (tmp_path / "of_cli" / "split.csv").read_text()


FRAMES = {
    "numbers": [1.5, np.nan, 3.0, 4.25], "whole": [1, 2, 3, 4], "halves": np.array([1, 2.5, 3, 4], np.float32),
    "truths": [True, False, True, True], "words": ["yes", "no", None, "yes"],
    "missing": pd.array([1, 2, None, 4], dtype="Int64"), "mixed": [1.5, "high", None, 2],
    "texts": ["1.5", "2", "", "4"],
}  # fmt: skip


@pytest.mark.parametrize("name", FRAMES)
def test_data_frame_is_read_like_its_csv_file(name, tmp_path):
    frame = pd.DataFrame({"smiles": ["CCO", "C", "CC", "oops"], name: FRAMES[name]}, index=[1, 1, 2, 0])
    frame.to_csv(tmp_path / "t.csv", index=False)
    dataset = dataset_from_frame(frame, DataConfig(targets=name))
    expected = load_dataset(DataConfig(dataset=str(tmp_path / "t.csv"), targets=name))
    assert dataset.tasks == expected.tasks and dataset.smiles == expected.smiles
    np.testing.assert_array_equal(dataset.targets, expected.targets)
    assert dataset.rejected == expected.rejected


def test_types_unknown_to_arrow_become_text():
    frame = pd.DataFrame({"a": [1 + 2j, None], "b": [b"a", 1.5], "c": [Chem.MolFromSmiles("OCC"), Chem.Mol()]})
    assert as_table(frame).to_pydict() == {"a": ["(1+2j)", ""], "b": ["b'a'", "1.5"], "c": ["CCO", ""]}
    bins = pd.DataFrame({"smiles": ["C", "CC"], "bin": pd.cut(pd.Series([0.5, np.nan]), [0, 1, 2])})
    assert as_table(bins).column("bin").to_pylist() == ["(0.0, 1.0]", ""]


def test_pair_of_a_frame_and_masked_labels():
    labels = np.ma.masked_array([1, -999], [False, True])
    table = labelled_table(pd.DataFrame({"smiles": ["C", "CC"]}), labels)
    assert table.to_pydict() == {"smiles": ["C", "CC"], "y": [1.0, None]}


@pytest.fixture
def dataset_of(training_of):
    """``dataset_of(data, targets)``: the labelled molecules on which ``fit`` trains, and ``train`` too."""

    def train(data, targets=None):
        gs.train(RunConfig(data=DataConfig(targets=targets)), "run", data)

    def dataset_of(*arguments):
        trainings = [training_of(function, *arguments) for function in (fit, train)]
        of_fit, of_train = (load_dataset(one.config.data, data=one.data) for one in trainings)
        assert of_train.fingerprint() == of_fit.fingerprint() and of_train.tasks == of_fit.tasks
        return of_fit

    return dataset_of


def as_graphs(smiles, labels) -> list:
    """The PyG graphs of some SMILES, with labels."""
    graphs = [gs.smiles_to_graph(text).to_pyg() for text in smiles]
    for graph, label in zip(graphs, labels, strict=True):
        graph.y = torch.tensor([label], dtype=torch.float64)
    return graphs


@pytest.mark.parametrize("kind", ["dict", "arrow", "batch", "arrays", "series", "lists", "mols", "matrix"])
def test_fit_accepts_every_container_of_molecules_and_labels(kind, dataset_of, demo_rows):
    smiles, y = demo_rows["smiles"], demo_rows["gap_ev"]
    data, targets = {
        "dict": ({"smiles": smiles.tolist(), "gap_ev": y.tolist()}, "gap_ev"),
        "arrow": (pa.table({"smiles": smiles.tolist(), "gap_ev": y.tolist()}), ["gap_ev"]),
        "batch": (pa.RecordBatch.from_pydict({"smiles": smiles.tolist(), "gap_ev": y.tolist()}), ["gap_ev"]),
        "arrays": ((smiles.to_numpy(), y.to_numpy()), "gap_ev"),
        "series": ((smiles, y), None),
        "lists": ((smiles.tolist(), y.tolist()), "gap_ev"),
        "mols": (([Chem.MolFromSmiles(one) for one in smiles], y), None),
        "matrix": ((smiles, y.to_frame()), None),
    }[kind]
    dataset = dataset_of(data, targets)
    assert dataset.target_names == ["gap_ev"]
    assert [*map(Chem.CanonSmiles, dataset.smiles)] == [*map(Chem.CanonSmiles, smiles)]
    np.testing.assert_array_equal(dataset.targets, y.to_numpy()[:, None])


def test_fit_on_pyg_graphs_gives_the_model_of_their_smiles(demo_rows):
    """With base models; the model is evaluated on graphs too."""
    smiles, y = demo_rows["smiles"], demo_rows["gap_ev"]
    config = {**SETTINGS, "trainer": {**SETTINGS["trainer"], "baselines": "auto"}}
    expected, graphs = fit((smiles, y), "gap_ev", config=config), as_graphs(smiles, y)
    model = fit(graphs, "gap_ev", config=config)
    assert model.stackings[0] is not None and model.metrics == expected.metrics
    np.testing.assert_array_equal(model.predict(smiles), expected.predict(smiles))
    assert model.evaluate(graphs) == expected.evaluate((smiles, y), "gap_ev")
    with pytest.raises(gs.InputError, match=r"the training data of .* is not there"):
        model.evaluate()


def test_train_and_fit_take_any_iterable_of_graphs(dataset_of, demo_rows):
    graphs = as_graphs(demo_rows["smiles"][:12], demo_rows["gap_ev"][:12])
    subset = torch.utils.data.Subset(graphs, range(10))
    assert dataset_of(graphs).target_names == ["y"] and len(dataset_of(tuple(graphs), ["gap"])) == 12
    assert dataset_of(subset, "gap").target_names == ["gap"] and len(dataset_of(subset)) == 10
    assert dataset_of(DataLoader(graphs, batch_size=5)).fingerprint() == dataset_of(graphs).fingerprint()


def test_unnamed_targets_get_default_names(dataset_of, demo_rows):
    y = np.stack([demo_rows["gap_ev"], demo_rows["gap_ev"] * 2], axis=1)
    assert dataset_of((demo_rows["smiles"], y)).target_names == ["y0", "y1"]
    assert dataset_of((demo_rows["smiles"], y[:, 0])).target_names == ["y"]
    assert dataset_of((demo_rows["smiles"], y), ["a, b", "smiles"]).target_names == ["a, b", "smiles"]
    assert dataset_of((demo_rows["smiles"], pd.DataFrame(y)[0])).target_names == ["0"]
    assert labelled_table(["C"], pd.Series([1.0], name="")).column_names == ["smiles", "y"]


@pytest.mark.parametrize(
    ("data", "keywords", "message"),
    [
        (3, {}, "or PyG graphs with y, not int"),
        (["C", "CC"], {}, "or PyG graphs with y, not list"),
        ([gs.smiles_to_graph("C")], {}, "or PyG graphs with y, not list"),
        ((["C", gs.smiles_to_graph("C")], [1, 2]), {}, "give PyG graphs their labels as y"),
        ((["C", "CC"], [1]), {}, r"shape \[1\], but there are 2 SMILES"),
        (pd.DataFrame({"smiles": []}), {}, "no rows"),
        (PAPP, {"config": {"trainer": {"epochs": 3}}}, "unknown configuration key"),
        (PAPP, {"preset": "small", "config": RunConfig()}, "leave them out"),
        (PAPP, {"preset": "small", "init_from": "gap"}, "leave out preset"),
        (PAPP, {"config": {"trainer": {"devices": "2"}}}, "fit, unlike graphslice.train, uses one device"),
        ((["C", "CC"], [[1, 2], [3, 4]]), {"targets": "a"}, "1 names for 2 targets"),
    ],
    ids=str,
)
def test_fit_rejects_invalid_input(data, keywords, message, tmp_path):
    with pytest.raises(gs.InputError, match=message):
        fit(data, **keywords, out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_temporary_run_directory_lives_as_long_as_the_model(demo_rows):
    model = fit(demo_rows, "gap_ev")
    folder = model.folder
    assert model.evaluate()["mae"] == pytest.approx(model.metrics["test"]["mae"], rel=1e-5)
    del model
    gc.collect()
    assert not folder.exists()


def test_arguments_set_the_settings_that_they_name(demo_rows, training_of):
    """Also as scalars of numpy."""
    settings = {"epochs": np.int64(1), "minutes": np.float64(9), "seed": np.int64(3), "ensemble": np.int64(1)}
    config = training_of(fit, demo_rows[:30], "gap_ev", folds="2x2", **settings).config
    assert config.trainer == replace(config.trainer, max_epochs=1, max_minutes=9.0, seed=3, ensemble=1)
    assert config.data.folds == "2x2" and type(config.trainer.max_epochs) is int


def test_model_whose_run_was_replaced_does_not_read_that_of_another(demo_rows, tmp_path):
    first = fit(demo_rows[:40], "gap_ev", out=tmp_path / "run")
    metrics, scores = first.metrics, first.evaluate(demo_rows[40:], split="all")
    fit(demo_rows[20:], "gap_ev", out=tmp_path / "run")
    assert first.metrics == metrics and first.evaluate(demo_rows[40:], split="all") == scores
    for read in (lambda: first.predict("CCO", nearest=True), first.evaluate):
        with pytest.raises(gs.InputError, match="no longer holds the run of this model"):
            read()
    with pytest.raises(gs.InputError, match="holds a run already"):
        fit(demo_rows, "gap_ev", out=tmp_path / "run", overwrite=False)
    first.save(tmp_path / "saved")
    saved = gs.load(tmp_path / "saved", "cpu")
    assert saved.metrics == metrics and not (tmp_path / "saved" / "split.csv").exists()
    assert saved.predict("CCO") == first.predict("CCO")


def test_predicted_classes_in_a_table_have_the_type_of_the_labels(demo_rows):
    labels = [False, True]
    frame = pd.DataFrame({"smiles": demo_rows["smiles"], "y": labels * 30})
    model = fit(frame, "y", config={**SETTINGS, "data": {"task": "binary"}})
    table = model.predict([*frame["smiles"], "C[N"], details=True).to_frame()
    assert set(table["y_pred"][:60]) <= set(labels) and pd.isna(table["y_pred"][60])
    assert 0 < (table["y_pred"][:60] == frame["y"]).sum() <= 60


def test_columns_of_a_dict_are_paired_by_position(demo_rows, dataset_of):
    mixed = demo_rows["gap_ev"].sample(frac=1, random_state=0)
    smiles = demo_rows["smiles"][mixed.index].reset_index(drop=True)
    expected = dataset_of((smiles.tolist(), mixed.to_numpy()), "gap_ev")
    assert dataset_of({"smiles": smiles, "gap_ev": mixed}, "gap_ev").fingerprint() == expected.fingerprint()


def test_inference_device_is_the_training_device(demo_rows, tmp_path, monkeypatch):
    """A GPU that is available but was not used for training is not used for inference."""
    monkeypatch.setattr("graphslice.inference.predictor.default_device", lambda: "cuda")
    model = fit(demo_rows[:30], "gap_ev", out=tmp_path / "run")
    trained = gs.train(model.config, tmp_path / "again", data=demo_rows[:30])
    assert model.predict("CCO") == trained.model.predict("CCO")


def test_random_numbers_of_torch_are_restored(demo_rows):
    torch.manual_seed(5)
    before = torch.get_rng_state()
    fit(demo_rows[:30], "gap_ev")
    assert torch.equal(torch.get_rng_state(), before)


def test_saved_model_includes_its_data_frame(demo_rows, cli, tmp_path):
    model = fit(demo_rows, "gap_ev")
    model.save(tmp_path / "kept")
    expected = model.metrics
    del model
    gc.collect()
    code, out, _ = cli("evaluate", tmp_path / "kept")
    assert code == 0 and f"MAE {expected['test']['mae']:.4f}"[:9] in out
    assert gs.load(tmp_path / "kept", "cpu").evaluate()["mae"] == pytest.approx(expected["test"]["mae"], rel=1e-5)


@pytest.mark.usefixtures("in_this_process")
def test_moved_run_directory_finds_its_data_frame(demo_rows, tiny_config, cli, tmp_path):
    """Configurations keep the former path of the table; members name the table in the parent directory."""
    config = tiny_config(data={"targets": "gap_ev"}, trainer={"max_epochs": 1, "ensemble": 2})
    expected = gs.train(config, tmp_path / "run", data=demo_rows).metrics
    (tmp_path / "run").rename(tmp_path / "moved")
    assert gs.load(tmp_path / "moved", "cpu").evaluate()["mae"] == pytest.approx(expected["test"]["mae"], rel=1e-5)
    assert cli("evaluate", tmp_path / "moved" / "member-1")[0] == 0
    assert read_run(tmp_path / "moved").data_error is None
    for path in (tmp_path / "moved" / "metrics.json", tmp_path / "moved" / "member-2" / "metrics.json"):
        path.unlink()
    assert resume(tmp_path / "moved").metrics["test"] == expected["test"]


def test_targets_may_be_a_list(demo_rows, tiny_config, tmp_path):
    demo_rows.assign(**{"a,b": demo_rows["gap_ev"] * 2}).to_csv(tmp_path / "t.csv", index=False)
    config = tiny_config(tmp_path / "t.csv")
    config.data.targets, config.data.features = ["gap_ev", "a,b"], ["morgan"]
    assert gs.train(config, tmp_path / "run").model.targets == ["gap_ev", "a,b"]
