"""Stacks whose weights are chosen by predictions of held-out folds, and final models that are trained on all rows."""

import io
import json
import shutil
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
from rich.console import Console

import graphslice as gs
from graphslice.chem.graph_descriptors import graph_inputs
from graphslice.chem.molecule import MolArrays
from graphslice.cli.main import main
from graphslice.config import RunConfig, read_yaml
from graphslice.data.loaders import load_dataset
from graphslice.report.write import write_report
from graphslice.runs.checkpoint import read_checkpoint
from graphslice.runs.run_files import read_splits
from graphslice.stacking.stacking import NAMES
from graphslice.tasks import Task
from graphslice.training import resume, stack, train
from graphslice.training.loop import TrainingLoop
from graphslice.training.resolve import resolve

QUIET = Console(quiet=True)


@pytest.fixture(scope="module", autouse=True)
def two_folds():
    """Hold out two of the five folds, each of which costs a training."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("graphslice.training.stack._ENOUGH_ROWS", 20)
        yield


@pytest.fixture(scope="module")
def table(demo_rows):
    return demo_rows.drop(columns="split")


@pytest.fixture(scope="module")
def configured(tiny_config, tmp_path_factory, table):
    """Return a configuration of a table of 60 molecules, which is refitted by default."""
    folder = tmp_path_factory.mktemp("stack")

    def make(rows: pd.DataFrame = table, data: dict | None = None, **trainer):
        path = folder / f"{len(list(folder.iterdir()))}.csv"
        rows.to_csv(path, index=False)
        settings = {"baselines": "auto", "refit": "auto", **trainer}
        return tiny_config(path, data={"targets": "gap_ev", **(data or {})}, trainer=settings)

    return make


@pytest.fixture(scope="module")
def run(configured, tmp_path_factory):
    out = tmp_path_factory.mktemp("run") / "run"
    train(configured(), out, console=QUIET)
    return out


def test_one_line_of_progress_counts_the_whole_work(configured, tmp_path, reports):
    train(configured(), tmp_path / "run", console=QUIET)
    fractions, statuses = zip(*reports, strict=True)
    assert list(fractions) == sorted(fractions) and fractions[0] < 0.05 and 0.9 < fractions[-1] < 1
    stages = list(dict.fromkeys(status.split(",")[0] for status in statuses if status))
    parts = [f"{part} {number} of 3" for part in ("base models", "network") for number in (1, 2, 3)]
    assert stages == ["reading molecules", *parts, "calibration and evaluation"]
    # An empty status is for work of a former process; with that of this one the remaining time would be too long.
    former = [
        after - before
        for before, after, status in zip(fractions, fractions[1:], statuses[1:], strict=False)
        if not status
    ]
    assert sum(former) == pytest.approx(0, abs=1e-9)


def test_all_rows_but_the_test_set_train_the_final_models(run):
    splits = read_splits(run)
    assert {name: len(rows) for name, rows in splits.items()} == {"train": 54, "test": 6}
    assert read_yaml(run / "config.yaml")["trainer"]["refit"] == "on"
    assert not list(run.glob("held-out-*"))
    domain = read_checkpoint(run).calibration.domain
    assert len(domain.rows) == 54


def test_out_of_fold_predictions_are_written_and_scored(run, table):
    found = pd.read_csv(run / "out_of_fold.csv")
    splits = read_splits(run)
    assert set(found["row"] - 1) <= set(splits["train"].tolist()) and len(found) == len(set(found["row"])) >= 20
    assert found["smiles"].tolist() == table["smiles"][found["row"] - 1].tolist()
    error = np.abs(found["gap_ev_pred"] - table["gap_ev"].to_numpy()[found["row"] - 1]).mean()
    metrics = json.loads((run / "metrics.json").read_text())
    assert metrics["valid"]["mae"] == pytest.approx(error, rel=1e-4)
    assert metrics["baselines"]["valid"]["stack"] == pytest.approx(error, rel=1e-4)


def test_held_out_predictions_know_nothing_of_their_labels(configured, table, tmp_path):
    """With random labels no model can predict a molecule that it was not trained on."""
    noise = table.assign(gap_ev=np.random.default_rng(0).normal(size=len(table)))
    result = train(configured(noise), tmp_path / "run", console=QUIET)
    found = pd.read_csv(tmp_path / "run" / "out_of_fold.csv")
    labels = noise["gap_ev"].to_numpy()[found["row"] - 1]
    assert np.corrcoef(found["gap_ev_pred"], labels)[0, 1] < 0.3
    forest = read_checkpoint(tmp_path / "run").stacking.models["forest"][0]
    x = graph_inputs(MolArrays.from_graphs([gs.smiles_to_graph(each) for each in found["smiles"]]))
    assert np.corrcoef(forest.predict(x)[:, 0], labels)[0, 1] > 0.5
    assert result.metrics["valid"]["r2"] < 0.1


@pytest.mark.parametrize("at", [10, -2])
def test_a_stopped_run_continues_exactly(run, configured, tmp_path, monkeypatch, at):
    """Stopped in the training without the second fold, and in the final training."""
    step, done = TrainingLoop._step, []

    def stop(loop, batch):
        done.append(loop.out.name)
        final = loop.out.name == "run"
        if (at > 0 and len(done) == at) or (at < 0 and final and loop.state.step == 3):
            raise KeyboardInterrupt
        return step(loop, batch)

    monkeypatch.setattr(TrainingLoop, "_step", stop)
    with pytest.raises(KeyboardInterrupt):
        train(configured(), tmp_path / "run", console=QUIET)
    monkeypatch.setattr(TrainingLoop, "_step", step)
    assert not (tmp_path / "run" / "metrics.json").exists()
    resume(tmp_path / "run", console=QUIET)
    assert (tmp_path / "run" / "metrics.json").read_text() == (run / "metrics.json").read_text()
    for name, weight in read_checkpoint(run).weights.items():
        np.testing.assert_array_equal(read_checkpoint(tmp_path / "run").weights[name], weight)


def test_report_has_the_weights(run, tmp_path):
    shutil.copytree(run, tmp_path / "run")
    page = write_report(tmp_path / "run").read_text()
    stacking = read_checkpoint(run).stacking
    names = ["network", *(NAMES[name] for name in stacking.models)]
    for name, weight in zip(names, stacking.weights[:, 0], strict=True):
        assert f'<th scope="row">{name}</th><td>{100 * weight:.0f}%</td>' in page


@pytest.mark.parametrize("settings", [{"max_minutes": 1.0}, {"ensemble": 2}, {"baselines": "off"}])
def test_refit_that_is_not_possible_is_refused(configured, settings):
    with pytest.raises(gs.InputError, match=r"trainer.refit on needs"):
        sizes(configured(refit="on", **settings))


def sizes(config: RunConfig) -> dict[str, int]:
    _, data = resolve(config, load_dataset(config.data), Path(), QUIET)
    return {name: len(rows) for name, rows in data.splits.items()}


def test_a_validation_set_of_the_table_never_trains(configured, table):
    split = np.array(["train"] * 44 + ["valid"] * 8 + ["test"] * 8)
    assert sizes(configured(table.assign(split=split))) == {"train": 44, "valid": 8, "test": 8}
    with pytest.raises(gs.InputError, match="without a validation set of their own"):
        sizes(configured(table.assign(split=split), refit="on"))


def test_refit_off_keeps_a_validation_set(configured):
    assert sizes(configured(refit="off")) == {"train": 48, "valid": 6, "test": 6}


@pytest.fixture(scope="module")
def censored_run(configured, tmp_path_factory, table):
    """A run whose labels above the 80th percentile are bounds."""
    limit = table["gap_ev"].quantile(0.8)
    cells = table["gap_ev"].map(lambda gap: f"{gap:.6f}" if gap <= limit else f"> {limit:.6f}")
    out = tmp_path_factory.mktemp("censored") / "run"
    rows = table.assign(gap_ev=cells)
    train(configured(rows), out, console=QUIET)
    return out, rows, limit


def test_bounds_train_and_are_scored(censored_run):
    out, rows, limit = censored_run
    splits, metrics = read_splits(out), json.loads((out / "metrics.json").read_text())
    assert sum(len(members) for members in splits.values()) == 60
    bounded = rows["gap_ev"].str.startswith(">").to_numpy()
    found = pd.read_csv(out / "out_of_fold.csv")
    held = found["row"].to_numpy() - 1
    target = metrics["valid"]["targets"]["gap_ev"]
    assert target["bounds"] == bounded[held].sum() > 0
    assert target["bounds_respected"] == pytest.approx((found["gap_ev_pred"][bounded[held]] >= limit).mean())
    assert metrics["valid"]["molecules"] == target["molecules"] == (~bounded[held]).sum()
    forest = read_checkpoint(out).stacking.models["forest"][0]
    assert max(forest.knots[1]) > limit  # bounds are replaced by larger expected values


def test_report_counts_bounds(censored_run):
    out, rows, _ = censored_run
    page = gs.write_report(out).read_text()
    target = json.loads((out / "metrics.json").read_text())["valid"]["targets"]["gap_ev"]
    assert f"among the labels: {rows['gap_ev'].str.startswith('>').sum()} of gap_ev" in page
    assert f"of {target['bounds']} labels with &lt; or &gt; (gap_ev)" in page


def test_bounds_alone_in_the_test_set_are_counted(configured, table, tmp_path, capsys):
    cells = table["gap_ev"].astype(str).where(np.arange(60) < 50, [f"{'<>'[row % 2]}5" for row in range(60)])
    split = np.array(["train"] * 42 + ["valid"] * 8 + ["test"] * 10)
    console = Console(file=io.StringIO(), width=1_000)
    config = configured(table.assign(gap_ev=cells, split=split), baselines="off")
    metrics = train(config, tmp_path / "run", console=console).metrics
    found = pd.read_csv(tmp_path / "run" / "test_predictions.csv")
    respected = ((found["gap_ev_pred"] > 5) == (found["gap_ev_true"] == ">5")).mean()
    assert metrics["test"]["targets"]["gap_ev"]["bounds_respected"] == pytest.approx(respected)
    line = f"test: predictions agree with {10 * respected:.0f} of 10 labels with < or > (gap_ev)"
    main(["evaluate", str(tmp_path / "run")])
    for printed in (console.file.getvalue(), capsys.readouterr().out):
        assert line in printed and "all labels are bounds" in printed and "nan" not in printed


def test_network_predicts_alone_if_other_models_add_little(configured, tmp_path, monkeypatch):
    """They would cost time. Its intervals are not scaled by their disagreement, which here says most of the errors."""

    def cross_fit(predictions, data, rows, metric):
        stacked, _, weights = original(predictions, data, rows, metric)
        weights[:, 0] = [0.9, 0.1, 0, 0]
        return stacked, np.abs(stacked - data.dataset.targets[rows]), weights

    original = stack.cross_fit
    monkeypatch.setattr(stack, "cross_fit", cross_fit)
    output = io.StringIO()
    result = train(configured(), tmp_path / "run", console=Console(file=output, width=300))
    assert read_checkpoint(tmp_path / "run").stacking is None and "stack: 100% network" in output.getvalue()
    found = result.metrics["baselines"]["test"]
    assert found["stack"] == found["network"] == pytest.approx(result.metrics["test"]["mae"], rel=1e-5)
    assert 0 < result.metrics["test"]["targets"]["gap_ev"]["width_90"] < np.inf


def test_folds_are_counted_and_equal_weights_are_not_called_chosen(monkeypatch):
    """Of 288 rows, 120 have to be held out: three fifths."""
    monkeypatch.setattr(stack, "_ENOUGH_ROWS", 120)
    for rows, title in ((100, "held-out folds:"), (288, "held-out folds (3 of 5):"), (600, "held-out folds (1 of 5):")):
        assert stack._folds_title(SimpleNamespace(splits={"train": np.arange(rows)})) == title
    for first, words in ((0.26, "nearly equal weights"), (0.4, "weights chosen on held-out molecules")):
        weights = np.array([[first], *[[(1 - first) / 3]] * 3])
        assert f"({words}" in stack._describe_weights(weights, ["network", "forest", "boosting", "kernel"], [Task("y")])
