"""Models that read descriptors: the promises, columns of the user's own, and what cannot be."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from invariance import check_batch_independence

import graphslice as gs
from graphslice import InputError
from graphslice.analysis.activations import activations
from graphslice.analysis.attribution import attribute
from graphslice.analysis.inspection import inspect, read_input_molecules
from graphslice.checkpoint import Checkpoint, read_checkpoint, save_checkpoint
from graphslice.chem.descriptors import compute_descriptors, descriptor_width
from graphslice.config import DataConfig, GraphConfig, ModelConfig, RunConfig
from graphslice.data.featurize import featurize_dataset, featurizer_pool
from graphslice.doctor.agreement import compute_step
from graphslice.evaluation.evaluate import evaluate, load_evaluation_data
from graphslice.inference.files import predict_file
from graphslice.inference.predictor import Predictor, load
from graphslice.nn import GraphTransformer
from graphslice.tasks import regression_tasks
from graphslice.training import resume, train

TINY = {"layers": 1, "dim": 16, "heads": 2, "ffn_dim": 16, "mixer": "slice-max"}
ODD = ["[Fe]", "[Na+].[Cl-]", "C", "[NH4+]", "C[C@H](N)C(=O)O", "C/C=C\\C", "[H][H]", "C" * 120, "C[Si](C)(C)[U]"]


def predictor_of(features: str, smiles: list[str], scale: float = 8.0, **model) -> Predictor:
    """Untrained, but for the standardisation; the own columns from 0 to 10."""
    data = DataConfig(features=features)
    config = ModelConfig(**{**TINY, **model}, descriptors=descriptor_width(data.descriptors))
    torch.manual_seed(0)
    net = GraphTransformer(config)
    with torch.no_grad():
        for parameter in net.parameters():
            if parameter.dim() > 1:
                parameter.mul_(scale)
    found = compute_descriptors(smiles, ["morgan", "rdkit2d"])
    ramp = np.linspace(0, 10, len(smiles))[:, None]
    columns = [found.get(name, ramp) for name in data.descriptors]
    net.descriptors.fit(torch.from_numpy(np.hstack(columns).astype(np.float32)))
    return Predictor(Checkpoint(RunConfig(data=data, model=config), regression_tasks(["y"]), net.state_dict()), "cpu")


# --- a prediction depends on the molecule alone; every molecule gets an answer ------------------


@pytest.mark.parametrize("scale", [1.0, 8.0], ids=["untrained", "enlarged"])
def test_neither_the_batch_nor_the_spelling_matters(scale, demo_smiles):
    model = predictor_of("morgan,rdkit2d", demo_smiles[:40], scale, mixer="slice-quantile", layers=2)
    check_batch_independence(lambda smiles: model.predict(smiles)[:, 0], ODD + demo_smiles[:12])


def test_descriptors_matter_and_bad_rows_keep_their_places(demo_smiles):
    model = predictor_of("rdkit2d", demo_smiles[:40])
    found = model.predict(["CCO", "oops", "c1ccccc1", ""], details=True)
    assert [bool(error) for error in found.errors] == [False, True, False, True]
    assert np.isnan(found.values[:, 0]).tolist() == [False, True, False, True]
    with torch.no_grad():
        model.model.descriptors.project.weight.zero_()
    assert model.predict("CCO") != found.values[0]


def test_every_number_of_a_column_gets_an_answer(demo_smiles):
    model = predictor_of("t", demo_smiles[:40])
    values = [0, 5, 10, 1e30, np.inf, -np.inf, np.nan, None, "7", 5.0]
    found = model.predict(["CCO"] * len(values), columns={"t": values})[:, 0]
    assert np.isfinite(found).all() and len(set(found[:3])) == 3
    assert found[4] == found[5] == found[6] == found[7] == found[1] == found[9]  # unknown: the mean
    assert found[3] == found[2] or abs(found[3]) < 1e6


# --- columns of the user's own ------------------------------------------------------------------


def test_columns_in_python(demo_smiles):
    model = predictor_of("t,morgan,u", demo_smiles[:40])
    both = {"t": np.array([1, 2]), "u": [3.0, None]}
    found = model.predict(["CCO", "CC"], columns=both)
    assert model.predict("CCO", columns={"u": 3, "t": 1})[0] == pytest.approx(found[0], rel=1e-6)
    for columns, reason in [
        (None, r"the model reads the columns 't', 'u' beside the molecule: give a table"),
        ({"t": [1, 2]}, r"reads the column 'u' beside"),
        ({**both, "v": [1, 2]}, r"reads no column 'v'.*it has 't', 'u'"),
        ({**both, "t": [1]}, r"'t' has the shape \[1\] for 2 molecules"),
        ({**both, "t": ["hot", 2]}, r"'t' holds values that are no numbers"),
    ]:
        with pytest.raises(InputError, match=reason):
            model.predict(["CCO", "CC"], columns=columns)
    with pytest.raises(InputError, match="reads no column 't'"):
        predictor_of("morgan", demo_smiles[:10]).predict("C", columns={"t": 1})
    with pytest.raises(InputError, match="the model reads the column"):
        next(model.predict_stream([["CCO"]]))


def test_graphs_have_no_smiles(demo_smiles):
    graph = gs.smiles_to_graph("CCO")
    for one in (graph, graph.to_pyg(), ["C", graph]):
        with pytest.raises(InputError, match=r"reads rdkit2d beside the graph, .* give SMILES in place of graphs"):
            predictor_of("rdkit2d", demo_smiles[:10]).predict(one)
    own = predictor_of("t", demo_smiles[:10])
    assert own.predict(graph, columns={"t": 3.0}) == pytest.approx(own.predict("CCO", columns={"t": 3.0}), rel=1e-6)


@pytest.mark.parametrize("workers", [1, 2])
def test_a_file(workers, demo_smiles, tmp_path, monkeypatch):
    monkeypatch.setattr("graphslice.data.featurize.pool._DESCRIBED_ROWS", 2)
    model = predictor_of("t,morgan", demo_smiles[:40])
    smiles = [*demo_smiles[:12], "oops"]
    temperatures = [1, 2, "", "hot", 5, 6, 7, 8, "nan", 10, 11, 12, 13]
    pd.DataFrame({"t": temperatures, "smiles": smiles}).to_csv(tmp_path / "in.csv", index=False)
    report = predict_file(model, tmp_path / "in.csv", tmp_path / "out.csv", workers=workers)
    assert (report.rows, report.failed) == (13, 1)
    numbers = pd.to_numeric(pd.Series(temperatures), errors="coerce")
    expected = model.predict(smiles, columns={"t": numbers})[:, 0]
    np.testing.assert_allclose(pd.read_csv(tmp_path / "out.csv")["y_pred"], expected, rtol=1e-5)
    pd.DataFrame({"T": temperatures, "smiles": smiles}).to_csv(tmp_path / "no.csv", index=False)
    with pytest.raises(InputError, match=r"no\.csv has no column 't', which the model reads.*it has 'T', 'smiles'"):
        predict_file(model, tmp_path / "no.csv", tmp_path / "none.csv")
    (tmp_path / "two.csv").write_text("smiles,t,t\nC,1,2\n")
    with pytest.raises(InputError, match="two columns called 't'"):
        predict_file(model, tmp_path / "two.csv", tmp_path / "none.csv")
    assert not (tmp_path / "none.csv").exists()


def test_a_store(demo_smiles, tmp_path):
    model = predictor_of("t,rdkit2d", demo_smiles[:40])
    smiles = [*demo_smiles[:9], "oops"]
    pd.DataFrame({"smiles": smiles, "t": range(10)}).to_csv(tmp_path / "in.csv", index=False)
    for name, features in (("with", "rdkit2d,morgan,t"), ("without", "rdkit2d")):
        data = DataConfig(str(tmp_path / "in.csv"), features=features)
        featurize_dataset(data, GraphConfig(), tmp_path / f"{name}.arrow")
    predict_file(model, tmp_path / "with.arrow", tmp_path / "out.csv")
    expected = model.predict(smiles, columns={"t": range(10)})[:, 0]
    np.testing.assert_allclose(pd.read_csv(tmp_path / "out.csv")["y_pred"], expected, rtol=1e-5)
    with pytest.raises(InputError, match=r"without\.arrow has no descriptors t, which the model reads: make it again"):
        predict_file(model, tmp_path / "without.arrow", tmp_path / "none.csv")


def test_processes_compute_what_this_one_does(demo_smiles):
    model = predictor_of("morgan,rdkit2d", demo_smiles[:40])
    smiles = demo_smiles[:300]
    with featurizer_pool(300, 2, model.kinds) as pool:
        assert pool is not None
        (streamed,) = model.predict_stream([smiles], pool)
    np.testing.assert_allclose(streamed.values, model.predict(smiles), rtol=1e-5)


# --- a run --------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def described(demo_rows, tiny_config, tmp_path_factory) -> tuple[Path, Path]:
    """A table, and a run on it with every kind of descriptors."""
    folder = tmp_path_factory.mktemp("described")
    table = demo_rows.assign(size=demo_rows["smiles"].str.len().where(demo_rows.index % 7 > 0))
    table.to_csv(folder / "t.csv", index=False)
    config = tiny_config(folder / "t.csv", data={"targets": "gap_ev", "features": "size, rdkit2d,morgan"})
    train(config, folder / "run")
    return folder / "t.csv", folder / "run"


def test_a_run_keeps_all_that_predictions_need(described, demo_rows):
    path, run = described
    model, table = load(run, "cpu"), pd.read_csv(path)
    assert model.config.data.features == "size,rdkit2d,morgan" and model.config.model.descriptors == 2252
    train_rows = table[table["split"] == "train"]
    weight = compute_descriptors(train_rows["smiles"].tolist(), ["rdkit2d"])["rdkit2d"][:, 0]
    encoder = model.model.descriptors
    assert encoder.low[1] >= weight.min() and encoder.high[1] <= weight.max() and encoder.scale[1] > 1
    assert train_rows["size"].min() <= encoder.centre[0] <= train_rows["size"].max()
    source, splits = load_evaluation_data(model, run, {})
    scores = evaluate(model, source, "test", splits)
    test = table[table["split"] == "test"]
    found = model.predict(test["smiles"], columns={"size": test["size"]})[:, 0]
    assert scores["mae"] == pytest.approx(np.abs(found - test["gap_ev"]).mean(), rel=1e-4)
    other, _ = load_evaluation_data(model, run, {"dataset": str(path), "targets": "gap_ev"})
    assert other.columns is not None


def test_a_run_again_is_the_same_and_is_resumed(described, tiny_config, tmp_path, weights_of):
    path, run = described
    features = {"targets": "gap_ev", "features": "size,rdkit2d,morgan"}
    short = tiny_config(path, data=features)
    train(short, tmp_path / "run")
    assert resume(tmp_path / "run").metrics.keys() >= {"valid", "test"}
    for name, value in weights_of(run).items():
        torch.testing.assert_close(weights_of(tmp_path / "run")[name], value, rtol=1e-5, atol=1e-6)


def test_the_command_line(described, cli, tiny_flags, tmp_path):
    path, _ = described
    given = ["--dataset", path, "--targets", "gap_ev", "--features", "morgan,size", *tiny_flags]
    code, _, err = cli("train", *given, "--out", tmp_path / "run")
    assert code == 0, err
    assert load(tmp_path / "run").config.data.features == "morgan,size"
    code, _, err = cli("predict", tmp_path / "run", "CCO")
    assert code == 2 and "the model reads the column 'size' beside the molecule" in err
    code, out, err = cli("predict", tmp_path / "run", path)
    assert code == 0 and out.count("\n") == 61 and "no numbers" not in err
    pd.DataFrame({"smiles": ["CCO", "CC", "C"], "size": ["3", "2,5", "many"]}).to_csv(tmp_path / "u.csv", index=False)
    for command in ("predict", "fingerprint"):
        code, out, err = cli(command, tmp_path / "run", tmp_path / "u.csv")
        assert code == 0 and out.count("\n") == 4
        assert "note: 2 cells of the column 'size' of --features are no numbers, the first '2,5' in row 2" in err
    assert (
        cli("featurize", path, "-o", tmp_path / "s.arrow", "--features", "size,morgan", "--targets", "gap_ev")[0] == 0
    )
    assert cli("evaluate", tmp_path / "run", "--dataset", tmp_path / "s.arrow", "--split", "all")[0] == 0
    code, _, err = cli("train", *given[:-1], "--features", "sise", "--out", tmp_path / "no")
    assert code == 2 and "did you mean 'size'" in err and not (tmp_path / "no").exists()


@pytest.mark.parametrize("there", [True, False], ids=["from descriptors", "to descriptors"])
def test_a_run_from_another_with_other_descriptors(
    there, described, run_directory, demo_csv, cli, tmp_path, weights_of
):
    """What fits is taken, and a line says what not."""
    path, run = described
    origin, dataset = (run, demo_csv) if there else (run_directory, path)
    features = [] if there else ["--features", "rdkit2d"]
    code, _, err = cli(
        *("train", "--dataset", dataset, "--targets", "gap_ev", *features, "--init-from", origin),
        *("--trainer.max_epochs=1", "--trainer.freeze=blocks:1", "--out", tmp_path / "run"),
    )
    assert code == 0, err
    said = "there size, rdkit2d, morgan, here none" if there else "there none, here rdkit2d"
    assert f"all weights taken but what reads the descriptors ({said}) and the first linear map of the head" in err
    kept, taken = weights_of(tmp_path / "run"), read_checkpoint(origin).weights
    assert torch.equal(kept["blocks.0.ffn.expand.weight"], taken["blocks.0.ffn.expand.weight"])
    assert ("descriptors.project.weight" in kept) == (not there)


def test_a_run_from_another_with_the_same_descriptors(described, cli, tmp_path):
    path, run = described
    given = ["--dataset", path, "--targets", "gap_ev", "--features", "size,rdkit2d,morgan", "--init-from", run]
    code, _, err = cli(
        *("train", *given, "--trainer.max_epochs=1", "--optimizer.peak_lr=1e-12", "--baselines", "off"),
        *("--out", tmp_path / "run"),
    )
    assert code == 0 and "all weights taken, the head for the same targets too" in err
    columns = {"size": [5.0, np.nan]}
    found, expected = (load(one, "cpu").predict(["CCO", "CCN"], columns=columns) for one in (tmp_path / "run", run))
    np.testing.assert_allclose(found, expected, rtol=1e-4)


@pytest.mark.parametrize("change", ["features", "descriptors", "weights"])
def test_checkpoints_whose_parts_do_not_agree(change, described, tmp_path):
    found = read_checkpoint(described[1])
    if change == "features":
        found.config.data.features = "morgan"
    elif change == "descriptors":
        found.config.model.descriptors = 10**12
        found.config.data.features = "morgan"
    else:
        del found.weights["descriptors.project.weight"]
    save_checkpoint(found, tmp_path / "wrong.ckpt")
    with pytest.raises(InputError, match="do not fit its configuration"):
        load(tmp_path / "wrong.ckpt")


# --- looking into a model -----------------------------------------------------------------------


def test_contributions_of_atoms_leave_the_descriptors_as_they_are(demo_smiles):
    model = predictor_of("rdkit2d", demo_smiles[:40])
    graph, known = gs.smiles_to_graph("CCO"), model.descriptors("OCC")
    found = attribute(model, graph, descriptors=known)
    assert found.prediction == pytest.approx(model.predict("CCO")[0], rel=1e-5)
    assert found.values.sum(0) == pytest.approx(found.prediction - found.baseline, rel=1e-5)
    assert activations(model, graph, known).prediction == pytest.approx(found.prediction, rel=1e-5)
    for look in (attribute, activations):
        with pytest.raises(InputError, match=r"expects molecular descriptors \(rdkit2d\)"):
            look(model, graph)


def test_inspect(described, demo_smiles, tmp_path):
    found = inspect(predictor_of("morgan", demo_smiles[:40]), ["CCO"], tmp_path / "fine")
    assert found.found[0].attribution.values.shape == (3, 1)
    with pytest.raises(InputError, match="reads the column 'size'"):
        inspect(load(described[1], "cpu"), ["CCO"], tmp_path / "none")


def test_contributions_by_columns_of_a_table(demo_smiles, tmp_path):
    model = predictor_of("t,rdkit2d", demo_smiles[:40])
    one, other = attribute(model, ["CCO", "CCO"], columns={"t": [0, 10]})
    assert one.prediction == pytest.approx(model.predict("CCO", columns={"t": 0})[0], rel=1e-5)
    assert other.prediction == pytest.approx(model.predict("CCO", columns={"t": 10})[0], rel=1e-5)
    assert one.prediction != other.prediction
    for columns, reason in ((None, "reads the column 't'"), ({"t": [1]}, r"shape \[1\] for 2 molecules")):
        with pytest.raises(InputError, match=reason):
            attribute(model, ["CCO", "CC"], columns=columns)
    (tmp_path / "in.csv").write_text("t,smiles\n0,CCO\n10,CCO\n,CC\n")
    found = inspect(model, read_input_molecules(model, [tmp_path / "in.csv"]), tmp_path / "out", everything=True)
    assert [each.attribution.prediction[0] for each in found.found[:2]] == [one.prediction[0], other.prediction[0]]
    (tmp_path / "no.csv").write_text("smiles\nCCO\n")
    with pytest.raises(InputError, match="no column 't', which the model reads"):
        list(read_input_molecules(model, [tmp_path / "no.csv"]))


def test_checked_steps_draw_no_dropout(demo_smiles):
    from graphslice.data.collate import collate

    model = predictor_of("t", demo_smiles[:40], dropout=0, input_dropout=0, attention_dropout=0).model.train()
    batch = collate([gs.smiles_to_graph("CCO")] * 3, {"t": np.arange(3.0)}, descriptors=["t"])
    assert (
        torch.equal(compute_step(model, batch).predictions, compute_step(model, batch).predictions) and model.training
    )
