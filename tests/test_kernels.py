"""Every compiled kernel that Python calls stands in docs/kernels.md, with what guards it."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import graphslice

PACKAGE = Path(graphslice.__file__).parent
DOCUMENT = Path(__file__).parents[1] / "docs" / "kernels.md"


def is_kernel(node: ast.AST) -> bool:
    """Whether a function is decorated with numba's njit, triton's jit or as a kernel of programs."""
    return isinstance(node, ast.FunctionDef) and any(
        re.match(r"(njit|numba\.n?jit|kernel|triton\.jit)\b", ast.unparse(decorator))
        for decorator in node.decorator_list
    )


def names_in_python(tree: ast.AST) -> Iterator[str]:
    """Every name, and attribute of a name, that is read outside of compiled functions."""
    for node in ast.iter_child_nodes(tree):
        if is_kernel(node):
            continue
        if isinstance(node, ast.Name):
            yield node.id
        elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            yield f"{node.value.id}.{node.attr}"
        yield from names_in_python(node)


def called_kernels(sources: dict[str, str]) -> set[str]:
    """``module.function`` of the kernels that are used outside of kernels, given the texts of all modules."""
    trees = {module: ast.parse(text) for module, text in sources.items()}
    kernels = {f"{module}.{node.name}" for module, tree in trees.items() for node in ast.walk(tree) if is_kernel(node)}
    found = set()
    for module, tree in trees.items():
        homes = {node.name: f"{module}.{node.name}" for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom):
                homes |= {alias.asname or alias.name: f"{node.module}.{alias.name}" for alias in node.names}
        for name in names_in_python(tree):
            head, _, rest = name.partition(".")
            found.add(".".join(filter(None, (homes.get(head, ""), rest))))
    return kernels & found


def test_every_kernel_is_listed_with_its_guard():
    sources = {
        ".".join(("graphslice", *path.relative_to(PACKAGE).with_suffix("").parts)): path.read_text()
        for path in PACKAGE.rglob("*.py")
    }
    found = {name.removeprefix("graphslice.") for name in called_kernels(sources)}
    rows = [row.split("|")[1:-1] for row in DOCUMENT.read_text().splitlines() if row.startswith("| `")]
    listed = [name for row in rows for name in re.findall(r"`([\w.]+)`", row[0])]
    assert set(listed) == found, "docs/kernels.md lists the kernels that Python calls, and no others"
    assert len(listed) == len(set(listed)) and len(found) > 20
    assert all(len(row) == 3 and all(cell.strip() for cell in row) for row in rows)


def test_a_new_kernel_would_be_found():
    sources = {
        "p.a": "@njit(cache=True)\ndef inner(x): ...\n@njit\ndef outer(x): inner(x)\ndef python(): outer(1)",
        "p.b": "from p.a import inner as i\nfrom p import c\nrun = lambda: (i(2), c.third[1](3))",
        "p.c": "@triton.jit\ndef third(x): ...\n@triton.jit\ndef unused(x): third(x)\n@other\ndef fourth(): ...",
    }
    assert called_kernels(sources) == {"p.a.outer", "p.a.inner", "p.c.third"}
    assert called_kernels({"p.a": sources["p.a"]}) == {"p.a.outer"}
