"""docs/start/chemprop.md: both commands run, and every option in it exists. chemprop is an environment of its own,
``GRAPHSLICE_CHEMPROP=ENV/bin/chemprop``, or on the PATH."""

import os
import re
import shlex
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

PAGE = (Path(__file__).parents[1] / "docs" / "start" / "chemprop.md").read_text(encoding="utf-8")
CHEMPROP = os.environ.get("GRAPHSLICE_CHEMPROP") or shutil.which("chemprop")
needs_chemprop = pytest.mark.skipif(not CHEMPROP, reason="chemprop is not installed")
#: Code spans of the first two columns of every table of options.
ROWS = [
    tuple(re.findall(r"`([^`]+)`", cell) for cell in row.strip("|").split("|")[:2])
    for row in PAGE.splitlines()
    if row.startswith(("| `", "| column", "| logs"))
]
OPTION = re.compile(r"(?<![\w-])-{1,2}[a-z][\w.-]*")


def options(spans: list[str]) -> set[str]:
    return {option for span in spans for option in OPTION.findall(span)}


def test_our_options_of_the_page_exist(capsys):
    from graphslice.cli.main import main

    known = set()
    for command in ("train", "predict", "fingerprint", "tune"):
        with pytest.raises(SystemExit):
            main([command, "--help-all"])
        known |= set(OPTION.findall(capsys.readouterr().out))
    named = set().union(*(options(ours) for _, ours in ROWS))
    assert len(named) > 25 and named - known == set()


@pytest.mark.slow
@needs_chemprop
def test_both_commands_of_the_page_predict_the_same_molecules(tmp_path, demo_rows, cli, monkeypatch):
    """They train on the same table with their defaults, and agree as two models of one property do."""
    monkeypatch.chdir(tmp_path)
    rows = demo_rows.drop(columns="split").rename(columns={"gap_ev": "logp"})
    rows.iloc[20:].to_csv("my.csv", index=False)
    rows.iloc[:20].drop(columns="logp").to_csv("molecules.csv", index=False)
    section = PAGE.partition("## The same training, both ways")[2].partition("\n## ")[0]
    for block in re.findall(r"^```sh\n(.*?)^```", section, re.DOTALL | re.MULTILINE):
        for line in block.replace("\\\n", " ").splitlines():
            words = shlex.split(line)
            if words[0] == "chemprop":
                subprocess.run([CHEMPROP, *words[1:]], check=True, capture_output=True)
            else:
                code, _, err = cli(*words[1:])
                assert code == 0, err
    theirs, ours = pd.read_csv("chemprop.csv"), pd.read_csv("predictions.csv")
    assert theirs["smiles"].tolist() == ours["smiles"].tolist() == rows["smiles"].iloc[:20].tolist()
    assert (ours["logp_low"] <= ours["logp_pred"]).all() and (ours["logp_pred"] <= ours["logp_high"]).all()
    assert np.corrcoef(theirs["logp"], ours["logp_pred"])[0, 1] > 0.5
