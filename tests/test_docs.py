"""The documents contain the measured results, working code and valid links."""

import json
import re
import shlex
import sys
from pathlib import Path

import pytest
import yaml
from json_documents import document_of

from graphslice.documents import DOCUMENTS, TOOLS
from graphslice.inference.predictions import output_columns
from graphslice.tasks import BINARY, Task

ROOT = Path(__file__).parents[1]
PAGES = ["README.md", "CONTRIBUTING.md", "docs/mixers.md", "docs/kernels.md", "docs/benchmarks.md"]
PAGES += ["docs/models.md", "docs/results.md", "docs/intervals.md", "docs/log.md", "docs/tutorial.md"]
PAGES += ["docs/adme.md", "docs/export.md", "docs/tuning.md", "docs/serve.md", "docs/programs.md"]
PAGES += ["docs/skill/SKILL.md", "AGENTS.md"]
PAGES += ["scripts/README.md", "data/README.md", "examples/README.md"]


def test_tables_match_the_results(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "scripts"))
    import mixer_tables

    texts = [document.read_text() for document in mixer_tables.DOCUMENTS]
    assert all(mixer_tables.fill_tables(text) == text for text in texts)
    names = re.findall(r"<!-- ([\w-]+) -->", "".join(texts))
    assert {path.stem for path in (ROOT / "docs" / "comparisons").glob("*.json")} == set(names) != set()
    sys.modules.pop("mixer_tables")


def test_table_is_filled(monkeypatch, tmp_path):
    monkeypatch.syspath_prepend(str(ROOT / "scripts"))
    import mixer_tables

    run = {"variant": "a", "seed": 0, "valid": 0.5, "test": 0.25, "parameters": 7, "molecules_per_second": 3.0}
    run |= {"steps": 5, "peak_memory_bytes": 2**30, "curve": [[1.0, 2, 0.5]]}
    (tmp_path / "comparisons").mkdir()
    (tmp_path / "comparisons" / "x.json").write_text(json.dumps({"runs": [run]}))
    monkeypatch.setattr(mixer_tables, "DOCS", tmp_path)
    text = mixer_tables.fill_tables("before\n<!-- x -->\nold\n<!-- /x -->\nafter")
    assert "| `a` | 0.2500 | 0.5000 | 7 | 5 |" in text and "old" not in text
    assert text.startswith("before\n") and text.endswith("\nafter")
    sys.modules.pop("mixer_tables")


def test_keys_of_documents_are_those_of_the_schemas(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "scripts"))
    import document_keys

    text = document_keys.PAGE.read_text()
    assert document_keys.fill(text) == text
    names = set(re.findall(r"<!-- (\w[\w -]*) -->", text))
    assert names == {*DOCUMENTS, *(f"tool {name}" for name in TOOLS), "document describe_model", "document explain"}
    sys.modules.pop("document_keys")


@pytest.mark.slow
def test_python_examples_of_the_readme_run(monkeypatch, tmp_path, demo_rows, tiny_config):
    section = (ROOT / "README.md").read_text().split("## In Python\n")[1].split("\n## ")[0]
    (tmp_path / "data").mkdir()
    demo_rows.to_csv(tmp_path / "data" / "demo.csv", index=False)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("graphslice.api.fitting.base_config", lambda *_: tiny_config())
    monkeypatch.setattr("graphslice.api.estimators.base_config", lambda *_: tiny_config())
    monkeypatch.setattr("graphslice.config.RunConfig.preset", lambda name: tiny_config())
    namespace: dict = {}
    for block in re.findall(r"```python\n(.*?)```", section, flags=re.DOTALL):
        exec(block, namespace)
    assert namespace["model"].targets == ["gap_ev"] and namespace["result"].model.targets == ["y"]


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
        document_of(command[0], out)
    namespace: dict = {}
    for block in code_blocks("docs/skill/SKILL.md", "python"):
        exec(block, namespace)
    assert namespace["result"].errors == [None, "not a valid SMILES"]


def test_skill_names_every_column_of_predictions():
    text = (ROOT / "docs" / "skill" / "SKILL.md").read_text()
    tasks = [Task("t"), Task("c", BINARY, ("no", "CLASS"))]
    columns = output_columns(tasks, std=True, interval=90.0, nearest=True)
    named = {re.sub(r"^c_", "t_", column) for column in columns} - {"t_prob_CLASS_std"}
    assert all(f"`{column}`" in text for column in named) and len(named) == 10


def test_skill_has_a_name_and_a_description():
    _, front, _ = (ROOT / "docs" / "skill" / "SKILL.md").read_text().split("---\n", 2)
    values = yaml.safe_load(front)
    assert values["name"] == "graphslice" and 50 < len(values["description"]) <= 1024


def test_paths_in_agents_exist():
    paths = re.findall(r"`((?:graphslice|scripts|tests|docs)/[\w./]*)`", (ROOT / "AGENTS.md").read_text())
    assert len(paths) > 10 and all((ROOT / path).exists() for path in paths)


@pytest.mark.parametrize("name", PAGES)
def test_links_point_to_existing_files(name):
    document = ROOT / name
    prose = re.sub(r"^```.*?^```", "", document.read_text(), flags=re.DOTALL | re.MULTILINE)  # SMILES look like links
    links = re.findall(r"\]\(([^)#:]+)\)", prose)
    assert all((document.parent / link).exists() for link in links), links
