"""The documents contain the measured results, working code and valid links."""

import re
import shlex
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from graphslice.nn.mixers import MIXERS

ROOT = Path(__file__).parents[1]
PAGES = sorted((ROOT / "docs").rglob("*.md"))
DOCUMENTS = [*PAGES, *ROOT.glob("*.md"), *(ROOT / name / "README.md" for name in ("scripts", "data", "examples"))]
#: Documents that show a user what to type.
GUIDES = [ROOT / "README.md", *(page for page in PAGES if page.parent.name in ("howto", "start"))]
_OTHERS = ("explanation/sorting", "reference/mixers", "reference/api")
_OTHERS += ("models", "adme", "tuning", "export", "serve", "results")
GUIDES += [ROOT / "docs" / f"{name}.md" for name in _OTHERS]
GUIDES += [ROOT / "scripts/README.md", ROOT / "examples/README.md"]
# A block, and the comment above it that says why it is not run.
_BLOCK = re.compile(r"(?:<!-- not run: ([^\n]+) -->\n+)?^```(\w+)\n(.*?)^```", re.DOTALL | re.MULTILINE)


def name_of(document: Path) -> str:
    return document.relative_to(ROOT).as_posix()


def blocks(document: Path, language: str) -> list[tuple[str, str]]:
    """The blocks of a language: why each is not run, or an empty string, and its text."""
    found = _BLOCK.findall(document.read_text(encoding="utf-8"))
    return [(reason, text) for reason, kind, text in found if kind == language]


def commands(text: str) -> list[list[str]]:
    """The commands of a shell block, as lists of arguments, without comments."""
    lines = text.replace("\\\n", " ").splitlines()
    return [words for line in lines if (words := shlex.split(line, comments=True))]


@pytest.mark.parametrize("document", DOCUMENTS, ids=name_of)
def test_links_point_to_existing_files(document):
    prose = re.sub(r"^```.*?^```", "", document.read_text(), flags=re.DOTALL | re.MULTILINE)  # SMILES look like links
    links = re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", prose)
    assert [link for link in links if not (document.parent / link).exists()] == []


@pytest.mark.parametrize("document", DOCUMENTS, ids=name_of)
def test_lines_of_code_have_at_most_90_characters(document):
    """The width of a page of the website; outputs (text) are shown as they are."""
    blocks = [text for _, kind, text in _BLOCK.findall(document.read_text(encoding="utf-8")) if kind != "text"]
    assert [line for text in blocks for line in text.splitlines() if len(line) > 90] == []


@pytest.mark.parametrize("document", DOCUMENTS, ids=name_of)
def test_no_line_begins_with_a_filled_number(document):
    """Markdown ends a paragraph at a line that begins with a comment."""
    assert re.findall(r"^\s*<!-- [\w-]+ -->[^\n]+", document.read_text(encoding="utf-8"), re.MULTILINE) == []


def test_every_page_is_in_the_navigation():
    text = (ROOT / "mkdocs.yml").read_text()
    pages = {page.relative_to(ROOT / "docs").as_posix() for page in PAGES}
    assert pages <= set(re.findall(r"[\w/-]+\.md", text))


def test_first_screen_of_the_readme_shows_a_table_and_an_entry_to_ogb():
    text = "\n".join((ROOT / "README.md").read_text(encoding="utf-8").splitlines()[:40])
    words = [command[1:3] for command in commands("\n".join(re.findall(r"```sh\n(.*?)```", text, re.DOTALL)))]
    assert [["train", name] in words for name in ("my.csv", "pcqm4mv2")] == [True, True]
    assert {"predict", "submit"} <= {command for command, *_ in words}


# --- code ------------------------------------------------------------------------------------------


@pytest.fixture
def workplace(monkeypatch, tmp_path, demo_rows, run_directory, tiny_config) -> Iterator[Path]:
    """A folder with the files that the guides name, in which every training is tiny."""
    (tmp_path / "data").mkdir()
    demo_rows.to_csv(tmp_path / "data" / "demo.csv", index=False)
    table = demo_rows.assign(logp=demo_rows["gap_ev"], active=demo_rows["gap_ev"] > 3, w=1.0, logd=0.5, date="2026")
    table["logd"] += demo_rows["gap_ev"] ** 2
    table.rename(columns={"split": "set"}).to_csv(tmp_path / "my.csv", index=False)
    demo_rows[["smiles"]].head(3).to_csv(tmp_path / "molecules.csv", index=False)
    export = "Molecule ChEMBL ID;Smiles;Standard Type;Standard Relation;Standard Value;Standard Units\n"
    (tmp_path / "chembl.csv").write_text(export + "CHEMBL1;CCO;IC50;'>';10000.0;nM\nCHEMBL2;CCN;IC50;'=';20.0;nM\n")
    (tmp_path / "runs").mkdir()
    for name in ("my", "demo", "v2", "pretrained"):
        shutil.copytree(run_directory, tmp_path / "runs" / name)
    monkeypatch.chdir(tmp_path)

    def tiny(preset, config=None, *_):
        return tiny_config(model=config.get("model", {}) if isinstance(config, dict) else {})

    for module in ("fitting", "estimators"):
        monkeypatch.setattr(f"graphslice.api.{module}.base_config", tiny)
    monkeypatch.setattr("graphslice.config.RunConfig.preset", lambda name: tiny_config())
    mixers = dict(MIXERS)  # a block registers one
    yield tmp_path
    MIXERS.clear()
    MIXERS.update(mixers)


OTHER_PROGRAMS = ("pip", "torchrun", "sbatch", "chemprop", "export", "curl", "for", "done", "docker")


@pytest.mark.parametrize("document", [page for page in GUIDES if blocks(page, "sh")], ids=name_of)
def test_commands_are_accepted_by_the_parser(document, workplace):
    """Every option and value exists; commands of other programs name files that exist."""
    from graphslice.cli.main import COMMANDS, _parser, with_dataset

    for _, text in blocks(document, "sh"):
        for words in commands(text):
            while re.match(r"[A-Z_]+=", words[0]) or words[0] == "taskset":  # before the command, or alone
                words = words[3 if words[0] == "taskset" else 1 :] or ["export"]
            if words[0] == "graphslice" and not any("hf://" in word or word.startswith("$") for word in words):
                words = with_dataset(words[1:])
                parser, command, _ = _parser(words)
                assert command is not None, words
                parser.parse_args(words)
            elif words[0] == "graphslice":
                assert words[1] in COMMANDS
            elif words[0] == "python":
                assert (ROOT / words[1]).is_file(), words
            elif words[0] == "make":
                assert re.search(rf"^{words[1]}:", (ROOT / "Makefile").read_text(), re.MULTILINE), words
            else:
                assert words[0] in OTHER_PROGRAMS, words


def test_our_options_of_the_page_for_users_of_chemprop_exist(capsys):
    """Ours are in the second column of its tables."""
    from graphslice.cli.main import main

    known, option = set(), re.compile(r"(?<![\w-])-{1,2}[a-z][\w.-]*")
    for command in ("train", "predict", "fingerprint", "tune"):
        with pytest.raises(SystemExit):
            main([command, "--help-all"])
        known |= set(option.findall(capsys.readouterr().out))
    page = (ROOT / "docs/start/chemprop.md").read_text(encoding="utf-8")
    cells = [row.split("|")[2] for row in re.findall(r"^\| (?:`|column|logs).*", page, re.MULTILINE)]
    named = {name for cell in cells for span in re.findall(r"`([^`]+)`", cell) for name in option.findall(span)}
    assert len(named) > 25 and named - known == set()


@pytest.mark.slow
@pytest.mark.parametrize("document", [page for page in GUIDES if blocks(page, "python")], ids=name_of)
def test_python_blocks_run(document, workplace):
    namespace: dict = {}
    for reason, text in blocks(document, "python"):
        if not reason:
            exec(text, namespace)
    assert "__builtins__" in namespace or all(reason for reason, _ in blocks(document, "python"))


#: Options that decide the model or the number of models, which are tiny here; tests/training has them.
_LARGE = {"--folds", "--ensemble", "--preset", "--resume", "--init-from", "--features", "--level"}


@pytest.mark.slow
@pytest.mark.parametrize("document", [ROOT / "README.md", *sorted((ROOT / "docs/howto").glob("*.md"))], ids=name_of)
def test_commands_run(document, workplace, cli, tiny_flags):
    """Those that predict, explain or evaluate with a model that is there, and the first training on my.csv, a tiny one.

    The parser accepts the others (above), and tests of the package have their options.
    """
    trained = False
    for reason, text in blocks(document, "sh"):
        for words in commands(text):
            if words[0] != "graphslice" or reason:
                continue
            known = {"runs/my", "runs/demo", "gap", "small"} & set(words)
            if words[1] in ("predict", "fingerprint", "inspect", "evaluate", "report") and known:
                arguments = [word for word in words[1:] if word not in ("--target", "logp")]
            elif words[1] == "train" and not trained and {"my.csv", "--out"} <= set(words) and not _LARGE & set(words):
                trained = True
                arguments = [*words[1:], *tiny_flags, "--overwrite"]
            else:
                continue
            code, _, err = cli(*arguments)
            assert code == 0, (words, err)


# --- figures ---------------------------------------------------------------------------------------

# A decimal that is a result: not part of a version, an arXiv number or a name.
_FIGURE = re.compile(r"(?<![\w.:/-])\d+\.\d+(?!\w|\.\d)")


def figures(text: str) -> set[str]:
    """The decimals of prose and tables, without code and link targets."""
    prose = re.sub(
        r"^```.*?^```|`[^`\n]*`|\]\([^)]*\)|arXiv[:\s][\d.]+|CC BY [\d.]+|Python 3\.\d+(?: to 3\.\d+)?",
        "",
        text,
        flags=re.DOTALL | re.MULTILINE,
    )
    return set(_FIGURE.findall(prose))


#: Pages of results: a figure of their prose is in a table of the page, or of a page that the paragraph links to.
RESULT_PAGES = [ROOT / "docs" / f"{name}.md" for name in ("results", "models", "mixers")]
#: Figures of their prose that no table has: measured once, no record.
MEASURED_ONCE = {
    "results": {"0.059", "0.1287"},  # published: test error of ZINC-12k, validation error of PCQM4M
    "models": {"0.88", "1.00", "0.998"}  # `graphslice pretrain` of `small`: scores on the corpus's test molecules
    | {"0.294", "0.607"}  # 313 gaps of the demo set, fine-tuned from `small` and from scratch (docs/log.md)
    | {"0.148"},  # `gap` on the demo set's validation and test molecules
    "mixers": set(),
}
#: Tables with figures, on these pages, that no file of results holds. A new table needs a record.
TABLES_WITHOUT_RECORD = {"results": 4, "models": 3, "mixers": 3}


def without_filled_tables(text: str) -> str:
    """A page without the tables between marks, which are made from files of results; other tests check these."""
    return re.sub(r"<!-- ((?:table: )?[\w-]+) -->\n.*?<!-- /\1 -->", "", text, flags=re.DOTALL)


def table_figures(page: Path) -> set[str]:
    """The decimals of all tables of a page."""
    return figures("\n".join(line for line in page.read_text(encoding="utf-8").splitlines() if line.startswith("|")))


def measured() -> set[str]:
    """The decimals of all tables that scripts make from files of results, and of the page of benchmarks."""
    known = figures((ROOT / "docs/benchmarks.md").read_text())
    for name in ("results", "models", "adme", "mixers", "intervals", "labels", "tuning"):
        known |= table_figures(ROOT / f"docs/{name}.md")
    return known


def unmeasured(page: Path) -> set[str]:
    """The decimals of the prose of a page of results that neither its tables nor those of linked pages have."""
    prose = re.sub(r"^\|.*\n", "", without_filled_tables(page.read_text(encoding="utf-8")), flags=re.MULTILINE)
    found: set[str] = set()
    for paragraph in re.split(r"\n\n|\n(?=- )", prose):
        links = re.findall(r"\]\(([\w/.-]+\.md)", paragraph)
        found |= figures(paragraph).difference(*(table_figures(page.parent / link) for link in (page.name, *links)))
    return found


@pytest.mark.parametrize(
    "document",
    [page for page in GUIDES if page.parent.name in ("howto", "start") or page == ROOT / "README.md"]
    + sorted((ROOT / "docs/explanation").glob("*.md")),
    ids=name_of,
)
def test_figures_are_measured(document):
    assert figures(without_filled_tables(document.read_text(encoding="utf-8"))) - measured() == set()


@pytest.mark.parametrize("page", RESULT_PAGES, ids=name_of)
def test_figures_of_result_pages_are_measured(page):
    text, once = page.read_text(encoding="utf-8"), MEASURED_ONCE[page.stem]
    assert unmeasured(page) - once == set()
    assert once - figures(text) == set()  # no more exceptions than needed
    tables = re.findall(r"(?:^\|.*\n)+", without_filled_tables(text), re.MULTILINE)
    assert len([table for table in tables if figures(table)]) == TABLES_WITHOUT_RECORD[page.stem]


def test_unmeasured_figure_is_found():
    assert figures("an error of 0.4321 eV, `0.5`, [x](a-0.7.md), chemprop 2.3.1, arXiv 2306.06342, 0.56.") == {
        "0.4321",
        "0.56",
    }
    assert "0.4321" not in measured() and "0.355" in measured()


def test_quoted_messages_exist():
    """The troubleshooting page quotes messages of the source."""
    source = "\n".join(path.read_text() for path in (ROOT / "graphslice").rglob("*.py"))
    text = (ROOT / "docs/howto/troubleshooting.md").read_text()
    quoted = re.findall(r"^\| `([^`]+)`", text, re.MULTILINE) + re.findall(r"^- \*\*`([^`]+)`", text, re.MULTILINE)
    assert len(quoted) > 12 and [message for message in quoted if message not in source] == []


def test_version_is_the_same_everywhere():
    from graphslice import __version__

    assert f"\n## {__version__} - 20" in (ROOT / "CHANGELOG.md").read_text()
    assert f"\nversion: {__version__}\n" in (ROOT / "CITATION.cff").read_text()


@pytest.fixture
def website(monkeypatch):
    pytest.importorskip("mkdocs")
    monkeypatch.syspath_prepend(str(ROOT / "scripts"))
    import website

    return website


def test_generated_reference_is_complete(website):
    settings = [line for line in website.configuration().splitlines() if line.startswith("| `")]
    assert any("`optimizer.peak_lr`" in line for line in settings)
    assert [line for line in settings if line.endswith("|  |")] == []
    for name in ("model.safetensors", "config.yaml", "split.csv", "report.html"):
        assert f"`{name}`" in website.run_files()
    assert "- `empty SMILES`" in website.errors() and "| `nn/model.py` |" in website.modules()
    used = {name for page in PAGES for name in re.findall("<!-- generate: ([^ ]+) -->", page.read_text())}
    assert used == set(website.GENERATED)
