"""Put the recorded runs into the documents: ``python scripts/result_tables.py``.

In README.md, docs/results.md and docs/models.md the text between ``<!-- table: NAME -->`` and
``<!-- /table: NAME -->`` is replaced by the table of ``docs/results/NAME.jsonl``, whose lines are written by
``record.py``, ``baseline_forest.py``, ``against_chemprop.py``, ``model_card.py`` and ``split_check.py``.
"""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np

from benchmarks.table_report import markdown

DOCS = Path(__file__).parents[1] / "docs"
DOCUMENTS = (DOCS.parent / "README.md", DOCS / "results.md", DOCS / "models.md")
SPLITS = "splits"
_MARKED = re.compile(r"<!-- table: ([\w-]+) -->\n.*?<!-- /table: \1 -->", re.DOTALL)


def filled(text: str) -> str:
    """The document with every table made from its records."""

    def fill(match: re.Match) -> str:
        lines = (DOCS / "results" / f"{match[1]}.jsonl").read_text(encoding="utf-8").splitlines()
        records = [json.loads(line) for line in lines]
        made = split_table if match[1] == SPLITS else card_table if "coverage" in records[0] else runs_table
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
    return markdown(rows) + "\n" + _origin(lines) + "\n"


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
        sentences.append(f"Transcribed, as the run directories were not kept{which}.")
    return " ".join(sentences)


def card_table(lines: list[dict]) -> str:
    """A row for each target of a model that comes with the package."""
    rows = [["target", "test molecules", "MAE", "R2", f"labels within {lines[0]['level']:.0f}% intervals"]]
    for line in lines:
        scores = [f"{line['test'][name]:.3f}" for name in ("mae", "r2")]
        rows.append([line["target"], f"{line['test']['molecules']:,}", *scores, f"{100 * line['coverage']:.1f}%"])
    return markdown(rows) + "\n" + _origin(lines) + "\n"


def split_table(lines: list[dict]) -> str:
    """A row for each table of molecules that has something on several sides of its split; the others in a sentence."""
    shared = ["of these, SMILES in train or valid", "of these, family in train or valid"]
    rows = [["table", "canonical SMILES on several sides", "families on several sides", "test rows", *shared]]
    names = ("molecules", "families", "test_rows", "test_molecules", "test_families")
    rows += [[f"`{line['table']}`", *(f"{line[name]:,}" for name in names)] for line in lines if line["families"]]
    none = ", ".join(f"`{line['table']}`" for line in lines if not line["families"])
    return markdown(rows) + (f"\nNone in {none}.\n" if none else "")


def main() -> None:
    for document in DOCUMENTS:
        document.write_text(filled(document.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main()
