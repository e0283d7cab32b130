"""``graphslice evaluate``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from jsonargparse import ArgumentParser, Namespace

from graphslice.cli.options import (
    TABLE_FILES,
    add_device,
    add_model,
    add_output_file,
    add_setting,
    load_model,
)
from graphslice.system.console import remark, standard_error
from graphslice.system.hub import local_path

MODULE = "graphslice.evaluation.evaluate"
EXAMPLES = "runs/my", "runs/my measured.csv --targets logp -o predictions.csv"


def add_arguments(parser: ArgumentParser, arguments: list[str]) -> None:
    parser.usage = "graphslice evaluate MODEL [MODEL ...] [FILE] [options]"
    add_model(parser, several=True)
    for name in ("dataset", "root", "smiles_column", "long", "decimal"):
        add_setting(parser, f"data.{name}", default="as in training")
    text = "label columns, separated by commas: some of the model's targets, or one column per target in its order"
    add_setting(parser, "data.targets", help=text)
    default = "test; valid for PCQM4Mv2 and PCQM4M; all for data without splits"
    parser.add_argument("--split", help=f"train, valid, test or all (default: {default})")
    add_output_file(parser, f"{TABLE_FILES} for the labels and predictions")
    add_device(parser)


def run(options: Namespace, arguments: list[str]) -> dict[str, Any]:
    """Print the metrics of a model on a split; raise InputError for unusable input."""
    from graphslice.data.loaders import is_dataset_name
    from graphslice.data.tables import is_table_name
    from graphslice.errors import pluralize
    from graphslice.evaluation.evaluate import evaluate, evaluation_notes, load_evaluation_data
    from graphslice.evaluation.format_scores import describe_bounds, describe_coverage, describe_scores
    from graphslice.inference.files import check_output

    last = options.model[-1]
    if options.dataset is None and len(options.model) > 1 and (is_table_name(last) or is_dataset_name(last)):
        *options.model, options.dataset = options.model
    predictor = load_model(options)
    source = options.dataset or predictor.config.data.dataset
    out = None if options.out is None else Path(options.out)
    check_output(Path(source) if source else None, out, options.overwrite)
    names = ("dataset", "root", "smiles_column", "long", "decimal", "targets")
    given = {name: options[name] for name in names if options[name] is not None}
    model, *others = (Path(local_path(model)) for model in options.model)
    dataset, splits = load_evaluation_data(predictor, model, given, options.split, others=others)
    split = options.split or ("all" if splits is None else "valid" if dataset.is_pcqm4m else "test")
    result = evaluate(predictor, dataset, split, splits, out, standard_error())
    print(describe_scores(f"{dataset.name} {split}:", result, digits=6))
    for line in (*describe_bounds(split, result), *describe_coverage(split, result)):
        print(line)
    notes, lost = evaluation_notes(dataset), dataset.unreadable()
    for note in notes:
        remark(note)
    if split != "train" and (learned := result.get("learned")):
        remark(
            f"at least {learned:,} of the molecules have the Morgan fingerprint of a training molecule (the model "
            "keeps at most 10,000): prediction errors on these are smaller than on new molecules"
        )
    document = {"dataset": dataset.name, "split": split, **result, "unusable": len(lost), "notes": notes}
    if (first := document.pop("first_unanswered")) is not None:
        row, reason = first
        document["first_unanswered"] = {"row": row + 1, "error": reason}
        remark(
            f"not evaluated for lack of a prediction: {pluralize(result['unanswered'], 'molecule')}; the first, row "
            f"{row + 1}: {reason}",
            kind="warning",
        )
    return document
