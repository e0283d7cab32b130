"""Put the recorded runs into the documents: ``python scripts/result_tables.py``.

In README.md, docs/results.md, docs/models.md and docs/log.md the text between ``<!-- table: NAME -->`` and
``<!-- /table: NAME -->`` is replaced by the table of ``docs/results/NAME.jsonl``, whose lines are written by
``record.py``, ``baseline_forest.py``, ``against_chemprop.py``, ``model_card.py`` and ``split_check.py``.
"""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pandas as pd

from benchmarks.table_report import BOARDS, PUBLISHED, grouped, markdown, places, read_results, win_count
from benchmarks.table_tasks import TDC

DOCS = Path(__file__).parents[1] / "docs"
DOCUMENTS = (DOCS.parent / "README.md", DOCS / "results.md", DOCS / "models.md", DOCS / "log.md")
SPLITS, STARTS = "splits", "starts"
#: Name of the table of README.md, which is made of several files of results.
SUMMARY = "summary"
_MARKED = re.compile(r"<!-- table: ([\w-]+) -->\n.*?<!-- /table: \1 -->", re.DOTALL)


def filled(text: str) -> str:
    """The document with every table made from its records."""

    def fill(match: re.Match) -> str:
        if match[1] == SUMMARY:
            return f"<!-- table: {SUMMARY} -->\n{summary_table()}<!-- /table: {SUMMARY} -->"
        records = _records(match[1])
        special = {SPLITS: split_table, STARTS: start_table}
        made = special.get(match[1], card_table if "coverage" in records[0] else runs_table)
        return f"<!-- table: {match[1]} -->\n{made(records)}<!-- /table: {match[1]} -->"

    return _MARKED.sub(fill, text)


def runs_table(lines: list[dict]) -> str:
    """A row for each model, in the order of their first lines; runs of one model are its seeds. Then the machines."""
    rows = [["model", "test MAE", "validation MAE", "test MAE of single seeds", "parameters", "epochs", "minutes"]]
    for model in dict.fromkeys(line["model"] for line in lines):
        runs = [line for line in lines if line["model"] == model]
        test = [run["test"]["mae"] for run in runs]
        valid = [run["valid"]["mae"] for run in runs if "valid" in run]
        single = ", ".join(str(round(value, 4)) for value in test)
        cells = [mean(test), mean(valid), single, _range(runs, "parameters"), _range(runs, "epochs"), _minutes(runs)]
        rows.append([model, *cells])
    return markdown([*rows, *_base_models(lines)]) + "\n" + _origin(lines) + "\n"


def _base_models(lines: list[dict]) -> list[list[str]]:
    """The rows of the base models that were trained with the networks; those of one seed are the same."""
    scores = {line["seed"]: line["baselines"] for line in lines if "baselines" in line}
    rows = []
    for name, model in (("forest", "random forest"), ("boosting", "gradient boosting")):
        test = [scores[seed][name] for seed in sorted(scores) if name in scores[seed]]
        if test:
            single = ", ".join(str(round(value, 4)) for value in test)
            rows.append([f"{model}, base model of the runs", mean(test), "", single, "", "", ""])
    return rows


def mean(values: list[float]) -> str:
    """Mean ± standard deviation over seeds."""
    if not values:
        return ""
    return f"{np.mean(values):.3f}" + (f" ± {np.std(values, ddof=1):.3f}" if len(values) > 1 else "")


def _range(runs: list[dict], field: str) -> str:
    """The values of a field, each once."""
    return ", ".join(f"{value:,}" for value in sorted({run[field] for run in runs if run.get(field) is not None}))


def _minutes(runs: list[dict]) -> str:
    """The least and the most minutes."""
    minutes = [run["seconds"] / 60 for run in runs if run.get("seconds") is not None]
    ends = [min(minutes), max(minutes)] if minutes else []
    return " to ".join(dict.fromkeys(f"{value:.1f}" if value < 10 else f"{value:.0f}" for value in ends))


def _origin(lines: list[dict]) -> str:
    """Where the figures come from, in a sentence or two."""
    kept = sorted({line["machine"] for line in lines if "source" not in line})
    sentences = [f"Measured on {'; '.join(kept)}."] if kept else []
    copied = list(dict.fromkeys(line["model"] for line in lines if "source" in line))
    if copied:
        which = f": {', '.join(copied)}" if kept else ""
        sentences.append(f"Transcribed because the run directories were not kept{which}.")
    return " ".join(sentences)


def card_table(lines: list[dict]) -> str:
    """A row for each target of a model that comes with the package."""
    rows = [["target", "test molecules", "MAE", "R2", f"coverage of {lines[0]['level']:.0f}% intervals"]]
    for line in lines:
        scores = [f"{line['test'][name]:.3f}" for name in ("mae", "r2")]
        rows.append([line["target"], f"{line['test']['molecules']:,}", *scores, f"{100 * line['coverage']:.1f}%"])
    return markdown(rows) + "\n" + _origin(lines) + "\n"


def split_table(lines: list[dict]) -> str:
    """A row for each table with a family in more than one part of its split; the others in a sentence."""
    shared = [f"test rows with their {name} in train or valid" for name in ("SMILES", "family")]
    rows = [["table", "canonical SMILES in several parts", "families in several parts", "test rows", *shared]]
    names = ("molecules", "families", "test_rows", "test_molecules", "test_families")
    rows += [[f"`{line['table']}`", *(f"{line[name]:,}" for name in names)] for line in lines if line["families"]]
    none = ", ".join(f"`{line['table']}`" for line in lines if not line["families"])
    return markdown(rows) + (f"\nNo SMILES and no family is in several parts in {none}.\n" if none else "")


def start_table(lines: list[dict]) -> str:
    """A row for each table and measure, a column for each pretrained network."""
    starts = list(dict.fromkeys(line["start"] for line in lines))
    rows: dict[str, dict[str, str]] = {}
    for line in lines:
        digits = 2 if line["score"] >= 5 else 3
        row = rows.setdefault(f"{line['measure']}: {line['table']}, {line['metric']}", {})
        row[line["start"]] = f"{line['score']:.{digits}f}"
    return markdown([["", *starts], *([name, *(row.get(start, "") for start in starts)] for name, row in rows.items())])


def summary_table() -> str:
    """GraphSlice and chemprop in one row each for TDC's ADMET group, the demo set and QM9's gaps."""
    scores = grouped(read_results(DOCS / "benchmarks" / "results.jsonl"), "test")
    board = pd.read_csv(DOCS / "benchmarks" / PUBLISHED, index_col="task")
    ranks = places("graphslice", scores, board)
    means = ranks.mean()
    ensemble = places("graphslice-ensemble", scores, board).mean()["graphslice-ensemble"]
    others = ", ".join(f"{BOARDS[name]} {means[name]:.1f}" for name in ("maplight_gnn", "minimol", "maplight"))
    means_of = {
        name: {
            task.name: np.mean(found[name])
            for task in TDC.values()
            if name in (found := scores[task.name, task.metrics[0]])
        }
        for name in ("graphslice", "chemprop")
    }
    demo, qm9 = (_test_errors(name) for name in ("demo", "qm9-xtb-gap"))
    chemprop = [f"chemprop 2.3.1, {loss} error" for loss in ("squared", "absolute")]
    cells = [f"{mean(found[f'{chemprop[0]} (its default)'])} ({mean(found[chemprop[1]])})" for found in (demo, qm9)]
    small, scratch = "`graphslice train`, which starts from `small`", "`graphslice train --init-from none`"
    ahead = win_count(means_of["graphslice"], means_of["chemprop"])
    behind = win_count(means_of["chemprop"], means_of["graphslice"])
    return markdown(
        [
            ["benchmark", "GraphSlice", "chemprop", "others"],
            [
                f"TDC ADMET group, mean rank with eight published methods over {len(ranks)} tasks (1 is best)",
                f"**{means['graphslice']:.1f}** (`--ensemble 5`, one seed: {ensemble:.1f})",
                f"{means['chemprop']:.1f} (published)",
                others,
            ],
            ["the same, better on how many tasks, same rows, defaults", f"**{ahead}**", behind, ""],
            ["demo set, HOMO-LUMO gap, test MAE, eV, from scratch", f"**{mean(demo[scratch])}**", cells[0], _forests()],
            ["the same, fine-tuned from `small`", f"**{mean(demo[small])}**", "", ""],
            ["gaps of QM9 by GFN2-xTB, test MAE, eV, from scratch", f"**{mean(qm9['`small`'])}**", cells[1], ""],
        ]
    )


def _test_errors(name: str) -> dict[str, list[float]]:
    """The test MAE of each seed, by model."""
    errors: dict[str, list[float]] = {}
    for line in _records(name):
        errors.setdefault(line["model"], []).append(line["test"]["mae"])
    return errors


def _forests() -> str:
    """Test MAE of the random forests of the demo set: on fingerprints, and the base model of the runs."""
    (morgan,) = _test_errors("demo")["random forest on Morgan fingerprints"]
    base = [line["baselines"]["forest"] for line in _records("demo") if "baselines" in line]
    return f"random forest {morgan:.3f} on Morgan fingerprints, {np.mean(base):.2f} on counts and descriptors"


def _records(name: str) -> list[dict]:
    lines = (DOCS / "results" / f"{name}.jsonl").read_text(encoding="utf-8").splitlines()
    return [json.loads(line) for line in lines]


def main() -> None:
    for document in DOCUMENTS:
        document.write_text(filled(document.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main()
