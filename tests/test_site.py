"""Documentation site: its navigation is whole, its links hold, and it loads nothing from afar."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any
from urllib.parse import urlparse

import pytest

from tests.deploy.files import documents
from tests.test_reference import loaded

ROOT = Path(__file__).resolve().parent.parent
LOADED = re.compile(
    r"""<(?:script|img|iframe|source|video|audio)\b[^>]*?\bsrc=["']?([^"'\s>]+)"""
    r"""|<link\b[^>]*?\bhref=["']?([^"'\s>]+)"""
)
IN_STYLES = re.compile(r"""url\(["']?([^"')]+)|@import\s+["']([^"']+)""")
BUILD_SECONDS = 110


@pytest.fixture(scope="module")
def site() -> ModuleType:
    return loaded("site")


@pytest.fixture(scope="module")
def built(site: ModuleType, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """Return the directory of the site and the output of its build."""
    root = tmp_path_factory.mktemp("site")
    site.Site().write(root / ".cache" / "pages")
    (root / "mkdocs.yml").write_text((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))
    return root / ".cache" / "site", build(root)


def build(root: Path) -> str:
    zensical = Path(sys.executable).with_name("zensical")
    ran = subprocess.run(
        [zensical, "build", "--strict"], cwd=root, capture_output=True, text=True, check=False,
        timeout=BUILD_SECONDS,
    )  # fmt: skip
    return ran.stdout + ran.stderr


def entries(navigation: Any) -> Iterator[str]:
    for entry in navigation:
        targets = entry.values() if isinstance(entry, dict) else [entry]
        for target in targets:
            if isinstance(target, str):
                yield target
            else:
                yield from entries(target)


def test_every_page_is_in_the_navigation_once(site: ModuleType) -> None:
    (configuration,) = documents(ROOT / "mkdocs.yml")
    listed = sorted(entries(configuration["nav"]))
    assert listed == sorted(str(place) for place in site.places().values())


def test_generated_parts_are_up_to_date(site: ModuleType) -> None:
    stale = [
        path.name
        for path, text in site.generated().items()
        if path.read_text(encoding="utf-8") != text
    ]
    assert stale == [], "run python scripts/site.py --pages"


def test_the_site_builds_without_broken_links(built: tuple[Path, str]) -> None:
    directory, output = built
    assert "No issues found" in output, output
    for name in ("index.html", "comparison.html", "tutorials/break-a-cluster.html", "search.json"):
        assert (directory / name).exists(), name
    page = (directory / "index.html").read_text(encoding="utf-8")
    assert 'data-md-color-scheme="slate"' in page
    assert 'data-md-color-scheme="default"' in page


def test_a_broken_link_fails_the_build(tmp_path: Path) -> None:
    pages = tmp_path / "pages"
    pages.mkdir()
    (tmp_path / "mkdocs.yml").write_text("site_name: test\ndocs_dir: pages\n")
    (pages / "index.md").write_text("# Page\n\n[a](missing.md) [b](index.md#missing)\n")
    assert "2 issues found" in build(tmp_path)


def test_no_page_loads_anything_from_another_host(built: tuple[Path, str]) -> None:
    directory, _ = built
    pages = sorted(directory.rglob("*.html"))
    assert len(pages) > 100
    loaded = {
        "".join(found)
        for path in pages
        for found in LOADED.findall(path.read_text(encoding="utf-8"))
    }
    for path in directory.rglob("*.css"):
        loaded |= {"".join(found) for found in IN_STYLES.findall(path.read_text(encoding="utf-8"))}
    assert any(target.endswith(".js") for target in loaded)
    assert [target for target in loaded if urlparse(target).netloc] == []


def test_links_to_files_that_are_no_pages_become_paths(site: ModuleType) -> None:
    text = site.Site().page(Path("docs/README.md"))
    assert "(explanation/architecture.md)" in text
    assert "../" not in text
    guide = site.Site().page(Path("docs/guides/log-sink.md"))
    assert "crash (`compat/test_spark_connector_sink.py`) is in the log twice" in guide
