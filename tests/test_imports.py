"""No circles of files, nor of folders: what imports each other cannot be read or tested alone.

A circle is a strongly connected component of the files' imports, those under `TYPE_CHECKING` and
inside functions included: a type that is only named is depended on all the same. Which package may
import which is import-linter's contract in `pyproject.toml`. What a package names as its own is
there, also where it is imported late.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from importlib import import_module
from pathlib import Path

import pytest

from tests.source_facts import facts_in

SOURCE = Path(__file__).resolve().parent.parent / "src"
SIMULATIONS = Path(__file__).resolve().parent.parent / "sim"


def modules_in(root: Path) -> dict[str, Path]:
    """The files below a folder, by the names that imports have for them."""
    return {
        ".".join(path.relative_to(root).with_suffix("").parts).removesuffix(".__init__"): path
        for path in root.rglob("*.py")
    }


def imports_of(module: str, modules: dict[str, Path]) -> set[str]:
    """The modules that one imports; the `__init__` of its package does not count."""
    found: set[str] = set()
    for line, level, source, names in facts_in(modules[module].read_text()).imports:
        assert not level, f"{module} line {line}: imports are absolute"
        if source is None:
            found |= {*names}
        else:
            found |= {
                whole if (whole := f"{source}.{name}") in modules else source for name in names
            }
    return {
        name
        for name in found & modules.keys() - {module}
        if not (modules[name].name == "__init__.py" and module.startswith(f"{name}."))
    }


@cache
def imports_in(root: Path) -> dict[str, set[str]]:
    modules = modules_in(root)
    return {module: imports_of(module, modules) for module in modules}


def circles_in(imports: Mapping[str, set[str]]) -> set[frozenset[str]]:
    """Return the strongly connected components of more than one member."""
    reached = {module: reach(module, imports) for module in imports}
    return {
        circle
        for module in imports
        if len(circle := frozenset(m for m in reached[module] if module in reached[m])) > 1
    }


def folders(imports: Mapping[str, set[str]]) -> dict[str, set[str]]:
    """Return the imports between folders by their files; those of `__init__` do not count."""
    packages = {module for module in imports if any(m.startswith(f"{module}.") for m in imports)}
    found: dict[str, set[str]] = {}
    for module, imported in imports.items():
        folder = module.rpartition(".")[0]
        if module not in packages:
            found.setdefault(folder, set()).update(
                name if name in packages else name.rpartition(".")[0] for name in imported
            )
    for imported in [*found.values()]:
        for folder in imported:
            found.setdefault(folder, set())
    return {folder: imported - {folder} for folder, imported in found.items()}


def reach(module: str, imports: Mapping[str, set[str]]) -> set[str]:
    """Return a module's imports, direct and transitive."""
    reached: set[str] = set()
    ahead = [module]
    while ahead:
        new = imports[ahead.pop()] - reached
        reached |= new
        ahead += new
    return reached


def test_every_name_of_a_package_is_there() -> None:
    packages = [name for name, path in modules_in(SOURCE).items() if path.name == "__init__.py"]
    assert len(packages) > 50
    for package in map(import_module, packages):
        for name in getattr(package, "__all__", ()):
            assert getattr(package, name) is not None, f"{package.__name__}.{name}"


def test_no_files_import_each_other() -> None:
    circles = [sorted(circle) for circle in circles_in(imports_in(SOURCE))]
    assert not circles, f"files that import each other: {circles}"


def test_no_folders_import_each_other() -> None:
    simulations = {f"sim.{name}": path for name, path in modules_in(SIMULATIONS).items()}
    of_simulations = {module: imports_of(module, simulations) for module in simulations}
    for imports in (imports_in(SOURCE), of_simulations):
        circles = [sorted(circle) for circle in circles_in(folders(imports))]
        assert not circles, f"folders that import each other: {circles}"


@pytest.mark.parametrize(
    ("files", "circles"),
    [
        ({"p/a": "from q.b import B", "p/c": "", "q/b": "", "q/d": "from p.c import C"}, ["p q"]),
        ({"p/a": "from p.q.b import B", "p/q/b": "from p.c import C", "p/c": ""}, ["p p.q"]),
        ({"p/a": "from p.q.b import B", "p/q/b": "", "p/c": ""}, []),
        ({"p/__init__": "from p.q.b import B", "p/q/b": "from p.c import C", "p/c": ""}, []),
    ],
)
def test_circles_of_folders_are_found(
    tmp_path: Path, files: dict[str, str], circles: list[str]
) -> None:
    write(tmp_path, files)
    found = circles_in(folders(imports_in(tmp_path)))
    assert found == {frozenset(circle.split()) for circle in circles}


@pytest.mark.parametrize(
    ("files", "circles"),
    [
        ({"a": "import b", "b": "import c", "c": ""}, []),
        ({"a": "import b", "b": "import c", "c": "import a"}, ["a b c"]),
        ({"a": "import b", "b": "import a", "c": "import d", "d": "import c"}, ["a b", "c d"]),
        ({"a": "if TYPE_CHECKING:\n    from b import B", "b": "from a import A"}, ["a b"]),
        ({"a": "def f():\n    from b import B", "b": "from a import A"}, ["a b"]),
        ({"p/__init__": "from p.a import A", "p/a": "from p import B"}, []),
        ({"p/__init__": "from p.a import A", "p/a": "import b", "b": "import p"}, ["b p p.a"]),
        ({"p/__init__": "", "p/a": "from p import b", "p/b": "from p import a"}, ["p.a p.b"]),
    ],
)
def test_circles_are_found(tmp_path: Path, files: dict[str, str], circles: list[str]) -> None:
    write(tmp_path, files)
    assert circles_in(imports_in(tmp_path)) == {frozenset(circle.split()) for circle in circles}


def write(root: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        path = root / f"{name}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
