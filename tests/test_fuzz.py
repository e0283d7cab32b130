"""A few inputs of ``scripts/fuzz.py``; run as a program, it tries many more, with bounds checks in the kernels."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "scripts"))
import fuzz

INPUTS = {"rdkit_pickle": 400, "store": 150, "paths": 150, "trees": 100}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", fuzz.TARGETS)
def test_malformed_inputs_give_a_result_or_an_input_error(name, tmp_path):
    outcomes, findings = fuzz.fuzz(name, range(INPUTS[name]), 1, tmp_path)
    assert not findings, findings[0][1]
    assert outcomes["completed"] and outcomes["rejected"] and sum(outcomes.values()) == INPUTS[name]


def test_inputs_are_reproducible_by_their_numbers(tmp_path, monkeypatch):
    """An unexpected exception is reported as a finding, with the number of the input."""
    drawn = []

    def target(folder):
        return lambda draw: drawn.append(draw.random()) or [][0 if len(drawn) == 2 else slice(0)]

    monkeypatch.setattr("fuzzing.trees.target", target)
    outcomes, findings = fuzz.fuzz("trees", range(3, 6), 1, tmp_path)
    assert outcomes == {"completed": 2, "failed": 1} and findings[0][0] == 4 and "IndexError" in findings[0][1]
    fuzz.fuzz("trees", range(5, 6), 1, tmp_path)
    assert drawn[2] == drawn[3] and len(set(drawn)) == 3
