"""The pages for programs: keys of JSON documents, the skill file, AGENTS.md."""

import re
import shlex
import sys
from pathlib import Path

import pytest
from json_documents import document_of

from graphslice.inference.predictions import output_columns
from graphslice.tasks import BINARY, Task

ROOT = Path(__file__).parents[1]


def test_keys_of_documents_are_those_of_the_schemas(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "scripts"))
    import document_keys

    text = document_keys.PAGE.read_text()
    assert document_keys.fill(text, lambda name: document_keys.tools()) == text
    sys.modules.pop("document_keys")


def code_blocks(page: str, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", (ROOT / page).read_text(), flags=re.DOTALL | re.MULTILINE)


@pytest.mark.slow
def test_commands_of_the_skill_run(monkeypatch, tmp_path, demo_rows, cli, tiny_flags):
    """In the order of the page; training with options of a tiny model, and without the lines that install."""
    table = demo_rows.rename(columns={"gap_ev": "logp"})
    for name in ("my", "new", "labelled"):
        table.to_csv(tmp_path / f"{name}.csv", index=False)
    monkeypatch.chdir(tmp_path)
    lines = [line for block in code_blocks("docs/skill/SKILL.md", "sh") for line in block.splitlines()]
    commands = [shlex.split(line)[1:] for line in lines if line.startswith("graphslice ")]
    assert len(commands) == 9 and {line.split()[0] for line in lines} == {"python3", ".venv/bin/pip", "graphslice"}
    for command in commands:
        code, out, err = cli(*command, *(tiny_flags if command[0] == "train" else ()))
        assert code == 0, err
        if "--json" in command:
            document_of(command[0], out)
    namespace: dict = {}
    for block in code_blocks("docs/skill/SKILL.md", "python"):
        exec(block, namespace)
    assert namespace["result"].errors == [None, "not a valid SMILES: syntax error at character 3"]


def test_skill_names_every_column_of_predictions():
    text = (ROOT / "docs" / "skill" / "SKILL.md").read_text()
    tasks = [Task("t"), Task("c", BINARY, ("no", "CLASS"))]
    columns = output_columns(tasks, std=True, interval=90.0, nearest=True)
    named = {re.sub(r"^c_", "t_", column) for column in columns} - {"t_prob_CLASS_std"}
    assert all(f"`{column}`" in text for column in named) and len(named) == 10


def test_paths_in_agents_exist():
    paths = re.findall(r"`((?:graphslice|scripts|tests|docs)/[\w./]*)`", (ROOT / "AGENTS.md").read_text())
    assert len(paths) > 10 and all((ROOT / path).exists() for path in paths)
