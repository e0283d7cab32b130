"""``scripts/sample_molecules.py``, which samples molecules for a pretraining corpus."""

import sys
from pathlib import Path

import pandas as pd

sys.path.insert(0, str(Path(__file__).parents[1] / "scripts"))
import sample_molecules


def test_molecules_with_rare_environments_are_kept(tmp_path, monkeypatch, capsys):
    alkanes = ["C" * n for n in range(9, 40)]  # all of the same environments
    pd.DataFrame({"SMILES": [*alkanes, "C1CC1Br", "oops", None]}).to_csv(tmp_path / "many.csv", index=False)
    pd.DataFrame({"smiles": ["CCCCCCCCC", "CCO"]}).to_csv(tmp_path / "there.csv", index=False)
    out = tmp_path / "out.csv"
    words = ["sample_molecules", tmp_path / "many.csv", "-o", out, "--existing", tmp_path / "there.csv", "--times", 3]
    monkeypatch.setattr(sys, "argv", [str(word) for word in words])
    sample_molecules.main()
    kept = pd.read_csv(out)["smiles"].tolist()
    assert "C1CC1Br" in kept and "oops" not in kept
    assert len([smiles for smiles in kept if smiles in alkanes]) == 2  # with nonane, which is there already, three
    printed = capsys.readouterr().out
    assert printed.startswith("there already: 2 molecules, 2 elements (C 100.00%, O 50.00%)")
    assert "kept of 33: 3 molecules, 2 elements (C 100.00%, Br 33.33%)" in printed
