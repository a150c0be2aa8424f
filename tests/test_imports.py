"""No circles of files: what imports each other cannot be read, tested or moved alone.

A circle is a strongly connected component of the files' imports, those under `TYPE_CHECKING` and
inside functions included: a type that is only named is depended on all the same. Which package may
import which is import-linter's contract in `pyproject.toml`. What a package names as its own is
there, also where it is imported late.
"""

from __future__ import annotations

from importlib import import_module
from pathlib import Path

import pytest

from tests.source_facts import facts_in

SOURCE = Path(__file__).resolve().parent.parent / "src"


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


def circles_in(root: Path) -> set[frozenset[str]]:
    """The strongly connected components of more than one file."""
    modules = modules_in(root)
    imports = {module: imports_of(module, modules) for module in modules}
    reached = {module: reach(module, imports) for module in modules}
    return {
        circle
        for module in modules
        if len(circle := frozenset(m for m in reached[module] if module in reached[m])) > 1
    }


def reach(module: str, imports: dict[str, set[str]]) -> set[str]:
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
    circles = [sorted(circle) for circle in circles_in(SOURCE)]
    assert not circles, f"files that import each other: {circles}"


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
    for name, text in files.items():
        path = tmp_path / f"{name}.py"
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    assert circles_in(tmp_path) == {frozenset(circle.split()) for circle in circles}
