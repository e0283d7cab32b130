"""Import order of the packages, checked on all imports in the source, also typing-only and function-local ones."""

import ast
import subprocess
import sys
from graphlib import CycleError, TopologicalSorter
from importlib.util import find_spec
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parent.parent / "graphslice"

#: The packages. Each may import from itself and from those before it, but not from others of the same rank.
ORDER = """_version errors feature_dims < system < config < tasks < chem < batch < program < ops < nn
< stacking < calibration < runs < originals < data < inference < evaluation < doctor < training < pretraining
< report < explain < search < api < serve < cli < __main__"""
RANK = {package: rank for rank, names in enumerate(ORDER.split("<")) for package in names.split()}

#: Third-party packages that a package must not import at module level.
FORBIDDEN = {
    "config": {"torch", "rdkit", "pandas", "pyarrow", "lightning_fabric"},
    "chem": {"torch", "torch_geometric", "pandas", "pyarrow", "lightning_fabric"},
    "program": {"rdkit", "pandas", "pyarrow", "lightning_fabric", "torch_geometric"},
    "ops": {"rdkit", "pandas", "pyarrow", "lightning_fabric", "torch_geometric"},
    "nn": {"rdkit", "pandas", "pyarrow", "lightning_fabric", "torch_geometric"},
    "stacking": {"rdkit", "pandas", "pyarrow", "lightning_fabric", "torch_geometric", "sklearn", "scipy", "lightgbm"},
    "data": {"matplotlib", "lightning_fabric"},
    "cli": {"torch", "pandas", "rdkit", "lightning_fabric", "matplotlib"},
}


def module_name(path: Path) -> str:
    parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


#: Every module except ``graphslice/__init__.py``, which imports lazily and is not imported inside the package.
MODULES = {module_name(path): path for path in sorted(PACKAGE.rglob("*.py")) if path != PACKAGE / "__init__.py"}


def imports_of(path: Path) -> set[str]:
    imported = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            imported |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: a relative import"
            names = {f"{node.module}.{alias.name}" for alias in node.names}
            imported |= {name if name in MODULES else node.module for name in names}
    return imported


IMPORTS = {name: imports_of(path) for name, path in MODULES.items()}


def package_of(module: str) -> str:
    return module.split(".")[1]


def test_every_package_has_a_rank():
    assert {package_of(module) for module in MODULES} == set(RANK)


def test_packages_import_only_lower_ranks():
    """And never ``graphslice/__init__.py``."""
    pairs = [
        (module, name) for module, names in IMPORTS.items() for name in names if name.split(".")[0] == "graphslice"
    ]
    assert len(pairs) > 1000
    assert [
        f"{module} imports {name}"
        for module, name in pairs
        if name == "graphslice"
        or (package_of(name) != package_of(module) and RANK[package_of(name)] >= RANK[package_of(module)])
    ] == []


def find_cycle(graph: dict[str, set[str]]) -> list[str]:
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        return error.args[1]
    return []


def test_no_import_cycles():
    """Also within a package. The ``__init__`` of the folder of a module counts as imported with the module."""
    graph: dict[str, set[str]] = {}
    for module, imported in IMPORTS.items():
        inside = {name for name in imported if name in MODULES and name != module}
        folders = {name.rpartition(".")[0] for name in inside} & set(MODULES)
        graph[module] = inside | {folder for folder in folders if not module.startswith(folder)}
    assert find_cycle(graph) == []


def test_cycles_are_detected():
    assert sorted(set(find_cycle({"a": {"b"}, "b": {"c"}, "c": {"a"}, "d": {"a"}}))) == ["a", "b", "c"]


def libraries_of(path: Path) -> set[str]:
    """Return what a module imports when it is imported; imports in functions, as in a command, are allowed."""
    found = set()
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.Import):
            found |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            found.add(node.module.split(".")[0])
    return found


def test_packages_do_not_import_forbidden_libraries():
    found = {module: libraries_of(path) & FORBIDDEN.get(package_of(module), set()) for module, path in MODULES.items()}
    assert {module: libraries for module, libraries in found.items() if libraries} == {}


MODEL = [
    (
        "import graphslice as gs; gs.GraphTransformer(gs.ModelConfig())",
        "rdkit pandas lightning_fabric ogb torch._dynamo",
    )
]
# In this order: what a step loads, the steps after it may load too.
PREDICTION = [
    ("from graphslice.cli.main import main; main(['--version'])", "torch numba numpy rdkit pandas"),
    ("import graphslice.config", "torch numba rdkit pandas"),
    ("main(['train', '--help'])", "torch numba rdkit pandas"),
    ("import graphslice.program.kernels, graphslice.program.run, graphslice.system.threads as t; t.cores()", "torch"),
    ("import graphslice as gs; gs.smiles_to_graph('CCO')", "torch pandas"),
    ("from graphslice.runs.ensemble import read_checkpoints; read_checkpoints(sys.argv[1])", "torch pandas sklearn"),
    *[("import graphslice.serve.app", "torch pandas lightning_fabric matplotlib")]
    * bool(find_spec("prometheus_client")),
    ("from graphslice import Model, Predictor", "torch pandas lightning_fabric ogb sklearn"),
    (
        "gs.load(sys.argv[1], 'cpu').predict(['CCO'])",
        "pandas lightning_fabric ogb torch._dynamo torch_geometric matplotlib",
    ),
]


@pytest.mark.parametrize("steps", [MODEL, PREDICTION], ids=["model", "prediction"])
def test_unused_libraries_are_not_loaded(steps):
    run = "import sys\n"
    for code, absent in steps:
        run += f"try:\n    {code}\nexcept SystemExit:\n    pass\n"
        run += f"print('LOADED', [name for name in {absent.split()} if name in sys.modules])\n"
    done = subprocess.run([sys.executable, "-c", run, "gap"], capture_output=True, text=True, check=True)
    loaded = [line for line in done.stdout.splitlines() if line.startswith("LOADED")]
    assert list(zip(steps, loaded, strict=True)) == [(step, "LOADED []") for step in steps]
