"""Reports of all kinds of runs: completeness, escaping, and agreement with the results of the run."""

import json
import re
import shutil
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch
from html_tree import check_page
from rdkit import Chem
from rdkit.Chem import rdFingerprintGenerator
from rdkit.DataStructs import BulkTanimotoSimilarity

import graphslice as gs
from graphslice.config import RunConfig, read_yaml
from graphslice.data.splits import split_name
from graphslice.errors import InputError
from graphslice.evaluation.metrics import METRICS
from graphslice.report.figures import Table
from graphslice.report.load_run import read_run
from graphslice.report.sections import _WITH_UNIT, headlines, scores_section
from graphslice.report.write import write_report
from graphslice.tasks import Task
from graphslice.training import train

HOSTILE = "<script>alert(1)</script>"  # a target name of hostile_table


def section(page, name: str) -> str:
    """Return the HTML of a section."""
    return re.search(rf'<section id="{name}".*?</section>', page.source, re.DOTALL)[0]


def test_regression_report_matches_predictions(run_copy, demo_csv, demo_rows, predictor):
    page = check_page(write_report(run_copy))
    test = demo_rows[demo_rows["split"] == "test"]
    errors = np.abs(predictor.predict(test["smiles"])[:, 0] - test["gap_ev"].to_numpy())
    headline = f"gap_ev : typical error (median) {np.median(errors):.2g} , rank correlation"
    assert headline in page.words and f"on {len(test)} test molecules (fewer than 20: largely chance)" in page.words
    (plot,) = (svg for name, svg in page.images.items() if name.startswith("Test: Predicted against true"))
    assert f"n = {len(test)}, MAE {errors.mean():#.3g}" in plot
    # Molecules in descending order of error, each with its row and true value.
    order = np.argsort(-errors)
    cards = re.findall(r'card-title">row (\d+)<', section(page, "worst"))
    assert cards == [str(test.index[k] + 1) for k in order]
    assert f"{test['gap_ev'].iloc[order[0]]:.4g}" in section(page, "worst")
    assert len(page.all("img", "molecule")) == 2 * len(test)  # each with the nearest training molecule
    for split, rows in demo_rows.groupby("split"):
        name = split_name(split)
        assert re.search(rf"<th scope=\"row\">{name}</th><td>{len(rows)}</td>", section(page, "data"))
        quantiles = "".join(f"<td>{q:.4g}</td>" for q in rows["gap_ev"].quantile([0, 0.25, 0.5, 0.75, 1]))
        assert f"<td>{name}</td><td>{len(rows)}</td>{quantiles}" in section(page, "data")


def test_hostile_names_are_escaped_for_all_task_kinds(mixed, hostile_table):
    page = check_page(mixed / "report.html")
    assert HOSTILE in page.words and HOSTILE not in page.source
    assert '"><img src=x onerror=alert(2)>' not in page.source and "<b>in</b>" not in page.source
    assert "{{ 7 * 7 }}" in page.words and page.source.count("</style>") == 1
    predictions = section(page, "predictions")
    for figure in ("Predicted against true", "ROC curve of", "Confusion matrix of", "Reliability diagram for"):
        assert f'alt="Test: {figure}' in predictions, figure
    assert not any(HOSTILE in svg for svg in page.images.values())
    assert "logarithmic axes" in predictions and "mean over its targets" in section(page, "errors")
    assert "1 row rejected" in page.words and "not a valid SMILES" in page.words
    training = hostile_table[(hostile_table["split"] == "train") & (hostile_table.index != 2)]['yes & "no"']
    inside = int((training == "<b>in</b>").sum())
    assert f"<td>&lt;b&gt;in&lt;/b&gt;</td><td>{inside} ({100 * inside / len(training):.1f}%)</td>" in page.source


def test_cards_describe_classes_as_predict_does(make_report, demo_rows):
    wide = np.where(demo_rows["gap_ev"] > demo_rows["gap_ev"].median(), "yes", "no")
    folder = make_report(demo_rows.assign(wide=wide).drop(columns="gap_ev"))
    test = demo_rows[demo_rows["split"] == "test"]
    frame = gs.load(folder, "cpu").predict(test["smiles"], interval=90).to_frame()
    lines = [
        f"{row.wide_pred}, P(yes) {row.wide_prob_yes:.2f}, {'sure' if row.wide_sure else 'unsure'}"
        for row in frame.itertuples()
    ]
    found = re.findall(r"\w+, P\(yes\) [\d.]+, \w+", section(check_page(folder / "report.html"), "worst"))
    assert found and set(found) <= set(lines)


@pytest.mark.usefixtures("in_this_process")
@pytest.mark.slow
def test_cross_validation_report_uses_out_of_fold_predictions(make_report, demo_rows):
    folder = make_report(demo_rows[["smiles", "gap_ev"]], data={"folds": "3"}, trainer={"max_epochs": 1})
    page = check_page(folder / "report.html")
    out_of_fold = pd.read_csv(folder / "out_of_fold.csv")
    truth = demo_rows["gap_ev"].to_numpy()[out_of_fold["row"] - 1]
    mae = np.abs(out_of_fold["gap_ev_pred"] - truth).mean()
    assert any(f"n = 60, MAE {mae:#.3g}" in svg for svg in page.images.values())
    assert "on 60 held-out molecules." in page.words and "One line per model" in page.words
    # Every molecule is compared with the training set of its own fold, so never with itself.
    assert "compared with 3" in section(page, "errors") and "60 molecules" in section(page, "errors")


def test_single_test_molecule(make_report, demo_rows):
    few = demo_rows.copy()
    few.loc[few[few["split"] == "test"].index[1:], "split"] = "train"
    page = check_page(make_report(few) / "report.html")
    assert "on 1 test molecule (fewer" in page.words and "Largest errors" in page.words


def test_many_targets_are_summarised(make_report, demo_rows):
    draw = np.random.default_rng(0).standard_normal((len(demo_rows), 26))
    names = [f"t{k:03}" for k in range(26)]
    table = pd.concat([demo_rows.drop(columns="gap_ev"), pd.DataFrame(draw, columns=names)], axis=1)
    folder = make_report(table, data={"targets": ",".join(names)}, trainer={"max_epochs": 1})
    page = check_page(folder / "report.html")
    scores = json.loads((folder / "metrics.json").read_text())["test"]["targets"]
    best = sorted(scores, key=lambda name: scores[name]["mae"])
    listed = re.findall(r'<th scope="row">(t\d+)</th>', section(page, "scores"))
    assert list(dict.fromkeys(listed)) == best and "14 more targets" in page.words
    assert len(re.findall("<h3>t", section(page, "predictions"))) == 12
    assert "The first 12 targets; 14 more targets are not shown." in page.words


def test_duplicates_are_reported(make_report, demo_rows):
    again = demo_rows.iloc[[0, 1]].assign(gap_ev=[demo_rows["gap_ev"][0], demo_rows["gap_ev"][1] + 50], split="test")
    folder = make_report(pd.concat([demo_rows, again]))
    page = check_page(folder / "report.html")
    assert "4 rows of 2 molecules are duplicates, 1 molecule with conflicting labels" in page.words
    assert "2 test rows with a molecule of the training set, or a salt, tautomer or stereoisomer of one" in page.words
    assert check_page(write_report(folder)).words == page.words  # of the molecules read again


def test_pyg_graphs_are_reported_without_drawings(tiny_config, demo_rows, tmp_path):
    data = [gs.smiles_to_graph(smiles).to_pyg() for smiles in demo_rows["smiles"]]
    for graph, gap in zip(data, demo_rows["gap_ev"], strict=True):
        graph.y = torch.tensor([gap])
    result = train(tiny_config(), tmp_path / "run", data=data)
    page = check_page(write_report(tmp_path / "run", result.data))
    assert page.all("img", "molecule") == [] and "Predicted against true" in page.words and "not drawn" in page.words
    assert "every setting of this run" in page.words and "mixer: slice-max" in page.words
    # Without the graphs, the report has only what the run directory holds.
    page = check_page(write_report(tmp_path / "run"))
    assert (
        "which are not stored on disk" in page.words
        and "typical error" in page.words
        and "Loss on the training set" in page.words
    )


def test_large_split_is_sampled(run_copy, monkeypatch):
    from graphslice.report import predictions

    monkeypatch.setattr(predictions, "_MAX_SHOWN", 4)
    page = check_page(write_report(run_copy))
    assert "A random sample of 4 of 6 test molecules is shown." in page.words
    assert any("n = 4, MAE" in svg for svg in page.images.values())
    assert "compared with 47 training molecules" in page.words
    assert "on 6 test molecules" in page.words  # the score is that of all molecules


def test_ogb_report_without_test_labels_reads_only_what_is_there(make_ogb, tiny_config, tmp_path, offline):
    """The configuration of a run from elsewhere may name any folder."""
    make_ogb(tmp_path / "ogb", "pcqm4mv2")
    config = tiny_config("pcqm4mv2", data={"root": str(tmp_path / "ogb"), "cache": str(tmp_path / "cache")})
    result = train(config, tmp_path / "run")
    page = check_page(write_report(result.folder, result.data))
    assert re.search(r"on \d+ validation molecules", page.words) and "No test molecule has a label" in page.words
    assert re.search(r'<th scope="row">test-challenge</th><td>5</td>', page.source)
    shutil.rmtree(tmp_path / "cache")
    assert check_page(write_report(tmp_path / "run")).words == page.words
    shutil.rmtree(tmp_path / "ogb")
    assert "pcqm4mv2 is no longer in" in check_page(write_report(tmp_path / "run")).words
    assert {path.name for path in tmp_path.iterdir()} == {"run"}


def test_run_without_a_test_set_shows_its_held_out_folds(make_report, demo_rows):
    """As of a final model, which has neither a validation nor a test set."""
    trainer = {"refit": "on", "baselines": "on"}
    data = {"split": "random", "split_sizes": "0.9,0.1,0"}
    run = make_report(demo_rows[["smiles", "gap_ev"]], data=data, trainer=trainer)
    page = check_page(run / "report.html")
    assert "validation MAE" not in page.words.split("Loss")[0]
    assert "No test molecule has a label. These results are for folds of the training set" in page.words
    assert "Held-out: Predicted against true" in section(page, "predictions")
    assert "The best epoch was selected" not in page.words and "Error analysis" not in page.words
    scores = json.loads((run / "metrics.json").read_text())["valid"]
    assert f"on {scores['molecules']} held-out molecules." in page.words


def test_missing_and_damaged_files_are_named(run_copy, tmp_path, cli):
    config = RunConfig.from_dict(read_yaml(run_copy / "config.yaml"))
    config.data.dataset = str(tmp_path / "gone.csv")
    (run_copy / "config.yaml").write_text(config.to_yaml())
    code, _, err = cli("report", run_copy)
    page = check_page(run_copy / "report.html")
    assert code == 0 and "warning: the report has no molecules" in err
    assert "The molecules cannot be shown" in page.words and "gone.csv" in page.words
    (run_copy / "split.csv").write_text("row,sp")
    with pytest.raises(InputError, match=r"split.csv is .*damaged"):
        write_report(run_copy)
    (run_copy / "metrics.json").unlink()
    with pytest.raises(InputError, match="not finished"):
        write_report(run_copy)
    with pytest.raises(InputError, match="holds no run"):
        write_report(tmp_path)


def test_intervals_and_temperatures_are_tabulated(run_copy):
    path = run_copy / "metrics.json"
    metrics = json.loads(path.read_text())
    shared = {"calibration_molecules": 49}
    metrics["test"]["targets"]["gap_ev"] |= {"coverage_90": 0.875, "width_90": 1.2345, **shared}
    classes = {"coverage_90": 0.95, "classes_90": 1.5, "temperature": 1.25, **shared}
    metrics["test"]["targets"]["active"] = {"kind": "binary", "molecules": 6, **dict.fromkeys(METRICS, 0.5), **classes}
    metrics["valid"]["targets"]["active"] = metrics["test"]["targets"]["active"]
    path.write_text(json.dumps(metrics))
    words = check_page(write_report(run_copy)).words
    assert "gap_ev 5 of 6 (88%; by chance 4 to 6) 1.23" in words
    assert "active 6 of 6 (95%; by chance 4 to 6) 1.50 1.25" in words


def test_report_names_molecules_and_draws_the_nearest_training_molecule(make_report, demo_rows):
    """The nearest one by RDKit's fingerprints, or one that is as near."""
    table = demo_rows.assign(cmpd_id=[f"<b>CMP-{row}</b>" for row in range(60)])
    folder = make_report(table, data={"targets": "gap_ev", "id_column": "cmpd_id"})
    page = check_page(folder / "report.html")
    worst = section(page, "worst")
    titles = re.findall(r'card-title">&lt;b&gt;CMP-(\d+)&lt;/b&gt; \(row (\d+)\)<', worst)
    neighbours = re.findall(r"nearest training molecule: &lt;b&gt;CMP-(\d+)&lt;/b&gt; \(row (\d+)\)<", worst)
    assert len(titles) == len(neighbours) == 6
    assert all(int(row) == int(name) + 1 for name, row in [*titles, *neighbours])
    assert worst.count("<img") == 12
    make = rdFingerprintGenerator.GetMorganGenerator(radius=2, fpSize=1024).GetFingerprint
    bits = [make(Chem.MolFromSmiles(smiles)) for smiles in demo_rows["smiles"]]
    training = np.flatnonzero(demo_rows["split"] == "train").tolist()
    for (name, _), (neighbour, _) in zip(titles, neighbours, strict=True):
        similarities = BulkTanimotoSimilarity(bits[int(name)], [bits[k] for k in training])
        similarity = dict(zip(training, similarities, strict=True))
        assert similarity[int(neighbour)] >= max(similarity.values()) - 0.15


def test_headline_is_a_sentence_a_target(run_copy):
    """With the unit of the column name, held-out before test, and no means of different units."""
    run = read_run(run_copy)
    tasks = [Task("Solubility (uM)", transform="log"), Task("logD (pH 7.4)"), Task("hERG", "binary", ("no", "yes"))]
    run.checkpoints = [replace(run.checkpoints[0], tasks=tasks)]
    regression = {"kind": "regression", "mae": 20.0, "rmse": 40.0, "r2": 0.5, "pearson": 0.6}
    counts = {"no": 496, "yes": 4}
    classes = {"kind": "binary", "molecules": 500, "counts": counts, **dict.fromkeys(METRICS, 0.875)}
    valid = {
        "Solubility (uM)": {**regression, "molecules": 87, "median_error": 27.4, "spearman": 0.6612},
        "logD (pH 7.4)": {**regression, "molecules": 19, "median_error": 0.00123, "spearman": 9.989e-05},
        "hERG": classes,
    }
    test = {name: {**scores, "molecules": 0} | dict.fromkeys(METRICS) for name, scores in valid.items()}
    test["Solubility (uM)"] |= {"molecules": 20, "median_error": 41234.0, "spearman": -0.001}
    run.metrics = {"metric": "loss", "valid": {"loss": 7.0, "targets": valid}, "test": {"targets": test}}

    def sentences():
        return [sentence.striptags() for sentence in headlines(run)]

    assert (
        sentences()[0] == "Solubility: typical error (median) 41,000 uM, rank correlation 0.00, on 20 test molecules."
    )
    test["Solubility (uM)"]["median_factor"] = 2.3  # of a target that is trained on its logarithm
    (run_copy / "out_of_fold.csv").touch()  # folds of the training set in place of a validation set
    assert sentences() == [
        "Solubility: typical error (median) 27 uM, rank correlation 0.66, on 87 held-out molecules; a factor of 2.3 "
        "and 0.00 on 20 test molecules.",
        "logD (pH 7.4): typical error (median) 0.0012, rank correlation 0.00, on 19 held-out molecules (fewer than 20: "
        "largely chance).",
        "hERG: AUROC 0.88, balanced accuracy 0.88, on 500 held-out molecules (fewer than 5 of a class: largely "
        "chance).",
    ]


def test_targets_of_few_molecules_do_not_head_the_table(run_copy):
    path = run_copy / "metrics.json"
    metrics = json.loads(path.read_text())
    scores = metrics["test"]["targets"]["gap_ev"] | {"molecules": 20}
    metrics["test"]["targets"] = {
        "few": {**scores, "mae": 0.0, "molecules": 19},
        "worse": {**scores, "mae": 2.0},
        "better": {**scores, "mae": 1.0},
    }
    metrics["valid"]["targets"] = metrics["test"]["targets"]
    run = replace(read_run(run_copy), metrics=metrics)
    (table,) = [part for part in scores_section(run).parts if isinstance(part, Table)][:1]
    assert [row[-1] for row in table.rows[1::2]] == ["20", "20", "19"]
    assert [row[1] for row in table.rows[1::2]] == ["1.00", "2.00", "0.00"]


def test_card_shows_the_bound_of_the_nearest_training_molecule(make_report, demo_rows):
    table = demo_rows.astype({"gap_ev": object})
    table.loc[table["split"] == "train", "gap_ev"] = [">100" if k % 4 else "5.5" for k in range(47)]
    page = check_page(make_report(table) / "report.html")
    assert "nearest training molecule: row" in page.words and "true &gt;100" not in page.words
    assert re.search(r"nearest training molecule: row \d+ true >100 ", page.words)


def test_unit_of_a_column_name_is_found():
    for name, unit in (("CL [mL/min/kg]", "mL/min/kg"), ("Papp (10^-6 cm/s)", "10^-6 cm/s")):
        assert _WITH_UNIT.fullmatch(name)[2] == unit
    for name in ("logD (pH 7.4)", "IC50 (human)", "(rat)", "CL (liver microsomes)", "gap_ev"):
        assert not _WITH_UNIT.fullmatch(name)


def test_rejected_rows_are_counted_by_reason(run_copy):
    lines = "1,oops,not a valid SMILES", "2,C,target 'y' is not a finite number: 'low'; used without this label"
    unlabelled = (f"{row},CC,no target value" for row in range(3, 20))
    (run_copy / "rejected.csv").write_text("\n".join(["row,smiles,reason", *unlabelled, *lines]))
    page = check_page(write_report(run_copy))
    assert "18 rows rejected, 1 row used without an invalid label; rejected.csv" in page.words
    assert "no target value 17 3 not a valid SMILES 1 1" in " ".join(page.words.split())
