"""Models that read descriptors and feature columns: invariance, inputs, runs and explanations."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from invariance import check_batch_independence
from tiny import TINY

import graphslice as gs
from graphslice import InputError
from graphslice.chem.descriptors import compute_descriptors, descriptor_width
from graphslice.config import DataConfig, GraphConfig, ModelConfig, RunConfig
from graphslice.data.preprocess import featurize_dataset
from graphslice.evaluation.evaluate import evaluate, load_evaluation_data
from graphslice.explain.attribution import activations, attribute
from graphslice.explain.inspect import inspect, read_input_molecules
from graphslice.inference.files import predict_file
from graphslice.inference.predictor import Predictor, load
from graphslice.nn import GraphTransformer
from graphslice.runs.checkpoint import Checkpoint, read_checkpoint
from graphslice.tasks import regression_tasks
from graphslice.training import train

ODD = ["[Fe]", "[Na+].[Cl-]", "C", "[NH4+]", "C[C@H](N)C(=O)O", "C/C=C\\C", "[H][H]", "C" * 120, "C[Si](C)(C)[U]"]


def predictor_of(features: str, smiles: list[str], **model) -> Predictor:
    """An untrained predictor with fitted standardisation; feature columns range from 0 to 10."""
    data = DataConfig(features=features)
    config = ModelConfig(**{**TINY, **model}, descriptors=descriptor_width(data.descriptors))
    torch.manual_seed(0)
    net = GraphTransformer(config)
    with torch.no_grad():
        for parameter in net.parameters():
            if parameter.dim() > 1:
                parameter.mul_(8)
    descriptors = compute_descriptors(smiles, ["morgan", "rdkit2d"])
    ramp = np.linspace(0, 10, len(smiles))[:, None]
    columns = [descriptors.get(name, ramp) for name in data.descriptors]
    net.descriptors.fit(torch.from_numpy(np.hstack(columns).astype(np.float32)))
    return Predictor(Checkpoint(RunConfig(data=data, model=config), regression_tasks(["y"]), net.state_dict()), "cpu")


def test_predictions_do_not_depend_on_batch_or_notation(demo_smiles):
    model = predictor_of("morgan,rdkit2d", demo_smiles[:40], mixer="slice-quantile", layers=2)
    check_batch_independence(lambda smiles: model.predict(smiles)[:, 0], ODD + demo_smiles[:12])


def test_every_value_of_a_feature_column_gives_a_prediction(demo_smiles):
    model = predictor_of("t", demo_smiles[:40])
    values = [0, 5, 10, 1e30, np.inf, -np.inf, np.nan, None, "7", 5.0]
    with pytest.warns(UserWarning, match=r"has values outside the range of the training set \(0 to 10\), .* in row 4"):
        predictions = model.predict(["CCO"] * len(values), columns={"t": values})[:, 0]
    assert np.isfinite(predictions).all() and len(set(predictions[:3])) == 3
    # Unknown values are the mean. Rows of one product may differ in the last digit.
    np.testing.assert_allclose(predictions[[4, 5, 6, 7, 9]], predictions[1], rtol=1e-6)
    assert abs(predictions[3]) < 1e6


def test_feature_columns_in_python(demo_smiles):
    model = predictor_of("t,morgan,u", demo_smiles[:40])
    both = {"t": np.array([1, 2]), "u": [3.0, None]}
    predictions = model.predict(["CCO", "CC"], columns=both)
    assert model.predict("CCO", columns={"u": 3, "t": 1})[0] == pytest.approx(predictions[0], rel=1e-6)
    for columns, message in [
        (None, r"the model needs the feature columns 't', 'u': give a table"),
        ({"t": [1, 2]}, r"needs the feature column 'u':"),
        ({**both, "t": [1]}, r"'t' has shape \[1\], but there are 2 molecules"),
    ]:
        with pytest.raises(InputError, match=message):
            model.predict(["CCO", "CC"], columns=columns)


def test_smiles_descriptors_reject_graphs(demo_smiles):
    graph = gs.smiles_to_graph("CCO")
    for molecules in (graph, graph.to_pyg(), ["C", graph]):
        with pytest.raises(InputError, match=r"reads rdkit2d, .* give SMILES instead of graphs"):
            predictor_of("rdkit2d", demo_smiles[:10]).predict(molecules)
    model = predictor_of("t", demo_smiles[:10])
    assert model.predict(graph, columns={"t": 3.0}) == pytest.approx(model.predict("CCO", columns={"t": 3.0}), rel=1e-6)


@pytest.mark.parametrize("workers", [1, 2])
def test_predict_file_with_feature_columns(workers, demo_smiles, tmp_path, monkeypatch):
    monkeypatch.setattr("graphslice.data.featurize._DESCRIPTOR_TASK_ROWS", 2)
    model = predictor_of("t,morgan", demo_smiles[:40])
    smiles = [*demo_smiles[:12], "oops"]
    temperatures = [1, 2, "", "hot", 5, 6, 7, 8, "nan", 10, 11, 12, 13]
    pd.DataFrame({"t": temperatures, "smiles": smiles}).to_csv(tmp_path / "in.csv", index=False)
    report = predict_file(model, tmp_path / "in.csv", tmp_path / "out.csv", workers=workers)
    assert (report.rows, report.failed) == (13, 1)
    numbers = pd.to_numeric(pd.Series(temperatures), errors="coerce")
    expected = model.predict(smiles, columns={"t": numbers.clip(0, 10)})[:, 0]
    np.testing.assert_allclose(pd.read_csv(tmp_path / "out.csv")["y_pred"], expected, rtol=1e-5)
    written = pd.DataFrame({"T ": temperatures, "smiles": smiles})
    written.to_csv(tmp_path / "case.csv", index=False)
    predict_file(model, tmp_path / "case.csv", tmp_path / "same.csv")
    np.testing.assert_allclose(pd.read_csv(tmp_path / "same.csv")["y_pred"], expected, rtol=1e-5)
    np.testing.assert_allclose(model.predict(written)[:, 0], expected, rtol=1e-5)
    written.rename(columns={"T ": "temp"}).to_csv(tmp_path / "no.csv", index=False)
    with pytest.raises(InputError, match=r"no\.csv has no column 't'.*it has 'temp', 'smiles'"):
        predict_file(model, tmp_path / "no.csv", tmp_path / "none.csv")
    (tmp_path / "two.csv").write_text("smiles,t,t\nC,1,2\n")
    with pytest.raises(InputError, match="two columns called 't'"):
        predict_file(model, tmp_path / "two.csv", tmp_path / "none.csv")
    assert not (tmp_path / "none.csv").exists()


def test_predict_preprocessed_dataset(demo_smiles, tmp_path):
    model = predictor_of("t,rdkit2d", demo_smiles[:40])
    smiles = [*demo_smiles[:9], "oops"]
    pd.DataFrame({"smiles": smiles, "t": range(10)}).to_csv(tmp_path / "in.csv", index=False)
    for name, features in (("with", "rdkit2d,morgan,t"), ("without", "rdkit2d")):
        data = DataConfig(str(tmp_path / "in.csv"), features=features)
        featurize_dataset(data, GraphConfig(), tmp_path / f"{name}.arrow")
    predict_file(model, tmp_path / "with.arrow", tmp_path / "out.csv")
    expected = model.predict(smiles, columns={"t": range(10)})[:, 0]
    np.testing.assert_allclose(pd.read_csv(tmp_path / "out.csv")["y_pred"], expected, rtol=1e-5)
    with pytest.raises(InputError, match=r"without\.arrow has no descriptors t, which the model reads: recreate it"):
        predict_file(model, tmp_path / "without.arrow", tmp_path / "none.csv")


@pytest.fixture(scope="module")
def described(demo_rows, tiny_config, tmp_path_factory) -> tuple[Path, Path]:
    """A dataset, and a run on it with every kind of descriptors."""
    folder = tmp_path_factory.mktemp("described")
    table = demo_rows.assign(size=demo_rows["smiles"].str.len().where(demo_rows.index % 7 > 0))
    table.to_csv(folder / "t.csv", index=False)
    config = tiny_config(folder / "t.csv", data={"targets": "gap_ev", "features": "size, rdkit2d,morgan"})
    train(config, folder / "run")
    return folder / "t.csv", folder / "run"


def test_run_stores_everything_that_predictions_need(described, demo_rows):
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
    predictions = model.predict(test["smiles"], columns={"size": test["size"]})[:, 0]
    assert scores["mae"] == pytest.approx(np.abs(predictions - test["gap_ev"]).mean(), rel=1e-4)
    other, _ = load_evaluation_data(model, run, {"dataset": str(path), "targets": "gap_ev"})
    assert other.columns is not None


def test_feature_columns_on_the_command_line(described, cli, tmp_path):
    path, run = described
    code, _, err = cli("predict", run, "CCO")
    assert code == 2 and "the list of SMILES has no column 'size'" in err
    sizes = pd.read_csv(path).query("split == 'train'")["size"]
    table = {"smiles": ["CCO", "", "C", "CC"], "size": [sizes.max(), "2,5", 4e6, "many"]}
    pd.DataFrame(table).to_csv(tmp_path / "t.csv", index=False)
    unknown = "the column 'size' of data.features has cells that are not numbers, the first is '2,5' in row 2"
    outside = f"outside the range of the training set ({sizes.min():g} to {sizes.max():g}), the first is 4e+06 in row 3"
    for command in ("predict", "fingerprint"):
        code, out, err = cli(command, run, tmp_path / "t.csv")
        assert code == 0 and out.count("\n") == 5 and f"note: {unknown}" in err and f"has values {outside}" in err
    with pytest.warns(UserWarning) as warned:
        gs.load(run).predict(pd.DataFrame(table))
    assert unknown in str(warned[0].message) and outside in str(warned[1].message)


def test_fine_tuning_without_the_descriptors(described, demo_csv, cli, tmp_path, weights_of):
    """Weights that fit are taken over, and a line names the others."""
    _, run = described
    code, _, err = cli(
        *("train", "--dataset", demo_csv, "--targets", "gap_ev", "--init-from", run),
        *("--trainer.max_epochs=1", "--trainer.freeze=blocks:1", "--out", tmp_path / "run"),
    )
    assert code == 0, err
    message = "all weights copied except the descriptor layers and the first layer of the head"
    assert f"{message} (descriptors before: size, rdkit2d, morgan; now: none)" in err
    weights, origin_weights = weights_of(tmp_path / "run"), read_checkpoint(run).weights
    name = "blocks.0.ffn.expand.weight"
    assert np.array_equal(weights[name], origin_weights[name])
    assert "descriptors.project.weight" not in weights


def test_attributions_keep_the_descriptors_fixed(demo_smiles):
    model = predictor_of("rdkit2d", demo_smiles[:40])
    graph, descriptors = gs.smiles_to_graph("CCO"), model.descriptors("OCC")
    attribution = attribute(model, "CCO")
    assert attribution.prediction == pytest.approx(model.predict("CCO")[0], rel=1e-5)
    assert attribution.values.sum(0) == pytest.approx(attribution.prediction - attribution.baseline, rel=1e-5)
    assert activations(model, graph, descriptors).prediction == pytest.approx(attribution.prediction, rel=1e-5)
    with pytest.raises(InputError, match=r"expects molecular descriptors \(rdkit2d\)"):
        activations(model, graph)


def test_attributions_with_feature_columns(demo_smiles, tmp_path):
    model = predictor_of("t,rdkit2d", demo_smiles[:40])
    one, other = (attribute(model, "CCO", columns={"t": t}) for t in (0, 10))
    assert one.prediction == pytest.approx(model.predict("CCO", columns={"t": 0})[0], rel=1e-5)
    assert other.prediction == pytest.approx(model.predict("CCO", columns={"t": 10})[0], rel=1e-5)
    assert one.prediction != other.prediction
    with pytest.raises(InputError, match="needs the feature column 't'"):
        attribute(model, "CCO")
    (tmp_path / "in.csv").write_text("t,smiles\n0,CCO\n10,CCO\n,CC\n")
    molecules = read_input_molecules(model, [tmp_path / "in.csv"])
    inspection = inspect(model, molecules, tmp_path / "out")
    predictions = [inspected.explanations[0].prediction for inspected in inspection.found[:2]]
    assert predictions == [one.prediction[0], other.prediction[0]]
    (tmp_path / "no.csv").write_text("smiles\nCCO\n")
    with pytest.raises(InputError, match="no column 't'"):
        list(read_input_molecules(model, [tmp_path / "no.csv"]))
