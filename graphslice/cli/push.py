"""``graphslice push``."""

from __future__ import annotations

import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

from jsonargparse import ArgumentParser, Namespace

from graphslice.cli.options import add_model

MODULE = "graphslice.api.model"
EXAMPLES = "runs/my user/my", "runs/my user/my --public --license mit"


def add_arguments(parser: ArgumentParser, arguments: list[str]) -> None:
    add_model(parser)
    parser.add_argument("repository", metavar="NAME", help="user/name on the Hub; created if it does not exist")
    parser.add_argument("--public", action="store_true", help="make a new repository public (default: private)")
    parser.add_argument("--license", default="unknown", help="identifier of the Hub, such as mit (default: unknown)")


def run(options: Namespace, arguments: list[str]) -> dict[str, Any]:
    """Upload a model and its card, and print the name of the commit; raise InputError if the Hub rejects it."""
    from graphslice.api.model import Model, load
    from graphslice.report.model_card import model_card
    from graphslice.runs.run_files import START_FILE, write_metrics
    from graphslice.system.hub import upload

    repository = options.repository.removeprefix("hf://")
    model = load(options.model, "cpu")
    shared = [
        replace(
            one,
            config=one.config.without_paths(),
            calibration=one.calibration and one.calibration.without_smiles(),
        )
        for one in model.checkpoints
    ]
    calibration = model.calibration and model.calibration.without_smiles()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name) / "model"
        Model(shared, "cpu", calibration=calibration).save(folder)
        for file in folder.rglob(START_FILE):  # it names the machine
            file.unlink()
        metrics = model.metrics
        if "init_from" in metrics:  # a path of this machine
            metrics["init_from"] = shared[0].config.origin
        if metrics:
            write_metrics(folder, metrics)
        card = model_card(model, metrics, repository, options.license)
        (folder / "README.md").write_text(card, encoding="utf-8")
        source = upload(folder, repository, public=options.public)
    print(source)
    return {"model": source}
