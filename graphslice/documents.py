"""Keys of the JSON documents that programs read: of commands with ``--json``, and of the tools of ``graphslice mcp``.

A document is described by a dictionary of its keys. A value is a text ``"type: meaning"``, a dictionary (an object,
whose own meaning is its entry ``""``) or a list of one dictionary (a list of such objects). A key ``name?`` may be
absent, ``<name>`` stands for any other key, and a type ``number?`` may be null. ``docs/programs.md`` is written from
these dictionaries, and tests hold the output of every command to :func:`schema`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

_TYPES: dict[str, dict[str, Any]] = {
    **{name: {"type": name} for name in ("string", "integer", "number", "boolean", "object")},
    "strings": {"type": "array", "items": {"type": "string"}},
    "numbers": {"type": "array", "items": {"type": ["number", "null"]}},
    "any": {},
}

_TARGET_SCORES = {
    "kind": "string: task type: regression, binary or multiclass",
    "molecules?": "integer: number of labels; at atom or bond level `atoms` or `bonds`",
    "counts?": "object: number of labels of each class",
    "<metric>": "number?: each metric, and `coverage_90`, `width_90` or `classes_90` of 90% intervals or sets",
}
_SCORES = {
    "molecules": "integer: number of labelled molecules that were predicted",
    "targets": {"": "scores of each target", "<target>": _TARGET_SCORES},
    "<metric>": "number?: each metric, as its mean over the targets that have it",
}
_RUN = {
    "folder": "string: run directory, which every command takes as a model",
    "report": "string?: path of report.html; null if none was written",
    "metrics": {
        "": "contents of metrics.json",
        "metric": "string: metric that selected the best epoch",
        "valid?": {"": "scores of the held-out molecules", **_SCORES},
        "test?": {"": "scores of the test set", **_SCORES},
        "baselines?": "object: the metric of the network, the base models and the stack, by split",
        "members?": "object: the metric of each member of an ensemble or fold, by split",
        "init_from?": "string: the model that was fine-tuned",
    },
    "training": {
        "": "contents of training.json",
        "parameters": "integer: number of parameters of one network",
        "steps": "integer: optimizer steps, of an ensemble or folds those of all networks",
        "seconds": "number: training time of the networks, without held-out folds and base models",
        "molecules_per_second": "number: rate of training",
        "peak_memory_bytes": "integer?: memory of the first device; null if unknown",
        "device": "string: name of the device",
        "devices": "integer: number of devices",
        "precision": "string: precision of the matrix products",
        "compiled": "boolean?: whether the last steps were compiled",
        "members?": "integer: number of models of an ensemble or cross-validation",
        "auxiliary_mae?": "object: validation error of each target of atoms and bonds in pretraining",
    },
}
_TABLE = {
    "out?": "string: the file that was written, in place of `rows`",
    "total": "integer: number of rows",
    "failed": "integer: number of rows with an error",
    "notes": "strings: remarks, such as cells of feature columns that are no numbers",
}
_EXPLANATIONS = {
    "molecules": [
        {
            "": "the explained molecules",
            "number": "integer: position in the input, from 1",
            "smiles": "string: SMILES of the molecule",
            "elements": "strings: element of each atom, in the order of the SMILES",
            "targets": {
                "": "explanation of each target",
                "<target>": {
                    "explained": "string: the output: a target, its logarithm or normal score, or the logit of a class",
                    "contributions": "numbers: Shapley value of each atom; with `baseline` they sum to `prediction`",
                    "standard_errors": "numbers: standard error of each value; 0 if it is exact",
                    "prediction": "number?: prediction of the network, on the scale of the explained output",
                    "baseline": "number?: prediction for blank atoms",
                    "network_weight": "number?: weight of the network in the prediction; base models are not explained",
                },
            },
        }
    ],
    "left_out": [
        {
            "": "the molecules that could not be explained",
            "number": "integer: position in the input, from 1",
            "smiles": "string: the input",
            "error": "string: the reason",
        }
    ],
    "more": "boolean: whether there are further molecules, which were not explained",
}

#: Keys of the document of each command with ``--json``.
DOCUMENTS: dict[str, dict[str, Any]] = {
    "train": _RUN,
    "tune": {"search": "string: folder of the search, with best.yaml and trials.csv", **_RUN},
    "pretrain": _RUN,
    "compare": {
        "folder": "string: folder of the comparison, whose comparison.json has the keys below",
        "dataset": "string: name of the dataset",
        "split": "string?: split of the dataset",
        "budget": "string: budget of each run",
        "jobs": "integer: number of parallel runs",
        "version": "string: version of GraphSlice",
        "machine": "object: the hardware",
        "config": "object: the common configuration",
        "runs": [
            {
                "": "the finished and the failed runs",
                "variant": "string: mixer and settings",
                "seed": "integer: seed of the run",
                "error?": "string: why the run failed; it has no further keys",
                "<name>": "any: `metric`, its values `valid` and `test`, the keys of `training` as in train, and "
                "`curve`: seconds, steps and the metric at every validation",
            }
        ],
        "differences": [
            {
                "": "difference of the test metric (validation metric without test labels) of each variant from the "
                "best one, over paired seeds",
                "variant": "string: name of the variant",
                "beside": "string: the variant that it is compared with",  # codespell:ignore beside
                "seeds": "integer: number of seeds",
                "mean": "number?: mean difference",
                "low": "number?: lower end of its confidence interval",
                "high": "number?: upper end",
                "verdict": "string: better, worse or no significant difference",
            }
        ],
    },
    "predict": {
        "rows?": [
            {
                "": "the rows of the input, in its order; absent with --out and --summary",
                "error": "string?: why the row has no prediction; null if it has one",
                "<column>": "any: the columns of the input (SMILES on the command line: `smiles`), and those named in "
                "`columns`",
            }
        ],
        "summaries?": [
            {
                "": "the molecules, with --summary in place of `rows`",
                "smiles": "string: the input",
                "error": "string?: why there is no prediction; null if there is one",
                "in_domain?": "boolean: whether the molecule is like the training set; only with a calibration",
                "similarity?": "number: Tanimoto similarity to the nearest training molecule",
                "targets": [
                    {
                        "": "the targets, none with an error",
                        "target": "string: name of the target",
                        "prediction": "number: a number in `unit`, or the probability of the class `class_name`",
                        "class_name": "string: class of the probability; empty for numbers",
                        "unit": "string: unit of the prediction; empty if it is not known",
                        "interval": "numbers?: bounds of the prediction interval; null without one",
                        "classes": "strings?: classes in the prediction set; null without one",
                        "percentile": "number?: percentage of the reference molecules with a smaller prediction",
                        "description": "string: what was measured",
                    }
                ],
            }
        ],
        "columns": "strings: the columns that predictions add to the input; empty with --summary",
        **_TABLE,
    },
    "fingerprint": {
        "rows?": [
            {
                "": "the rows of the input, in its order; absent with --out",
                "error": "string?: why the row has no embedding; null if it has one",
                "<column>": "any: the columns of the input, and `embedding_0`, `embedding_1`, ...",
            }
        ],
        **_TABLE,
    },
    "report": {"report": "string: path of the page"},
    "evaluate": {
        "dataset": "string: name of the dataset",
        "split": "string: train, valid, test or all",
        **_SCORES,
        "atoms?": "integer: number of labelled atoms, of an atom-level model",
        "bonds?": "integer: number of labelled bonds, of a bond-level model",
        "learned?": "integer: molecules with the fingerprint of a training molecule; only with a calibration",
        "unanswered": "integer: number of labelled molecules without a prediction, which are not evaluated",
        "first_unanswered?": {
            "": "the first of them",
            "row": "integer: its row, from 1",
            "error": "string: the reason",
        },
        "unusable": "integer: number of rows of the dataset that cannot be used",
        "notes": "strings: remarks on the dataset",
    },
    "submit": {"files": "strings: paths of the files that were written"},
    "featurize": {
        "out": "string: the file that was written",
        "rows": "integer: number of rows",
        "failed": "integer: number of rows that are no molecules",
        "bytes": "integer: size of the file",
    },
    "inspect": {
        "folder": "string: folder of the tables and pictures",
        "files": "strings: paths of the files that were written",
        **_EXPLANATIONS,
    },
    "doctor": {
        "machine": "object: processor, cores, GPUs, compilers and versions of packages",
        "device": "string: the device that was tested",
        "operators": [
            {
                "": "the checks of the operators",
                "operator": "string: name of the operator",
                "dtype": "string: float32, bfloat16 or float16",
                "backend": "string: the backend that was chosen",
                "problem": "string?: what failed; null if nothing did",
                "error": "number?: largest difference from plain torch",
                "speed": "number?: speed-up over plain torch",
            }
        ],
        "faults": "object: what is wrong in a training step of a small model, by operator",
        "problems": "strings: what failed; the exit code is 1 if there are any",
    },
    "import-checkpoint": {
        "folder": "string: run directory that was written",
        "mixer": "string: mixer of the model",
        "layers": "integer: number of layers",
        "dim": "integer: number of channels",
        "heads": "integer: number of heads",
        "notes": "strings: what was converted, and why",
    },
    "export": {
        "files": "strings: paths of the files that were written",
        "notes": "strings: what the file lacks, and how far its predictions differ",
    },
    "push": {"model": "string: hf://user/name@commit"},
}


@dataclass(frozen=True)
class Tool:
    """A tool of ``graphslice mcp``.

    Attributes:
        meaning: what it does.
        inputs: its arguments, in the notation of this module.
        document: keys of its result.
        writes: whether it writes files.
    """

    meaning: str
    inputs: dict[str, str]
    document: dict[str, Any]
    writes: bool = False


_MODEL = {"model?": "string: name of a model, or run directory in the folder (default: the first model of the server)"}
_INTERVAL = {"interval?": "number: coverage in percent, such as 90: adds prediction intervals and in_domain"}
#: The tools of ``graphslice mcp``.
TOOLS = {
    "predict": Tool(
        "Predict the properties of molecules. A row without a prediction says why in `error`.",
        {
            "smiles": "strings: 1 to 1,000 SMILES",
            **_MODEL,
            **_INTERVAL,
            "nearest?": "boolean: add the most similar training molecule",
        },
        DOCUMENTS["predict"],
    ),
    "predict_file": Tool(
        "Predict every row of a table (CSV, TSV, Excel, Parquet, SDF, .smi) and write it with columns of predictions.",
        {
            "table": "string: path of the table",
            "out": "string: path of a new CSV, TSV, Excel or Parquet file",
            **_MODEL,
            **_INTERVAL,
        },
        DOCUMENTS["predict"],
        writes=True,
    ),
    "describe_model": Tool(
        "Describe a model: its targets, classes, architecture and scores.",
        _MODEL,
        {
            "level": "string: molecule, atom or bond",
            "targets": {"": "task type of each target", "<target>": "string: regression, binary or multiclass"},
            "classes": {"": "classes of each classification target", "<target>": "strings: names of the classes"},
            "units": {"": "units of the targets, where they are known", "<target>": "string: unit"},
            "descriptions": {"": "descriptions of targets that have one", "<target>": "string: what was measured"},
            "models": "integer: number of members of an ensemble; 1 for a single model",
            "mixer": "string: mixer of the network",
            "layers": "integer: number of layers",
            "dim": "integer: number of channels",
            "parameters": "integer: number of parameters of each network",
            "trees": "boolean: whether base models are stacked with the network",
            "features": "strings: descriptors, and columns of a table, that the model reads in addition to the graph",
            "device": "string: device of the predictions",
            "folder": "string?: run directory; null for a packaged model",
            "source": "string?: hf://user/name@commit of a model of the Hub",
            "calibrated": "boolean: whether it gives prediction intervals",
            "metrics": "object: contents of metrics.json, as in train; empty without the file",
        },
    ),
    "explain": Tool(
        "Explain predictions: the contribution of each atom (Shapley values), for molecule-level targets.",
        {
            "smiles": "strings: 1 to 20 SMILES",
            **_MODEL,
        },
        _EXPLANATIONS,
    ),
    "train": Tool(
        "Train a model on a table with a SMILES column and target columns, into a run directory. It takes minutes.",
        {
            "dataset": "string: path of the table",
            "out": "string: path of the new run directory",
            "targets?": "string: target columns, separated by commas (default: the only possible column)",
            "smiles_column?": "string: column of the SMILES (default: detected by its name)",
            "split?": "string: random, scaffold, cluster, or a column of train, valid, test",
            "minutes?": "number: upper limit of the time of each network",
            "epochs?": "integer: passes over the training set",
            "ensemble?": "integer: number of ensemble members",
        },
        _RUN,
        writes=True,
    ),
    "evaluate": Tool(
        "Evaluate a model on a table with labels.",
        {
            "dataset": "string: path of the table",
            **_MODEL,
            "targets?": "string: label columns, separated by commas",
            "split?": "string: train, valid, test or all",
        },
        DOCUMENTS["evaluate"],
    ),
}


def schema(keys: dict[str, Any]) -> dict[str, Any]:
    """Return the JSON Schema of an object, given its keys in the notation of this module."""
    named = {name: value for name, value in keys.items() if name and not name.startswith("<")}
    others = [value for name, value in keys.items() if name.startswith("<")]
    return {
        "type": "object",
        **({"description": keys[""]} if "" in keys else {}),
        "properties": {name.removesuffix("?"): _value_schema(value) for name, value in named.items()},
        "required": [name for name in named if not name.endswith("?")],
        "additionalProperties": _value_schema(others[0]) if others else False,
    }


def _value_schema(value: Any) -> dict[str, Any]:
    if isinstance(value, dict):
        return schema(value)
    if isinstance(value, list):
        return {"type": "array", "items": schema(value[0])}
    kind, _, meaning = value.partition(": ")
    one = _TYPES[kind.removesuffix("?")]
    return {**one, **({"type": [one["type"], "null"]} if kind.endswith("?") else {}), "description": meaning}
