from __future__ import annotations

import pytest

from graphslice.errors import nearest


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
