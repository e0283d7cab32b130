"""The packaged models predict what was recorded; all of what is recorded is compared by ``tests/golden/golden.py``."""

import subprocess
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent / "golden"))
import golden


def test_packaged_models_predict_what_was_recorded():
    command = [sys.executable, golden.__file__, "--only", "packaged"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_kind_of_difference_is_reported():
    old = {"columns": ["y", "set", "error"], "rows": [[1.0, "a", None], [None, None, "bad"]], "metrics": {"mae": 2}}
    new = {"columns": ["y", "set", "error"], "rows": [[1.1, "b", "bad"], [None, None, "worse"]], "metrics": {"rmse": 2}}
    assert [*golden.differences(old, old, "part", (0, 0), texts=True)] == []
    lines = [*golden.differences(old, new, "part", (1e-3, 0))]
    assert lines == [
        "part / metrics / mae: is missing, was 2",
        "part / metrics / rmse: is new, 2",
        "part / row / 0 / y: was 1.0, is 1.1",
        "part / row / 0 / set: was 'a', is 'b'",
        "part / row / 0 / error: was None, is 'bad'",
    ]
    assert len([*golden.differences(old, new, "part", (0.2, 0), texts=True)]) == len(lines)
    assert [*golden.differences([1, 2], [1], "part", (1, 1))] == ["part: had 2 items, has 1"]
