"""Model cards: README.md of a model in the layout of Hugging Face."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import yaml
from jinja2 import Environment, PackageLoader, StrictUndefined

from graphslice._version import __version__
from graphslice.evaluation.format_scores import PRINTED_METRICS, describe_covered, markdown_table, plain
from graphslice.evaluation.metrics import prediction_count
from graphslice.inference.predictor import Predictor
from graphslice.runs.run_files import find_members, read_splits, read_start

_COVERAGE = "coverage_90"
# Targets in the table of targets.
_MAX_TARGETS = 40


def model_card(model: Predictor, metrics: Mapping[str, Any], repository: str, license: str) -> str:
    """Write the card of a model from its run: Markdown with YAML front matter. ``metrics``: as in ``metrics.json``;
    ``repository``: ``user/name`` on the Hub, or the name of a packaged model; ``license``: an identifier of the Hub,
    such as ``mit``."""
    split = next((name for name in ("test", "valid") if name in metrics), None)
    scores = metrics[split]["targets"] if split else {}
    notes = read_start(model.folder).get("notes", []) if model.folder else []
    name, data = repository.rpartition("/")[2], model.config.without_paths().data
    matter: dict[str, Any] = {
        "license": license,
        "library_name": "graphslice",
        "pipeline_tag": "graph-ml",
        "tags": ["chemistry", "molecules", "smiles", "graphslice"],
    }
    if scores:
        results = [_result(target, values, data.dataset, str(split)) for target, values in scores.items()]
        matter["model-index"] = [{"name": name, "results": results}]
    environment = Environment(
        loader=PackageLoader("graphslice.report"), undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    text = environment.get_template("model_card.md").render(
        name=name,
        version=__version__,
        targets=_targets(model),
        more_targets=max(0, len(model.tasks) - _MAX_TARGETS),
        on_hub="/" in repository,
        repository=repository,
        data=data,
        rows=_rows(model),
        split="out-of-fold" if split and model.is_cross_validation else split,
        scores="\n\n".join([_scores(scores), *(f"Initial model: {note}." for note in notes)]),
        domain=None if model.calibration is None else model.calibration.domain,
        stacked=any(stacking is not None for stacking in model.stackings),
        models=model.num_models,
        model=model.config.model,
        parameters=model.networks.num_parameters,
    )
    return f"---\n{yaml.safe_dump(matter, sort_keys=False, allow_unicode=True)}---\n\n{text}\n"


def _targets(model: Predictor) -> str:
    head = ["target", "type", "unit", "classes, or scale of training"]
    tasks = model.tasks[:_MAX_TARGETS]
    rows = ((task.name, task.kind, task.unit, ", ".join(task.classes) or task.transform) for task in tasks)
    return "\n".join(markdown_table(head, rows))


def _result(name: str, scores: Mapping[str, Any], dataset: str, split: str) -> dict[str, Any]:
    known = [metric for metric in PRINTED_METRICS[scores["kind"]] if scores.get(metric) is not None]
    kind = "tabular-regression" if scores["kind"] == "regression" else "tabular-classification"
    return {
        "task": {"type": kind, "name": name},
        "dataset": {"type": dataset, "name": dataset, "split": split},
        "metrics": [{"type": metric, "value": scores[metric]} for metric in known],
    }


def _rows(model: Predictor) -> str:
    """Return the number of rows of each split; empty for cross-validation and without ``split.csv``."""
    if model.folder is None or model.is_cross_validation:
        return ""
    splits = read_splits(next(iter(find_members(model.folder)), model.folder)) or {}
    return ", ".join(f"{len(rows):,} {name}" for name, rows in splits.items())


def _scores(targets: Mapping[str, Mapping[str, Any]]) -> str:
    kinds = {scores["kind"] for scores in targets.values()}
    names = list(dict.fromkeys(name for kind in PRINTED_METRICS if kind in kinds for name in PRINTED_METRICS[kind]))
    names += [_COVERAGE] if any(scores.get(_COVERAGE) is not None for scores in targets.values()) else []
    rows = []
    for target, scores in targets.items():
        cells = ["" if scores.get(name) is None else plain(scores[name]) for name in names]
        if cells[-1] and names[-1] == _COVERAGE:
            cells[-1] = describe_covered(scores)
        rows.append([target, prediction_count(dict(scores))[0], *cells])
    return "\n".join(markdown_table(["target", "labels", *names], rows))
