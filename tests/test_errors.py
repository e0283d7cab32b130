import errno
from pathlib import Path

import pytest

from graphslice.errors import (
    InputError,
    check_choice,
    check_file,
    check_known,
    check_new,
    check_number,
    check_positive,
    check_suffix,
    file_errors,
    nearest,
    optional_packages,
    shell_command,
    shown,
)


def test_each_kind_of_mistake_has_one_wording(tmp_path):
    cases = [
        (check_number, ("--workers", 0, 1), "--workers must be at least 1, not 0"),
        (check_number, ("model.dropout", float("nan"), 0, 1), "model.dropout must be from 0 to 1, not nan"),
        (check_positive, ("trainer.lr", 0.0), "trainer.lr must be more than 0, not 0.0"),
        (
            check_choice,
            ("level", "atmo", ["atom", "bond"]),
            "level must be atom or bond, not 'atmo' (did you mean 'atom'?)",
        ),
        (
            check_known,
            ("metric", "mea", ["mae", "auroc"]),
            "unknown metric 'mea' (did you mean 'mae'?): choose from 'mae', 'auroc'",
        ),
        (
            check_known,
            ("column", "gip", ["gap"], "a.csv"),
            "a.csv has no column 'gip' (did you mean 'gap'?): choose from 'gap'",
        ),
        (check_file, (tmp_path / "a.csv",), f"no file at {tmp_path / 'a.csv'}"),
        (check_file, (tmp_path,), f"{tmp_path} is a folder, not a file"),
        (check_new, (tmp_path,), f"{tmp_path} exists already: choose another name, or set overwrite"),
        (check_suffix, (Path("a.txt"), [".csv", ".csv.gz"]), "cannot write a.txt: its name must end in .csv, .csv.gz"),
    ]
    for check, arguments, message in cases:
        with pytest.raises(InputError) as error:
            check(*arguments)
        assert str(error.value) == message
    assert shown([16**6000]) == "<list>"  # Python does not write so many digits


def test_errors_of_the_system_and_of_libraries_name_the_file():
    for raised, reason in [
        (OSError(errno.ENOSPC, "long text"), "No space left on device"),
        (KeyError("two\nlines"), "'two\\nlines'"),
        (InputError("as it is"), None),
    ]:
        with pytest.raises(InputError) as error, file_errors("read", "a.csv", KeyError):
            raise raised
        assert str(error.value) == (f"cannot read a.csv: {reason}" if reason else "as it is")


def test_missing_package_is_named_with_its_extra():
    message = r"graphslice serve needs the package no_such_package: .*graphslice\[serve\]"
    with pytest.raises(InputError, match=message), optional_packages("graphslice serve", "serve"):
        import no_such_package  # noqa: F401


@pytest.mark.parametrize(
    ("name", "known", "expected"),
    [
        ("morgn", ["rdkit2d", "morgan"], "morgan"),
        ("dmeo", ["demo"], "demo"),
        ("yy", ["y", "z"], "y"),
        ("GAP", ["gap", "Gap_ev"], "gap"),
        ("ADME", ["Read me", "ADME results"], "ADME results"),
        ("Papp", ["SMILES", "Caco-2 Papp (1e-6 cm/s)", "logD"], "Caco-2 Papp (1e-6 cm/s)"),
    ],
)
def test_similar_name_is_suggested(name, known, expected):
    assert nearest(name, known) == f" (did you mean {expected!r}?)"


@pytest.mark.parametrize(
    ("name", "known"),
    [
        ("activity", ["toxicity", "smiles"]),
        ("mean", ["mae"]),
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
