"""The structure of the project: where things lie, how long they may get, who may import what."""

from __future__ import annotations

import ast
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.harness import run_command
from tests.unit.fresh_process import run_fresh

PROJECT = Path(__file__).parents[2]
PACKAGE = PROJECT / "hvdtrain"
TOP_LEVEL = {"setup.py", "README.md", "hvdtrain", "tests", "docker", "examples"}
MAX_MODULE_LINES = 350
MAX_FUNCTION_LINES = 40
HEAVY = {"torch", "tensorflow", "keras", "horovod", "mpi4py"}

# Which folder or file of the package may import a module; the longest matching name decides.
OWNERS = {
    "mpi4py": ("communicator.py",),
    "torch": ("torch_adapter",),
    "horovod.torch": ("torch_adapter",),
    "tensorflow": ("tensorflow_adapter",),
    "keras": ("tensorflow_adapter",),
    "horovod.tensorflow": ("tensorflow_adapter",),
    "horovod": ("torch_adapter", "tensorflow_adapter"),
    # The package names the trainers for type checkers; that it loads nothing is tested in a fresh process.
    "hvdtrain.torch_adapter": ("torch_adapter", "__init__.py"),
    "hvdtrain.tensorflow_adapter": ("tensorflow_adapter", "__init__.py"),
}


def modules() -> dict[str, ast.Module]:
    """Return every module of the package, parsed, by its path inside the package."""
    paths = sorted(PACKAGE.rglob("*.py"))
    assert paths
    return {path.relative_to(PACKAGE).as_posix(): ast.parse(path.read_text()) for path in paths}


def functions(tree: ast.AST) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node


def imported(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Yield line and full name of all imports, by statement or by a call with a literal name."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            # Both forms count: "from horovod import torch" imports horovod.torch.
            yield from ((node.lineno, f"{node.module}.{alias.name}") for alias in node.names)
        elif isinstance(node, ast.Call) and ast.unparse(node.func).split(".")[-1] in {
            "import_module",
            "__import__",
        }:
            literals = [arg.value for arg in node.args[:1] if isinstance(arg, ast.Constant)]
            # Our own adapters are loaded by such strings, and only by them.
            yield from ((node.lineno, name) for name in literals if not name.startswith("hvdtrain."))


def owners(name: str) -> tuple[str, ...] | None:
    """Return who may import this name; None where everybody may."""
    parts = name.split(".")
    for length in range(len(parts), 0, -1):
        found = OWNERS.get(".".join(parts[:length]))
        if found is not None:
            return found
    return None


def foreign_imports(path: str, tree: ast.AST) -> list[str]:
    home = path.split("/")[0]
    return [
        f"{path}:{line} imports {name}"
        for line, name in imported(tree)
        if (allowed := owners(name)) is not None and home not in allowed
    ]


def late_imports(path: str, tree: ast.AST) -> list[str]:
    """Return the imports inside functions that the style does not allow."""
    if path == "registry.py" or path.startswith("cli/"):
        return []
    return [
        f"{path}:{line} {function.name} imports {name}"
        for function in functions(tree)
        for line, name in imported_by_statement(function)
        if not (path.endswith("__init__.py") and function.name == "__getattr__")
        # MPI starts when it is imported, so that must wait for the call.
        and not (path == "communicator.py" and function.name == "connect" and "mpi4py" in name)
    ]


def imported_by_statement(tree: ast.AST) -> Iterator[tuple[int, str]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            yield node.lineno, ast.unparse(node)


def code_lines(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Return the lines of a function's body without its docstring."""
    body = function.body[1:] if ast.get_docstring(function) is not None else function.body
    return body[-1].end_lineno - body[0].lineno + 1 if body else 0


# ---------------------------------------------------------------- files
def test_every_module_has_its_unit_test():
    own = [path for path in PACKAGE.glob("*.py") if not path.name.startswith("__")]
    missing = [path.name for path in own if not (PROJECT / f"tests/unit/test_{path.name}").is_file()]
    assert own
    assert missing == []


def test_top_level_holds_everything_agreed():
    assert [name for name in sorted(TOP_LEVEL) if not (PROJECT / name).exists()] == []


@pytest.mark.skipif(not (PROJECT / ".git").exists(), reason="a copy without history lists no files")
def test_top_level_holds_nothing_else():
    # Untracked files, such as the runs of whoever works here, are nobody's business.
    finished = run_command(["git", "-c", "safe.directory=*", "ls-files", "-z"], timeout_s=20, cwd=PROJECT)
    assert finished.returncode == 0, finished.output
    tracked = {name.split("/")[0] for name in finished.stdout.split("\0") if name}
    assert tracked
    assert {name for name in tracked if not name.startswith(".")} - TOP_LEVEL == set()


def test_modules_stay_short():
    lengths = {path: len((PACKAGE / path).read_text().splitlines()) for path in modules()}
    assert {path: n for path, n in lengths.items() if n > MAX_MODULE_LINES} == {}


def test_functions_stay_short():
    too_long = [
        f"{path}:{function.lineno} {function.name}: {code_lines(function)} lines"
        for path, tree in modules().items()
        for function in functions(tree)
        if code_lines(function) > MAX_FUNCTION_LINES
    ]
    assert too_long == []


# ---------------------------------------------------------------- imports
def test_frameworks_and_mpi_are_imported_by_their_owners_only():
    assert [text for path, tree in modules().items() for text in foreign_imports(path, tree)] == []


@pytest.mark.parametrize(
    ("path", "statement"),
    [
        ("trainer.py", "import torch"),
        ("trainer.py", "from mpi4py import MPI"),
        ("cli/doctor.py", "import horovod.torch as hvd"),
        ("torch_adapter/state.py", "from horovod import tensorflow"),
        ("torch_adapter/state.py", "from hvdtrain.tensorflow_adapter.state import x"),
        ("registry.py", "import hvdtrain.torch_adapter"),
        ("launch.py", "importlib.import_module('tensorflow')"),
    ],
)
def test_foreign_import_is_seen(path, statement):
    assert foreign_imports(path, ast.parse(statement)) != []


@pytest.mark.parametrize(
    ("path", "statement"),
    [
        ("communicator.py", "from mpi4py import MPI"),
        ("torch_adapter/trainer.py", "import horovod.torch as hvd, torch.nn"),
        ("tensorflow_adapter/trainer.py", "import horovod.tensorflow.keras, keras"),
        ("registry.py", "import_module('hvdtrain.torch_adapter.trainer')"),
        ("trainer.py", "import numpy"),
    ],
)
def test_own_import_is_allowed(path, statement):
    assert foreign_imports(path, ast.parse(statement)) == []


def test_imports_stand_at_the_top():
    assert [text for path, tree in modules().items() for text in late_imports(path, tree)] == []


def test_late_import_is_seen():
    assert late_imports("trainer.py", ast.parse("def f():\n    import json")) != []
    assert late_imports("communicator.py", ast.parse("def f():\n    import mpi4py")) != []
    assert late_imports("communicator.py", ast.parse("def connect():\n    import json")) != []


def test_imports_are_absolute_and_name_what_they_take():
    wrong = [
        f"{path}:{node.lineno} {ast.unparse(node)}"
        for path, tree in modules().items()
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and (node.level or node.names[0].name == "*")
    ]
    assert wrong == []


def test_only_the_commands_print():
    printing = [
        f"{path}:{node.lineno}"
        for path, tree in modules().items()
        if not path.startswith("cli/")
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "print"
    ]
    assert printing == []


# ---------------------------------------------------------------- what a fresh process loads
MEASURE = """
import json, runpy, sys, time
began = time.process_time()
try:
    {statement}
except SystemExit as end:
    assert not end.code, end.code
seconds = time.process_time() - began
print(json.dumps([seconds, sorted(name for name in sys.modules if "." not in name)]))
"""
STATEMENTS = {
    "import": "import hvdtrain",
    "help": "sys.argv[1:] = ['--help']; runpy.run_module('hvdtrain', run_name='__main__', alter_sys=True)",
}


@pytest.mark.parametrize("name", STATEMENTS)
def test_start_is_light_and_quick(name):
    code = MEASURE.format(statement=STATEMENTS[name])
    seconds = []
    for _ in range(3):
        printed, errors = run_fresh(code)
        assert printed, errors
        took, loaded = json.loads(printed.splitlines()[-1])
        assert HEAVY & set(loaded) == set()
        seconds.append(took)
    # Of the processor, and the best of three, because other processes want the cores too.
    assert min(seconds) < 0.5
