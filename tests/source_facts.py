"""Facts about source files for all tests that check the source.

Each process parses a file once, and walks over its syntax tree once.
"""

from __future__ import annotations

import ast
from functools import cache
from typing import NamedTuple


class Function(NamedTuple):
    name: str
    line: int
    lines: int


class Document(NamedTuple):
    """A docstring; `line` is where its text begins."""

    line: int
    text: str
    of_boolean: bool


class Import(NamedTuple):
    """An import statement; `module` is None for `import a, b`."""

    line: int
    level: int
    module: str | None
    names: tuple[str, ...]


class Facts(NamedTuple):
    documented: bool
    functions: list[Function]
    documents: list[Document]
    asserts: list[int]
    imports: list[Import]


@cache
def facts_in(text: str) -> Facts:
    tree = ast.parse(text)
    found = Facts(bool(ast.get_docstring(tree)), [], [], [], [])
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            length = (node.end_lineno or 0) - node.lineno + 1
            found.functions.append(Function(node.name, node.lineno, length))
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            if document := ast.get_docstring(node):
                boolean = getattr(getattr(node, "returns", None), "id", "") == "bool"
                found.documents.append(Document(node.body[0].lineno, document, boolean))
        elif isinstance(node, ast.Assert):
            found.asserts.append(node.lineno)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            module = getattr(node, "module", None)
            names = tuple(alias.name for alias in node.names)
            found.imports.append(Import(node.lineno, getattr(node, "level", 0), module, names))
    return found
