"""docs/kernels.md lists every compiled kernel that is called from Python, with its guard."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import graphslice

PACKAGE = Path(graphslice.__file__).parent
DOCUMENT = Path(__file__).parents[1] / "docs" / "kernels.md"


def is_kernel(node: ast.AST) -> bool:
    """True for a function decorated with numba.njit, triton.jit or as a kernel of traced programs."""
    return isinstance(node, ast.FunctionDef) and any(
        re.match(r"(njit|numba\.n?jit|kernel|triton\.jit)\b", ast.unparse(decorator))
        for decorator in node.decorator_list
    )


def names_in_python(tree: ast.AST) -> Iterator[str]:
    """Yield every name and attribute of a name that is used outside compiled functions."""
    nodes = [tree]
    while nodes:
        node = nodes.pop()
        nodes += [child for child in ast.iter_child_nodes(node) if not is_kernel(child)]
        if isinstance(node, ast.Name):
            yield node.id
        elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            yield f"{node.value.id}.{node.attr}"


def called_kernels(sources: dict[str, str]) -> set[str]:
    """Return ``module.function`` of the kernels used outside kernels, given the source of every module."""
    trees = {module: ast.parse(text) for module, text in sources.items()}
    kernels = {f"{module}.{node.name}" for module, tree in trees.items() for node in ast.walk(tree) if is_kernel(node)}
    used = set()
    for module, tree in trees.items():
        definitions = {
            node.name: f"{module}.{node.name}" for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)
        }
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom):
                definitions |= {alias.asname or alias.name: f"{node.module}.{alias.name}" for alias in node.names}
        for name in names_in_python(tree):
            head, _, rest = name.partition(".")
            used.add(".".join(filter(None, (definitions.get(head, ""), rest))))
    return kernels & used


def test_every_kernel_is_listed_with_its_guard():
    sources = {
        ".".join(("graphslice", *path.relative_to(PACKAGE).with_suffix("").parts)): path.read_text()
        for path in PACKAGE.rglob("*.py")
    }
    called = {name.removeprefix("graphslice.") for name in called_kernels(sources)}
    rows = [row.split("|")[1:-1] for row in DOCUMENT.read_text().splitlines() if row.startswith("| `")]
    listed = [name for row in rows for name in re.findall(r"`([\w.]+)`", row[0])]
    assert set(listed) == called, "docs/kernels.md must list exactly the kernels that Python calls"
    assert len(listed) == len(set(listed)) and len(called) > 20
    assert all(len(row) == 3 and all(cell.strip() for cell in row) for row in rows)
