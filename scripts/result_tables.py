"""Put the recorded results into the documents: ``python scripts/result_tables.py``.

In every document the text between ``<!-- NAME -->`` and ``<!-- /NAME -->`` is replaced by the table of that name.
``table: NAME`` is that of ``docs/results/NAME.jsonl``, whose lines are written by ``record.py``, ``model_card.py`` and
``split_check.py``, or one of those made of ``docs/benchmarks/*.jsonl``, which ``benchmark.py`` writes. Other names are
those of ``docs/comparisons/NAME.json``, copies of the ``comparison.json`` of ``graphslice compare``, and of numbers of
docs/adme.md.
"""

import json
import re
from pathlib import Path

import numpy as np
import pandas as pd

from benchmarks.adme import adme_numbers, adme_tables
from benchmarks.intervals import interval_tables
from benchmarks.rate import MANY, RIVALS, microseconds, rate_table
from benchmarks.results import RESULTS, markdown, read_results
from benchmarks.shards import cost_table, rehearsal_table
from benchmarks.tables import (
    BOARDS,
    benchmark_numbers,
    benchmark_tables,
    comparable,
    comparisons,
    grouped,
    holm,
    places,
    recorded,
)
from graphslice.evaluation.format_scores import mean_and_std
from graphslice.search.compare import table
from marks import fill_document

DOCS = Path(__file__).parents[1] / "docs"
_PAGES = ("results", "models", "log", "mixers", "benchmarks", "intervals", "adme", "explanation/how-it-works")
_PAGES += ("howto/hundred-million",)
DOCUMENTS = (DOCS.parent / "README.md", *(DOCS / f"{name}.md" for name in _PAGES))


def all_tables() -> dict[str, str]:
    """Return every table by name."""
    results = {
        name: read_results(RESULTS / f"{name}.jsonl") for name in ("intervals", "adme", "rate", "shards", "transfer")
    }
    tables = {path.stem: record_table(read_results(path)) for path in (DOCS / "results").glob("*.jsonl")}
    tables |= benchmark_tables(*recorded()) | interval_tables(results["intervals"]) | adme_tables(results["adme"])
    tables |= {"summary": summary_table(*recorded()), "rate": rate_table(results["rate"])}
    tables |= {"transfer": transfer_table(results["transfer"])}
    tables |= {"rehearsal": rehearsal_table(results["shards"]), "hundred-million": cost_table(results["shards"])}
    comparisons = (DOCS / "comparisons").glob("*.json")
    named = {path.stem: comparison_table(json.loads(path.read_text(encoding="utf-8"))) for path in comparisons}
    numbers = adme_numbers(results["adme"]) | benchmark_numbers(*recorded())
    return {f"table: {name}": text for name, text in tables.items()} | named | numbers


def comparison_table(result: dict) -> str:
    """The table of a comparison without rate and memory: its runs shared a machine, on several days."""
    return re.sub(r"(?m)^((?:\|[^|\n]*){5})(?:\|[^|\n]*){2}(\|[^|\n]*\|)$", r"\1\2", table(result))


def record_table(lines: list[dict]) -> str:
    """Return the table of a file of results; its kind depends on the fields of its lines."""
    kinds = {"families": split_table, "coverage": card_table}
    return next((make for field, make in kinds.items() if field in lines[0]), runs_table)(lines)


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
    return mean_and_std(values, 3) if values else ""


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


def transfer_table(lines: list[dict]) -> str:
    """A row for each table and measure, a column for each pretrained network; the mean of several pretrainings."""
    starts = list(dict.fromkeys(line["start"] for line in lines))
    scores: dict[str, dict[str, list[float]]] = {}
    for line in lines:
        row = scores.setdefault(f"{line['measure']}: {line['table']}, {line['metric']}", {})
        row.setdefault(line["start"], []).append(line["score"])
    rows = [[name, *(_scores(row.get(start, [])) for start in starts)] for name, row in scores.items()]
    return markdown([["", *starts], *rows])


def _scores(scores: list[float]) -> str:
    """Mean ± standard deviation; large errors with two decimals."""
    return mean_and_std(scores, 2 if np.mean(scores) >= 5 else 3) if scores else ""


def summary_table(results: list[dict], board: pd.DataFrame) -> str:
    """GraphSlice and chemprop in one row each for TDC's ADMET group, the demo set and QM9's gaps."""
    found = grouped(results, "test")
    scores = comparable(found, board)
    ranks = places("graphslice", scores)
    means = ranks.mean()
    ensemble = places("graphslice-ensemble", scores).mean()["`graphslice-ensemble`"]
    others = ", ".join(f"{BOARDS[name]} {means[name]:.1f}" for name in ("maplight_gnn", "minimol", "maplight"))
    demo, qm9 = (_test_errors(name) for name in ("demo", "qm9-xtb-gap"))
    chemprop = [f"chemprop 2.3.1, {loss} error" for loss in ("squared", "absolute")]
    cells = [f"{mean(found[f'{chemprop[0]} (its default)'])} ({mean(found[chemprop[1]])})" for found in (demo, qm9)]
    rates = microseconds(read_results(RESULTS / "rate.jsonl"))
    ours, *theirs = (rates[model] / 1000 for model in (f"default-{MANY}", *RIVALS))
    small, scratch = "`graphslice train`, which starts from `small`", "`graphslice train --init-from none`"
    tests = comparisons(found)
    verdicts = [verdict for verdict, _ in tests]
    remaining = holm(p for _, p in tests if not np.isnan(p))
    better, worse = (f"{verdicts.count(word)} of {len(verdicts)}" for word in ("better", "worse"))
    better = f"**{better}** ({remaining} after Holm's correction)"
    return markdown(
        [
            ["benchmark", "GraphSlice", "chemprop", "others"],
            [
                f"TDC ADMET group, mean rank with eight published methods over {len(ranks)} tasks (1 is best)",
                f"**{means['`graphslice`']:.1f}** (`--ensemble 5`: {ensemble:.1f})",
                f"{means['chemprop']:.1f} (published)",
                others,
            ],
            [
                "the same tasks, same rows, defaults of both: significantly better on",
                better,
                worse,
                "",
            ],
            ["demo set, HOMO-LUMO gap, test MAE, eV, from scratch", f"**{mean(demo[scratch])}**", cells[0], _forests()],
            ["the same, fine-tuned from `small`", f"**{mean(demo[small])}**", "", ""],
            ["gaps of QM9 by GFN2-xTB, test MAE, eV, from scratch", f"**{mean(qm9['`small`'])}**", cells[1], ""],
            [
                f"processor time of `predict` for a molecule, ms, default, {MANY:,} training molecules",
                f"**{ours:.2f}**",
                f"{theirs[0]:.2f} ({theirs[1]:.2f} with its fast featurizer)",
                "",
            ],
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
    morgan = np.mean(_test_errors("demo")["random forest on Morgan fingerprints"])
    base = [line["baselines"]["forest"] for line in _records("demo") if "baselines" in line]
    return f"random forest {morgan:.3f} on Morgan fingerprints, {np.mean(base):.2f} on counts and descriptors"


def _records(name: str) -> list[dict]:
    return read_results(DOCS / "results" / f"{name}.jsonl")


def main() -> None:
    tables = all_tables()
    for document in DOCUMENTS:
        fill_document(document, tables.get)


if __name__ == "__main__":
    main()
