"""The packaged model ``adme``."""

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import graphslice as gs
from graphslice.runs.checkpoint import read_checkpoint
from graphslice.runs.checkpoint_file import read_values
from graphslice.system.machine import MODELS

ROOT = Path(__file__).parents[1]
ENDPOINTS = pd.read_csv(ROOT / "graphslice" / "weights" / "adme_endpoints.csv", keep_default_na=False)


@pytest.fixture(scope="module")
def adme():
    return gs.load("adme", "cpu")


def test_model_has_all_endpoints_with_units_and_percentiles(adme):
    assert adme.targets == ENDPOINTS["name"].tolist()
    for task, unit, kind in zip(adme.tasks, ENDPOINTS["unit"], ENDPOINTS["kind"], strict=True):
        assert (task.kind, task.unit) == (kind, "" if kind == "binary" else unit)
        assert task.description and len(task.reference) == 101
    assert [task.group for task in adme.tasks] == ENDPOINTS["group"].tolist()
    assert [task.better for task in adme.tasks] == [text.partition(" ")[0] for text in ENDPOINTS["direction"]]
    assert (ROOT / "graphslice" / "weights" / "adme.safetensors").stat().st_size < 12e6


def test_known_drugs_are_predicted_as_chemistry_has_them(adme):
    smiles = {
        "ibuprofen": "CC(C)Cc1ccc(cc1)C(C)C(=O)O",
        "astemizole": "COc1ccc(CCN2CCC(CC2)Nc2nc3ccccc3n2Cc2ccc(F)cc2)cc1",  # withdrawn for its block of hERG
        "sucrose": "OCC1OC(OC2(CO)OC(CO)C(O)C2O)C(O)C(O)C1O",
    }
    values = pd.DataFrame(adme.predict(list(smiles.values())), index=list(smiles), columns=adme.targets)
    assert values.loc["astemizole", "herg"] > 0.8 > values.loc["ibuprofen", "herg"]
    assert values.loc["sucrose", "solubility"] > values["solubility"].drop("sucrose").max()
    assert values.loc["sucrose", "logd"] < 0 < values.loc["astemizole", "logd"]
    assert values.loc["ibuprofen", "ppb"] > 90


def test_card_has_every_endpoint():
    lines = [json.loads(line) for line in (ROOT / "docs" / "benchmarks" / "adme.jsonl").open()]
    commands = (ROOT / "scripts" / "README.md").read_text().replace("\\\n", "")
    logs = ",".join(f"{task.name}=log" for task in read_checkpoint("adme").tasks if task.transform == "log")
    assert f'TARGETS="{",".join(ENDPOINTS["name"])}"\nLOGARITHMS="{logs}"\n' in commands
    assert {line["endpoint"] for line in lines if "stack" in line} == set(ENDPOINTS["name"])
    (packed,) = (line["packed"] for line in lines if "packed" in line)
    assert sum(line["molecules"] for line in lines if "stack" in line) == packed["labels"]


def test_intervals_in_cross_validation_cover_what_they_promise():
    lines = [json.loads(line) for line in (ROOT / "docs" / "benchmarks" / "adme.jsonl").open()]
    covered = [line["coverage_90"] * line["molecules"] for line in lines if "stack" in line]
    total = sum(line["molecules"] for line in lines if "stack" in line)
    assert 0.87 < sum(covered) / total < 0.93


def test_weights_are_stored_in_sixteen_bits():
    checkpoint = read_checkpoint("adme")
    assert checkpoint.stacking is not None and list(checkpoint.stacking.models) == ["kernel"]
    stored = read_values(MODELS["adme"], dict)["stacking"]["kernel"]
    assert all(arrays["descriptors"].dtype == np.float16 for arrays in stored)
    assert all((checkpoint.stacking.weights[1] > 0) == [len(arrays["sizes"]) > 0 for arrays in stored])
