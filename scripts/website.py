"""Hook of MkDocs: the documents of the repository as pages, and the parts of the reference that the code states.

``<!-- generate: NAME -->`` in a page is replaced by what ``GENERATED[NAME]`` returns. README.md is the first page, and
links between documents are rewritten for the website; links to files that are not part of it become plain text. A
picture that has a dark variant is shown in the variant of the theme.
"""

import ast
import io
import os
import pkgutil
import posixpath
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import redirect_stdout, suppress
from dataclasses import MISSING, fields
from pathlib import Path
from unittest import mock

from mkdocs.structure.files import File

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))  # this checkout is documented, also where another one is installed

#: Documents outside docs/, and their pages.
REPOSITORY = {
    "README.md": "index.md",
    "CONTRIBUTING.md": "developers/contributing.md",
    "AGENTS.md": "developers/agents.md",
    "CHANGELOG.md": "developers/changelog.md",
    "SECURITY.md": "developers/security.md",
    "CODE_OF_CONDUCT.md": "developers/conduct.md",
    "scripts/README.md": "developers/scripts.md",
    "examples/README.md": "developers/examples.md",
    "data/README.md": "reference/data.md",
}
_SOURCES = {page: document for document, page in REPOSITORY.items()}
_GENERATE = re.compile(r"^<!-- generate: ([\w-]+) -->$", re.MULTILINE)
# A picture of the README with a variant for each theme of the page that shows it.
_PICTURE = re.compile(r'^<picture>.*?<img src="([^"]+)" alt="([^"]*)"[^>]*>\s*</picture>$', re.MULTILINE | re.DOTALL)
# A fenced block or a code span, in which nothing is a link, or a link.
_CODE_OR_LINK = re.compile(
    r"^```.*?^```$|`[^`\n]+`|(!?)\[([^\]]*)\]\(([^)#:\s]+)(#[^)\s]*)?\)", re.MULTILINE | re.DOTALL
)


def on_files(files, config):
    """Add the documents of the repository."""
    for page, document in sorted(_SOURCES.items()):
        files.append(File.generated(config, page, abs_src_path=str(ROOT / document)))
    return files


def on_page_markdown(markdown, page, config, files):
    """Fill in the generated parts and rewrite the links."""
    filled = _GENERATE.sub(lambda match: GENERATED[match[1]](), markdown)
    filled = re.sub(r" (?=[±↑↓]|\(\d+\) \|)|(?<=±) ", "\N{NO-BREAK SPACE}", filled)  # a score stays in one line
    return themed_pictures(website_links(_PICTURE.sub(r"![\2](\1)", filled), page.file.src_uri))


def themed_pictures(text: str) -> str:
    """Show the dark variant of a picture, where there is one, in the dark theme."""

    def both(match: re.Match) -> str:
        label, path, name = match.groups()
        if not (ROOT / "docs" / "figures" / f"{name}-dark{Path(path).suffix}").exists():
            return match[0]
        stem, suffix = posixpath.splitext(path)
        return f"![{label}]({path}#only-light)![{label}]({stem}-dark{suffix}#only-dark)"

    return re.sub(r"!\[([^\]]*)\]\(((?:\.\./)*figures/([\w-]+)\.\w+)\)", both, text)


def website_links(text: str, page: str) -> str:
    """Rewrite the links of a page, which are relative to its document in the repository."""
    folder = posixpath.dirname(_SOURCES.get(page, f"docs/{page}"))

    def rewrite(match: re.Match) -> str:
        picture, label, target, anchor = match.groups()
        if target is None:
            return match[0]
        path = posixpath.normpath(posixpath.join(folder, target))
        if path in REPOSITORY:
            found = REPOSITORY[path]
        elif path.startswith("docs/"):
            found = path.removeprefix("docs/")
        else:
            return label
        return f"{picture}[{label}]({posixpath.relpath(found, posixpath.dirname(page) or '.')}{anchor or ''})"

    return _CODE_OR_LINK.sub(rewrite, text)


def command_line() -> str:
    """The help of every command, as the parsers print it."""
    from graphslice.cli.main import COMMANDS, main

    parts = []
    for name, description in COMMANDS.items():
        printed = io.StringIO()
        with redirect_stdout(printed), suppress(SystemExit), mock.patch.dict(os.environ, COLUMNS="90"):
            main([name, "--help"])
        parts.append(f"## graphslice {name}\n\n{description}\n\n```text\n{printed.getvalue().strip()}\n```\n")
    return "\n".join(parts)


def configuration() -> str:
    """A table for each section of the configuration, from its dataclass."""
    from graphslice import config
    from graphslice.config.reading import meanings

    sections = {"data": config.DataConfig, "graph": config.GraphConfig, "model": config.ModelConfig}
    sections |= {"optimizer": config.OptimizerConfig, "trainer": config.TrainerConfig, "": config.RunConfig}
    parts = []
    for section, kind in sections.items():
        described = meanings(kind)
        rows = []
        for field in fields(kind):
            if field.name not in sections:
                key = f"{section}.{field.name}".lstrip(".")
                default = "" if field.default is MISSING else f"`{field.default}`"
                rows.append((f"`{key}`", default, described[field.name]))
        table = _table(("setting", "default", "meaning"), rows)
        parts.append(f"## {section or 'run'}\n\n{kind.__doc__}\n\n{table}\n")
    return "\n".join(parts)


def python_api() -> str:
    """The docstrings of the public names, in the order of :data:`_PUBLIC`."""
    parts = []
    for name in _PUBLIC.split():
        found = pkgutil.resolve_name(f"graphslice.{name}")
        parts.append(f"::: {found.__module__}.{found.__qualname__}\n    options: {{heading: graphslice.{name}}}\n")
    return "\n".join(parts)


_PUBLIC = """
fit load Model train write_report GraphSliceRegressor GraphSliceClassifier GraphSliceTransformer
inference.predictions.Predictions Predictor smiles_to_graph MolGraph collate_molecules explain.attribution.attribute
search.tune.tune nn.mixers.Mixer nn.mixers.register nn.mixers.build_mixer nn.context.AttentionContext InputError
"""


def run_files() -> str:
    """The names of the files of a run, from the constants of ``runs/run_files.py`` and the comments above them."""
    from graphslice.runs import run_files

    source = Path(run_files.__file__).read_text(encoding="utf-8")
    rows = []
    for comment, names in re.findall(r"^((?:#: .*\n)+)([A-Z_, ]+) = ", source, re.MULTILINE):
        values = [getattr(run_files, name) for name in names.split(", ")]
        if all(isinstance(value, str) for value in values):
            text = " ".join(line.removeprefix("#: ") for line in comment.splitlines())
            rows.append((", ".join(f"`{value}`" for value in values), text))
    return _table(("name", "contents"), rows)


def metrics() -> str:
    """A table of the metrics."""
    from graphslice.evaluation.metrics import METRICS

    rows = [
        (f"`{name}`", metric.label, ", ".join(metric.kinds), "higher" if metric.higher_is_better else "lower")
        for name, metric in METRICS.items()
    ]
    return _table(("name", "metric", "task types", "better"), rows)


def errors() -> str:
    """Every message of an ``InputError`` in the source, by module; ``…`` is a value of the input."""
    parts = []
    for path in sorted((ROOT / "graphslice").rglob("*.py")):
        messages = dict.fromkeys(_messages(ast.parse(path.read_text(encoding="utf-8"))))
        if messages:
            lines = [f"- `{message.replace('`', chr(39))}`" for message in messages]
            parts.append("\n".join([f"## {path.relative_to(ROOT).as_posix()}\n", *lines, ""]))
    return "\n".join(parts)


def modules() -> str:
    """The first line of the docstring of every module."""
    rows = []
    for path in sorted((ROOT / "graphslice").rglob("*.py")):
        text = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
        if text:
            rows.append((f"`{path.relative_to(ROOT / 'graphslice').as_posix()}`", text.splitlines()[0]))
    return _table(("module", "contents"), rows)


def _messages(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        is_error = isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call) and node.exc.args
        if is_error and getattr(node.exc.func, "id", "").endswith(("InputError", "MoleculeError")):
            text = message_of(node.exc.args[0])
            if re.search(r"[a-z]{3}", text):
                yield text


def message_of(node: ast.expr) -> str:
    """The text of a string expression, with ``…`` for what is not constant."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if isinstance(node, ast.JoinedStr):
        return "".join(message_of(part) for part in node.values)
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        return message_of(node.left) + message_of(node.right)
    return "…"


def _table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    from graphslice.evaluation.format_scores import markdown_table

    return "\n".join(markdown_table(header, rows))


def model_cards() -> str:
    """The cards of the packaged models; their scores and data are on pages of their own."""
    from graphslice.inference.predictor import load
    from graphslice.report.model_card import model_card

    parts = []
    for name, details in _PACKAGED.items():
        _, matter, card = model_card(load(name, "cpu"), {}, name, "mit").split("---\n", 2)
        card = re.sub(r"^#", "##", card, flags=re.MULTILINE).replace("The run has no scores.", details)
        parts.append(f"{card.strip()}\n\n### Metadata\n\n```yaml\n{matter}```\n")
    return "\n".join(parts)


# Packaged models, and where the details of each are.
_PACKAGED = {
    "small": "It is a start for fine-tuning; what it was pretrained on and what that gives: [models](models.md).",
    "gap": "Errors on held-out molecules, training data and limits: [models](models.md).",
    "adme": "Cross-validation of every endpoint, data, licences and limits: [adme](adme.md).",
}

GENERATED: dict[str, Callable[[], str]] = {
    "command-line": command_line,
    "configuration": configuration,
    "python-api": python_api,
    "run-files": run_files,
    "metrics": metrics,
    "errors": errors,
    "modules": modules,
    "model-cards": model_cards,
}
