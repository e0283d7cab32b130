"""Options of chemprop 2 and what stands for them here, for messages about unknown options."""

from __future__ import annotations

_TABLE = "--dataset, and in predict, fingerprint, inspect and featurize the file without an option"
#: Our option by chemprop's; None where there is no counterpart.
CHEMPROP_OPTIONS: dict[str, str | None] = {
    "-i": _TABLE,
    "--data-path": _TABLE,
    "-s": "--smiles-column",
    "--smiles-columns": "--smiles-column",
    "--target-columns": "--targets a,b",
    "--mol-target-columns": "--targets a,b",
    "--atom-target-columns": "--level atom",
    "--bond-target-columns": "--level bond",
    "-t": "--task",
    "--task-type": "--task",
    "--split-type": "--split",
    "--splits-column": "--split COLUMN",
    "--num-replicates": "--folds",
    "--ensemble-size": "--ensemble",
    "-b": "--batch-size",
    "--max-lr": "--lr",
    "--warmup-epochs": "--optimizer.warmup_steps",
    "--final-lr": "--optimizer.end_lr",
    "--init-lr": "no option, since the warm-up begins at 0; --lr is its end",
    "-l": "--trainer.loss",
    "--loss-function": "--trainer.loss",
    "--metrics": "no option, since all metrics are reported; --metric selects the epoch",
    "--tracking-metric": "--metric",
    "--patience": "--trainer.patience",
    "--grad-clip": "--trainer.gradient_clip",
    "--accelerator": "--trainer.accelerator at training, --device later",
    "--devices": "--trainer.devices",
    "--data-seed": "--seed",
    "--pytorch-seed": "--trainer.seed",
    "--config-path": "--config",
    "--dropout": "--model.dropout",
    "--depth": "--model.layers",
    "--message-hidden-dim": "--model.dim",
    "--aggregation": "--model.readout",
    "--molecule-featurizers": "--features",
    "--descriptors-columns": "--features COLUMN",
    "--class-balance": "--trainer.class_weights balanced",
    "--task-weights": "--trainer.target_weights a=2,b=0.5",
    "--checkpoint": "--init-from RUN",
    "--from-foundation": "--init-from RUN",
    "--freeze-encoder": "--init-from RUN --trainer.freeze blocks:N",
    "--output-dir": "--out",
    "--preds-path": "--out",
    "--save-smiles-splits": "no option, since split.csv of a run has the split of every row",
    "--test-path": "the file after the model",
    "--model-path": "the run as first argument",
    "--model-paths": "the run as first argument",
    "--uncertainty-method": "--interval 90, and --ensemble 5 at training for a standard deviation",
    "--calibration-method": "--interval 90",
    "--raytune-num-samples": "--trials",
    "--splits-file": None,
    "--no-header-row": None,
    "--descriptors-path": None,
    "--atom-features-path": None,
    "--keep-h": None,
    "--add-h": None,
    "--cal-path": None,
    "--reaction-columns": None,
    "-r": None,
}


def describe_chemprop_option(option: str) -> str | None:
    """Return what to write in place of an option of chemprop; None if it is no such option."""
    if option not in CHEMPROP_OPTIONS:
        return None
    ours = CHEMPROP_OPTIONS[option]
    return f"{option} of chemprop has no counterpart" if ours is None else f"{option} is chemprop's; here: {ours}"
