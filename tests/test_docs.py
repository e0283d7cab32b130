"""The documents contain the measured results, working code and valid links."""

import json
import re
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
DOCUMENTS = ["README.md", "CONTRIBUTING.md", "docs/mixers.md", "docs/kernels.md", "docs/benchmarks.md"]
DOCUMENTS += ["docs/models.md", "docs/results.md", "docs/intervals.md", "docs/log.md", "docs/tutorial.md"]
DOCUMENTS += ["docs/adme.md", "docs/export.md", "docs/tuning.md", "docs/serve.md"]
DOCUMENTS += ["scripts/README.md", "data/README.md", "examples/README.md"]


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


@pytest.mark.parametrize("name", DOCUMENTS)
def test_links_point_to_existing_files(name):
    document = ROOT / name
    prose = re.sub(r"^```.*?^```", "", document.read_text(), flags=re.DOTALL | re.MULTILINE)  # SMILES look like links
    links = re.findall(r"\]\(([^)#:]+)\)", prose)
    assert all((document.parent / link).exists() for link in links), links
