from types import SimpleNamespace

import pandas as pd
from rdkit import Chem

from graphslice.cli.inspect import _print_summary
from graphslice.explain import inspect as inspection


def test_smiles_and_a_file(cli, run_directory, tmp_path):
    (tmp_path / "mols.csv").write_text("name,smiles\na,CC\nb,oops\n")
    code, out, err = cli("inspect", run_directory, "CCO", tmp_path / "mols.csv", "-o", tmp_path / "i")
    assert code == 0 and out.startswith("CCO\n  gap_ev: ") and "\nCC\n  gap_ev: " in out
    assert err.startswith("left out 'oops': not a")
    assert "contribution to gap_ev, in its unit: red raises gap_ev, blue lowers gap_ev\n" in out
    assert f"6 files in {tmp_path / 'i'}" in out and len(list((tmp_path / "i").iterdir())) == 6
    table = pd.read_csv(tmp_path / "i" / "atoms.csv", dtype=str)
    line = out.splitlines()[2].split()
    assert line[::2] == ["C", "C", "O"]  # what is printed is what the table has
    assert [value.lstrip("+") for value in line[1::2]] == table["contribution"][:3].tolist()
    assert f"gap_ev: {table['prediction'][0]} = {table['baseline'][0]} (baseline) " in out


def test_molecules_that_are_explained_for_different_classes(capsys):
    def one(name: str) -> SimpleNamespace:
        explanation = SimpleNamespace(
            quantity=name, legend=f"logit of {name}", up=f"towards {name}", down="away", notes=["a note"], warning=None
        )
        return SimpleNamespace(explanations=[explanation])

    for names, message in (
        (("low", "low"), "logit of low: red towards low, blue away; a note\n"),
        (("low", "mid"), "the class named with each molecule: red towards it, blue away from it; a note\n"),
    ):
        _print_summary(SimpleNamespace(left_out=[], found=[one(name) for name in names], target=0), ["grade"])
        assert capsys.readouterr().out.endswith(message)


def test_unusable_input_is_rejected(cli, run_directory, tmp_path):
    code, out, err = cli("inspect", run_directory, "C(", "-o", tmp_path / "j")
    assert (code, out) == (2, "") and "cannot inspect 'C('" in err and not (tmp_path / "j").exists()


def test_many_molecules(cli, run_directory, tmp_path, monkeypatch):
    monkeypatch.setattr(inspection, "MAX_DRAWN", 2)
    smiles = ["oops"] * 7 + ["C" * n for n in range(1, 5)]
    pd.DataFrame({"smiles": smiles}).to_csv(tmp_path / "m.csv", index=False)
    code, out, err = cli("inspect", run_directory, tmp_path / "m.csv", "-o", tmp_path / "i")
    assert code == 0 and "only the first 2 molecules are drawn" in out
    assert err.count("left out 'oops'") == 5 and "left out 2 more" in err


def test_a_large_molecule_says_its_error(cli, run_directory, tmp_path, demo_smiles):
    smiles = max(demo_smiles[:60], key=lambda text: Chem.MolFromSmiles(text).GetNumAtoms())
    code, out, _ = cli("inspect", run_directory, smiles, "--orders", 8, "-o", tmp_path)
    assert code == 0 and "; standard errors up to " in out


def test_inspection_is_replaced_only_on_request(cli, run_directory, tmp_path):
    arguments = ["inspect", run_directory, "CCO", "--orders", 4, "-o", tmp_path / "i"]
    assert cli(*arguments)[0] == 0
    before = (tmp_path / "i" / "atoms.csv").stat().st_mtime_ns
    code, _, err = cli(*arguments)
    assert code == 2 and "exists already" in err
    assert (tmp_path / "i" / "atoms.csv").stat().st_mtime_ns == before
    assert cli(*arguments, "--overwrite")[0] == 0
