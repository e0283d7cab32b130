import pandas as pd


def test_smiles_and_a_file(cli, run_directory, tmp_path):
    (tmp_path / "mols.csv").write_text("name,smiles\na,CC\nb,oops\n")
    code, out, err = cli("inspect", run_directory, "CCO", tmp_path / "mols.csv", "-o", tmp_path / "i")
    assert code == 0 and out.startswith("CCO\n  gap_ev: ") and "\nCC\n  gap_ev: " in out
    assert err.startswith("warning: 1 molecule left out; the first is 'oops': not a")
    assert "contribution to gap_ev, in its unit: red raises gap_ev, blue lowers gap_ev\n" in out
    assert f"6 files in {tmp_path / 'i'}" in out and len(list((tmp_path / "i").iterdir())) == 6
    table = pd.read_csv(tmp_path / "i" / "atoms.csv", dtype=str)
    line = out.splitlines()[2].split()
    assert line[::2] == ["C", "C", "O"]  # what is printed is what the table has
    assert [value.lstrip("+") for value in line[1::2]] == table["contribution"][:3].tolist()
    assert f"gap_ev: {table['prediction'][0]} = {table['baseline'][0]} (baseline) " in out


def test_inspection_is_replaced_only_on_request(cli, run_directory, tmp_path):
    arguments = ["inspect", run_directory, "CCO", "--orders", 4, "-o", tmp_path / "i"]
    assert cli(*arguments)[0] == 0
    before = (tmp_path / "i" / "atoms.csv").stat().st_mtime_ns
    code, _, err = cli(*arguments)
    assert code == 2 and "exists already" in err
    assert (tmp_path / "i" / "atoms.csv").stat().st_mtime_ns == before
    assert cli(*arguments, "--overwrite")[0] == 0
