"""Shape of the source and of what stands around it, tests too: file and function sizes, module
docstrings, names; and no assertions in the product.

There is no exception list; generated code lives in files named `*_pb2.py` or under `generated/`.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.source_facts import facts_in

ROOT = Path(__file__).resolve().parent.parent
SOURCE = "src"
FOLDERS = (SOURCE, "tests", "compat", "benchmarks", "examples", "sim")
FILE_LINES_MAX = 800
FUNCTION_LINES_MAX = 60
FILES_MAX = 990
"""Largest number of files in the product."""
LINES_MAX = {
    "apps": 37_600, "archive": 1_100, "base": 3_420, "broker": 42_080, "client": 10_550,
    "connect": 13_930, "control": 11_500, "diskless": 6_900, "formats": 5_600, "host": 9_900,
    "kernels": 5_240, "lake": 1_300, "link": 1_650, "mirror": 2_800, "objects": 2_800,
    "outbox": 6_300, "partitions": 2_940, "planner": 10_400, "records": 3_910,
    "registry": 13_400, "replication": 4_600, "security": 6_500, "spark": 23_200,
    "storage": 14_990, "testing": 600, "wire": 2_900,
}  # fmt: skip
"""Budget of each room's lines. A commit that raises one states the reason in its body."""
LINES_SLACK = 300
"""How far a room may be below its budget before the budget has to follow."""
FORBIDDEN_PACKAGE_NAMES = {"utils", "helpers", "managers", "common", "util", "misc"}


def source_files() -> list[Path]:
    return [
        path
        for folder in FOLDERS
        for path in sorted((ROOT / folder).rglob("*.py"))
        if not path.name.endswith("_pb2.py") and "generated" not in path.parts
    ]


class Shape(NamedTuple):
    """Properties of a file that are checked."""

    lines: int
    long_functions: list[str]
    documented: bool
    asserts: list[int]


def shape_of(path: Path) -> Shape:
    text = path.read_text()
    facts = facts_in(text)
    return Shape(
        lines=len(text.splitlines()),
        long_functions=[
            f"{name} at line {line}: {length} lines"
            for name, line, length in facts.functions
            if length > FUNCTION_LINES_MAX
        ],
        documented=facts.documented,
        asserts=facts.asserts,
    )


@pytest.fixture(scope="module")
def shapes() -> dict[str, Shape]:
    found = {str(path.relative_to(ROOT)): shape_of(path) for path in source_files()}
    assert len(found) > 1000
    return found


def is_product(name: str) -> bool:
    return name.startswith(f"{SOURCE}/")


def test_files_are_small(shapes: dict[str, Shape]) -> None:
    large = {name: shape.lines for name, shape in shapes.items() if shape.lines > FILE_LINES_MAX}
    assert not large, f"files over {FILE_LINES_MAX} lines: {large}"


def test_rooms_keep_their_budgets(shapes: dict[str, Shape]) -> None:
    rooms: Counter[str] = Counter()
    files = [name for name in shapes if name.startswith(f"{SOURCE}/penstock/")]
    for name in files:
        _, _, room, *rest = name.split("/")
        if rest:
            rooms[room] += shapes[name].lines
    above = {room: lines for room, lines in rooms.items() if lines > LINES_MAX.get(room, 0)}
    assert not above, f"lines above the budgets of rooms: {above}"
    below = {room: rooms[room] for room in LINES_MAX if rooms[room] < LINES_MAX[room] - LINES_SLACK}
    assert not below, f"lower the budgets of these rooms: {below}"
    assert len(files) <= FILES_MAX


def test_functions_are_small(shapes: dict[str, Shape]) -> None:
    long = {name: shape.long_functions for name, shape in shapes.items() if shape.long_functions}
    assert not long, f"functions over {FUNCTION_LINES_MAX} lines: {long}"


def test_modules_say_why_they_exist(shapes: dict[str, Shape]) -> None:
    silent = [
        name
        for name, shape in shapes.items()
        if not shape.documented and (shape.lines or is_product(name))
    ]
    assert not silent, f"without a docstring: {silent}"


def test_no_asserts_in_the_product(shapes: dict[str, Shape]) -> None:
    asserting = {
        name: shape.asserts for name, shape in shapes.items() if shape.asserts and is_product(name)
    }
    assert not asserting, f"asserts (file: lines) {asserting}: raise BugError instead"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('"""Why."""\n', Shape(1, [], True, [])),
        ("x = 1\nassert x\n", Shape(2, [], False, [2])),
        ("def f():\n" + "    x = 1\n" * 60, Shape(61, ["f at line 1: 61 lines"], False, [])),
        ("async def f():\n" + "    x = 1\n" * 59, Shape(60, [], False, [])),
    ],
)
def test_the_shape_of_a_file_is_seen(tmp_path: Path, text: str, expected: Shape) -> None:
    (tmp_path / "one.py").write_text(text)
    assert shape_of(tmp_path / "one.py") == expected


def test_packages_are_domain_nouns() -> None:
    names = {
        part for path in source_files() for part in path.relative_to(ROOT).with_suffix("").parts
    }
    assert not names & FORBIDDEN_PACKAGE_NAMES


def test_lock_files_name_no_registry() -> None:
    for path in (ROOT / "requirements").glob("*.txt"):
        assert "://" not in path.read_text(), f"{path} holds an address"
