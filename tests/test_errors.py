from __future__ import annotations

import pytest

from graphslice.errors import nearest, shell_command


@pytest.mark.parametrize(
    ("name", "known", "expected"),
    [
        ("morgn", ["rdkit2d", "morgan"], "morgan"),
        ("dmeo", ["demo"], "demo"),
        ("yy", ["y", "z"], "y"),
        ("GAP", ["gap", "Gap_ev"], "gap"),
        ("Solub", ["solubility [mg/L]", "weight"], "solubility [mg/L]"),
    ],
)
def test_similar_name_is_suggested(name, known, expected):
    assert nearest(name, known) == f" (did you mean {expected!r}?)"


@pytest.mark.parametrize(
    ("name", "known"),
    [
        ("activity", ["toxicity", "smiles"]),
        ("mean", ["mae"]),
        ("csp", ["clip"]),
        ("label", ["table"]),
        ("value", ["valid"]),
        ("s", ["smiles", "split"]),
        ("", ["y"]),
        (3, ["3"]),
    ],
)
def test_distant_name_is_not_suggested(name, known):
    assert nearest(name, known) == ""


@pytest.mark.parametrize(
    ("system", "expected"),
    [("linux", r"graphslice train --resume 'runs\a b'"), ("win32", r'graphslice train --resume "runs\a b"')],
)
def test_commands_are_quoted_for_the_shell_of_the_system(system, expected, monkeypatch):
    monkeypatch.setattr("sys.platform", system)
    assert shell_command(["graphslice", "train", "--resume", r"runs\a b"]) == expected
