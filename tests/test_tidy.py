"""Shape of the source: file and function sizes, private assertions, module docstrings.

There is no exception list; generated code lives in files named `*_pb2.py` or under `generated/`.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
SOURCE = ROOT / "src"
FILE_LINES_MAX = 600
FUNCTION_LINES_MAX = 60
FORBIDDEN_PACKAGE_NAMES = {"utils", "helpers", "managers", "common", "util", "misc"}


def source_files() -> list[Path]:
    return [
        path
        for path in sorted(SOURCE.rglob("*.py"))
        if not path.name.endswith("_pb2.py") and "generated" not in path.parts
    ]


@pytest.fixture(scope="module", params=source_files(), ids=lambda p: str(p.relative_to(SOURCE)))
def source(request: pytest.FixtureRequest) -> Path:
    path: Path = request.param
    return path


def functions(tree: ast.AST) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    for node in ast.walk(tree):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            yield node


def test_files_are_small(source: Path) -> None:
    count = len(source.read_text().splitlines())
    assert count <= FILE_LINES_MAX, f"{source} has {count} lines, the limit is {FILE_LINES_MAX}"


def test_functions_are_small(source: Path) -> None:
    tree = ast.parse(source.read_text())
    long = [
        f"{node.name} at line {node.lineno}: {(node.end_lineno or 0) - node.lineno + 1} lines"
        for node in functions(tree)
        if (node.end_lineno or 0) - node.lineno + 1 > FUNCTION_LINES_MAX
    ]
    assert not long, f"{source}: functions over {FUNCTION_LINES_MAX} lines: {long}"


def test_modules_say_why_they_exist(source: Path) -> None:
    assert ast.get_docstring(ast.parse(source.read_text())), f"{source} has no docstring"


def test_no_asserts_in_the_product(source: Path) -> None:
    asserts = [
        node.lineno
        for node in ast.walk(ast.parse(source.read_text()))
        if isinstance(node, ast.Assert)
    ]
    assert not asserts, f"{source} asserts at lines {asserts}: raise BugError instead"


def test_packages_are_domain_nouns() -> None:
    names = {path.stem for path in SOURCE.rglob("*.py")} | {
        path.name for path in SOURCE.rglob("*") if path.is_dir()
    }
    assert not names & FORBIDDEN_PACKAGE_NAMES


def test_lock_files_name_no_registry() -> None:
    for path in (ROOT / "requirements").glob("*.txt"):
        assert "://" not in path.read_text(), f"{path} holds an address"
