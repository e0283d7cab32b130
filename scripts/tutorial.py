"""Run the tutorial and write what came of it: ``python scripts/tutorial.py``.

``docs/tutorial.md`` is the source: its prose and its blocks of Python are edited by hand. This script runs the blocks,
in order and in an empty folder, puts what they gave behind each of them, between ``<!-- output -->`` and
``<!-- /output -->``, and writes the same cells with their outputs as ``docs/tutorial.ipynb``. Pictures go to
``docs/figures/tutorial-*``.
"""

import argparse
import base64
import os
import re
import sys
import tempfile
from pathlib import Path

import nbformat
from nbclient import NotebookClient
from nbformat import NotebookNode
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook
from traitlets.config import Config

DOCS = Path(__file__).parents[1] / "docs"
TEXT, NOTEBOOK = DOCS / "tutorial.md", DOCS / "tutorial.ipynb"
# What is kept of an output, the best first, and the file that a picture goes to.
_PICTURES = {"image/svg+xml": ".svg", "image/png": ".png"}
_KEPT = (*_PICTURES, "text/html", "text/plain")
_OUTPUT = re.compile(r"\n<!-- output -->\n.*?<!-- /output -->\n", flags=re.DOTALL)
_CODE = re.compile(r"^```python\n(.*?)\n```$", flags=re.DOTALL | re.MULTILINE)


def cells_of(text: str) -> NotebookNode:
    """The notebook of a text, without outputs."""
    cells = []
    for place, part in enumerate(_CODE.split(_OUTPUT.sub("", text))):  # prose and code in turns
        make = new_code_cell if place % 2 else new_markdown_cell
        if part.strip():
            cells.append(make(part.strip("\n"), id=f"cell-{len(cells)}"))
    kernel = {"name": "python3", "display_name": "Python 3", "language": "python"}
    return new_notebook(cells=cells, metadata={"kernelspec": kernel, "language_info": {"name": "python"}})


def execute(notebook: NotebookNode, folder: Path, seconds: int = 600) -> None:
    """Run every cell in a kernel of this Python that works in a folder, and keep the outputs in the notebook."""
    metadata = dict(notebook.metadata)
    commands = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    # Commands take what they print to for a file: no colours and no bars that move.
    environment = {**os.environ, "PATH": commands, "TTY_COMPATIBLE": "0"}
    with tempfile.TemporaryDirectory(prefix="kernel-") as sockets:
        # Sockets in a folder of one's own, where there are such: nobody else can ask the kernel.
        ways = {"transport": "ipc", "ip": f"{sockets}/k"} if os.name == "posix" else {}
        client = NotebookClient(
            notebook,
            timeout=seconds,
            record_timing=False,
            coalesce_streams=True,
            resources={"metadata": {"path": str(folder)}},
            config=Config({"KernelManager": ways}),
        )
        client.execute(env=environment)
    notebook.metadata = NotebookNode(metadata)  # without the versions of this machine
    for cell in notebook.cells:
        for output in cell.get("outputs", ()):
            if "data" in output:
                best = next(kind for kind in _KEPT if kind in output["data"])
                output["data"] = {kind: output["data"][kind] for kind in dict.fromkeys((best, "text/plain"))}
                output["metadata"] = {}
            else:  # commands print as to a terminal
                output["text"] = re.sub(r"\r(?=\n)|\x1b\[[0-9;]*m", "", output["text"])


def text_of(notebook: NotebookNode) -> tuple[str, dict[str, bytes]]:
    """A notebook as a text, and the pictures that it shows, by the names of their files."""
    parts, pictures = [], {}
    for cell in notebook.cells:
        if cell.cell_type == "markdown":
            parts.append(cell.source)
            continue
        parts.append(f"```python\n{cell.source}\n```")
        shown = []
        for output in cell.outputs:
            data = output.get("data", {"text/plain": output.get("text", "")})
            kind = next((kind for kind in _PICTURES if kind in data), None)
            if kind is None:
                shown.append("```text\n" + data["text/plain"].strip("\n") + "\n```")
                continue
            name = f"tutorial-{len(pictures) + 1}{_PICTURES[kind]}"
            pictures[name] = data[kind].encode() if kind == "image/svg+xml" else base64.b64decode(data[kind])
            shown.append(f"![what the code above draws](figures/{name})")
        if shown:
            parts[-1] += "\n\n<!-- output -->\n\n" + "\n\n".join(shown) + "\n\n<!-- /output -->"
    return "\n\n".join(parts) + "\n", pictures


def main() -> None:
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    notebook = cells_of(TEXT.read_text())
    with tempfile.TemporaryDirectory() as folder:
        execute(notebook, Path(folder))
    text, pictures = text_of(notebook)
    for former in (DOCS / "figures").glob("tutorial-*"):
        former.unlink()
    for name, contents in pictures.items():
        (DOCS / "figures" / name).write_bytes(contents)
    nbformat.write(notebook, NOTEBOOK)
    TEXT.write_text(text)


if __name__ == "__main__":
    main()
