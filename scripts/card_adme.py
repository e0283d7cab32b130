"""Make docs/adme.md, the model card of ``adme``, of docs/benchmarks/adme.jsonl: ``python scripts/card_adme.py``.

``--rate TABLE`` first measures how many molecules a second one thread predicts, from the SMILES of a table, with and
without intervals; ``--separate FILE`` takes the results of ``separate_adme.py``. Both are kept in the file of results.
"""

from __future__ import annotations

import argparse
import json
import time
from collections import defaultdict
from pathlib import Path

import numpy as np
import pandas as pd

import graphslice as gs
from graphslice.checkpoint import read_checkpoint
from graphslice.evaluation.format_scores import mean_and_std
from graphslice.hardware import hardware_info
from pack_adme import ENDPOINTS, RESULTS

DOCUMENT = Path(__file__).parents[1] / "docs" / "adme.md"
_HEAD = """# adme: absorption, distribution, metabolism, excretion and toxicity

Made by `python scripts/card_adme.py` of [benchmarks/adme.jsonl](benchmarks/adme.jsonl); do not edit.

{endpoints} endpoints of a molecule: one graph transformer for all of them, fine-tuned from [`small`](models.md), and
for {kernels} endpoints with few molecules also a kernel machine. It comes with the package ({megabytes:.1f} MB).

```sh
graphslice predict adme "CCO" --summary                        # one table for each molecule
graphslice predict adme molecules.csv --interval 90 -o out.csv # columns of a table
```

```python
import graphslice as gs

model = gs.load("adme")
model.predict(["CCO"], interval=90).to_frame()
model.tasks[0]  # name, unit and description of an endpoint
```

- **Prediction**: a number in its unit, or the probability of `yes`. **Interval**: 90% conformal prediction interval, or
  [prediction set](howto/uncertainty.md#what-the-coverage-means). **Percentile**: among the predictions for {approved}
  approved drugs (ClinTox's column FDA_APPROVED).
- **`in_domain` and `similarity`** compare with 10,000 training molecules, drawn at random, whose SMILES the package has
  (`--nearest` names them). They say little of very small molecules, such as ethanol, and of long chains.
- **Salts and charges** change predictions: give the neutral parent, as most of the tables do.
- **Do not evaluate the model on TDC's test rows**: they are among its training molecules.
- **Limits**: intervals are not cut at physical limits, such as 100%. The tables mix assays of many laboratories;
  dose, species and formulation are those of the assays. Clearances are limited by their assays at 3 and 150. A
  prediction is no safety assessment.
- **Data**: all rows of the 22 tables of TDC's ADMET group (CC BY 4.0, as Therapeutics Data Commons states on its pages,
  which name the original publications; for some of the tables these state no licence of their own) and of the 12 assays
  of Tox21 (a work of the United States government, by way of MoleculeNet): {molecules} molecules with {labels} labels.
  SIDER, FreeSolv and ClinTox are not taken, since no licence that allows it could be confirmed. The tables themselves
  are not in the package.
- **Terms**: the weights are under the licence of this package; the data ask for attribution, which this page gives.

## Endpoints

{described}
"""
_SCORES = """
## Cross-validation

Five folds by scaffold, families never divided. Every score is of molecules that neither network, kernel machine,
stacking weights nor calibration had seen; mean ± standard deviation over the folds. Regression: Spearman's rank
correlation, and mean absolute error in the unit; classes: AUROC. *Network* is the graph transformer alone. *Separate*
is `graphslice train` with its defaults for the endpoint alone, on the first fold only, next to *adme* on the same fold.

{table}

{summary}

## Training

```sh
python scripts/build_adme.py DATA -o adme.csv  # DATA: tdc_admet/*.csv and tox21.csv
OPTIONS="--dataset adme.csv --targets {targets} --transform {transforms} --epochs 6 --baselines off"
graphslice train $OPTIONS --split scaffold --folds 5 --out runs/folds
graphslice train $OPTIONS --split split --out runs/final
python scripts/pack_adme.py runs/folds runs/final --approved DATA/clintox.csv
python scripts/separate_adme.py runs/folds -o separate.jsonl
python scripts/card_adme.py --separate separate.jsonl --rate adme.csv
```

## Rate

{rate}
"""


def endpoint_table(endpoints: pd.DataFrame) -> str:
    """Return the table of what the endpoints mean."""
    rows = ["| endpoint | meaning | unit | direction | table | licence |", "|---|---|---|---|---|---|"]
    for each in endpoints.itertuples():
        unit = "probability of `yes`" if each.kind == "binary" else each.unit
        cells = (each.name, each.description, unit, each.direction, each.table, each.license)
        rows.append(f"| {' | '.join(cells)} |")
    return "\n".join(rows)


def score_table(lines: list[dict], endpoints: pd.DataFrame) -> tuple[str, str]:
    """Return the table of scores, and sentences that summarize it."""
    folds, separate = defaultdict(list), {}
    for line in lines:
        if "stack" in line:
            folds[line["endpoint"]].append(line)
        elif "separate" in line:
            separate[line["endpoint"]] = line["separate"]
    rows = [
        "| endpoint | unit | molecules | adme | network | MAE | separate, fold 1 | adme, fold 1 | 90% coverage |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    wins, coverages = [], []
    for name, unit, kind in zip(endpoints["name"], endpoints["unit"], endpoints["kind"], strict=True):
        own, metric = folds[name], "auroc" if kind == "binary" else "spearman"
        error = "" if kind == "binary" else mean_and_std([each["stack"]["mae"] for each in own], 3)
        alone = separate.get(name, {}).get(metric)
        first = next(each["stack"][metric] for each in own if each["fold"] == 0)
        if alone is not None:
            wins.append(first >= alone)
        counts = np.array([each["molecules"] for each in own])
        coverage = float(np.average([each["coverage_90"] for each in own], weights=counts))
        coverages.append(coverage)
        cells = [name, "" if kind == "binary" else unit, f"{counts.sum():,}"]
        cells += [mean_and_std([each[part][metric] for each in own], 3) for part in ("stack", "network")]
        cells += [error, "" if alone is None else f"{alone:.3f}", f"{first:.3f}", f"{100 * coverage:.0f}%"]
        rows.append(f"| {' | '.join(cells)} |")
    summary = f"90% intervals and sets cover {100 * min(coverages):.0f} to {100 * max(coverages):.0f}% of the labels."
    if wins:
        summary += f" On the first fold `adme` is at least as good as the separate model on {sum(wins)} of {len(wins)}."
    return "\n".join(rows), summary


def measure_rate(table: Path) -> dict:
    """Measure the rate of one thread, on distinct molecules of a table, without the start."""
    import torch

    torch.set_num_threads(1)
    smiles = pd.read_csv(table)["smiles"].drop_duplicates().sample(4000, random_state=0).tolist()
    model, found = gs.load("adme", "cpu"), {}
    model.predict(smiles[:200], interval=90)
    for name, interval in (("predictions", None), ("intervals", 90)):
        begin = time.process_time()
        model.predict(smiles, details=True, interval=interval)
        found[name] = round(len(smiles) / (time.process_time() - begin))
    return {"rate": found, "machine": hardware_info()["machine"]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rate", type=Path, help="a table with a column smiles")
    parser.add_argument("--separate", type=Path, help="results of separate_adme.py")
    options = parser.parse_args()
    lines = [json.loads(line) for line in RESULTS.read_text(encoding="utf-8").splitlines()]
    if options.separate:
        lines = [line for line in lines if "separate" not in line]
        lines += [json.loads(line) for line in options.separate.read_text(encoding="utf-8").splitlines()]
    if options.rate:
        lines = [*(line for line in lines if "rate" not in line), measure_rate(options.rate)]
    if options.rate or options.separate:
        RESULTS.write_text("".join(f"{json.dumps(line)}\n" for line in lines), encoding="utf-8")
    DOCUMENT.write_text(rendered(lines), encoding="utf-8")


def rendered(lines: list[dict]) -> str:
    """The document of all results."""
    endpoints = pd.read_csv(ENDPOINTS, keep_default_na=False)
    table, summary = score_table(lines, endpoints)
    packed = next(line for line in lines if "packed" in line)["packed"]
    head = _HEAD.format(
        described=endpoint_table(endpoints),
        **{key: f"{value:,}" if isinstance(value, int) else value for key, value in packed.items()},
    )
    rate = next((line for line in lines if "rate" in line), None)
    text = (
        "Not measured yet."
        if rate is None
        else (
            f"One thread of {rate['machine']}, from SMILES, all endpoints, in processor time without the start: "
            f"{rate['rate']['predictions']:,} molecules a second, {rate['rate']['intervals']:,} with intervals and "
            "`in_domain`."
        )
    )
    targets, logs = (
        ",".join(endpoints["name"]),
        ",".join(f"{task.name}=log" for task in read_checkpoint("adme").tasks if task.transform == "log"),
    )
    return head + _SCORES.format(table=table, summary=summary, rate=text, targets=targets, transforms=logs)


if __name__ == "__main__":
    main()
