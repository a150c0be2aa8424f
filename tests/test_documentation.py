"""The documentation holds: links lead somewhere, Python compiles and runs, commands exist."""

from __future__ import annotations

import os
import re
import shlex
import tomllib
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from penstock.apps.cli import root
from penstock.testing import Agent, Broker
from tests import page_commands

ROOT = Path(__file__).resolve().parent.parent
SOURCE = ROOT / "src" / "penstock"
SKIPPED = {".venv", ".cache", ".git", "demo-output", "node_modules", "results", ".pytest_cache"}


def pages(root: Path) -> Iterator[Path]:
    for folder, folders, files in os.walk(root):
        folders[:] = [name for name in folders if name not in SKIPPED]
        yield from (Path(folder) / name for name in files if name.endswith(".md"))


PAGES = sorted(pages(ROOT))
GUIDES = sorted((ROOT / "docs" / "guides").glob("*.md"))
PERFORMED = sorted(
    page
    for folder in ("start", "tutorials", "moving")
    for page in (ROOT / "docs" / folder).glob("*.md")
)
"""Pages whose commands `test_pages_run.py` runs."""
RUNNABLE = ("shell-and-tests.md", "columns.md", "host-ingest.md", "share-groups.md")
TOPICS = ("readings",)
LINK = re.compile(r"\[[^\]]*\]\(([^)#\s]+)(?:#[^)]*)?\)")
REGISTRIES = re.compile(
    "|".join(
        re.escape(host) + r"\b"
        for host in ("pypi." + "org", "files.python" + "hosted", "npm" + "js.com", "maven." + "org")
    )
)


def named(path: Path) -> str:
    return str(path.relative_to(ROOT))


def blocks(page: Path, language: str) -> Iterator[str]:
    return (block.text for block in page_commands.blocks(page) if block.language == language)


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_links_lead_somewhere(page: Path) -> None:
    text = page_commands.BLOCK.sub("", page.read_text(encoding="utf-8"))
    targets = [target for target in LINK.findall(text) if "://" not in target]
    assert [target for target in targets if not (page.parent / target).exists()] == []


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_fenced_blocks_end(page: Path) -> None:
    text = page_commands.BLOCK.sub("", page.read_text(encoding="utf-8"))
    assert [line for line in text.splitlines() if line.startswith("```")] == []


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_no_page_names_a_registry(page: Path) -> None:
    assert REGISTRIES.findall(page.read_text(encoding="utf-8")) == []


@pytest.mark.parametrize("page", [*GUIDES, *PERFORMED, ROOT / "README.md"], ids=named)
def test_python_compiles(page: Path) -> None:
    for number, text in enumerate(blocks(page, "python")):
        compile(text, f"{page.name}, block {number}", "exec")


def commands(page: Path) -> Iterator[list[str]]:
    """The words of every call of `penstock` in a page's shell blocks."""
    for text in blocks(page, "sh"):
        for line in text.splitlines():
            lexer = shlex.shlex(line, posix=True, punctuation_chars="|")
            lexer.whitespace_split = True
            words: list[str] = []
            for word in [*lexer, "|"]:
                if word != "|":
                    words.append(word)
                    continue
                while words and re.fullmatch(r"[A-Z_]+=\S*", words[0]):
                    words.pop(0)
                if words and words[0].rpartition("/")[2] == "penstock":
                    yield words[1:]
                words = []


def parse(words: list[str]) -> None:
    """Let click parse a command line, group by group, without running it."""
    command: click.Command = root
    context = command.make_context("penstock", list(words), resilient_parsing=False)
    while isinstance(command, click.Group):
        rest = [*context._protected_args, *context.args]
        name, found, rest = command.resolve_command(context, rest)
        assert found is not None, words
        command = found
        context = command.make_context(name, rest, parent=context)


@pytest.mark.parametrize("page", [*GUIDES, ROOT / "README.md"], ids=named)
def test_commands_exist(page: Path) -> None:
    for words in commands(page):
        try:
            parse(words)
        except click.ClickException as error:
            pytest.fail(f"{named(page)}: penstock {shlex.join(words)}: {error.format_message()}")


def test_the_check_of_commands_sees_them() -> None:
    seen = [" ".join(words[:2]) for page in GUIDES for words in commands(page)]
    assert {"topic create", "group seek", "serve --data-dir", "produce -t"} <= set(seen)
    with pytest.raises(click.ClickException):
        parse(["topic", "list", "--no-such-option"])


@pytest.mark.parametrize("name", RUNNABLE)
def test_guides_run(name: str) -> None:
    with Broker() as broker, Agent(broker.bootstrap) as agent:
        for topic in TOPICS:
            broker.create_topic(topic, partitions=4)
        space: dict[str, object] = {"__name__": "guide"}
        for number, text in enumerate(blocks(ROOT / "docs" / "guides" / name, "python")):
            code = text.replace("127.0.0.1:9092", broker.bootstrap)
            code = code.replace("/var/run/penstock/host.sock", str(agent.socket))
            exec(compile(code, f"{name}, block {number}", "exec"), space)
        test = space.get("test_payments")
        if callable(test):
            test()


def test_the_test_in_the_readme_passes() -> None:
    space: dict[str, object] = {"__name__": "readme"}
    for text in blocks(ROOT / "README.md", "python"):
        exec(compile(text, "README.md", "exec"), space)
    test = space["test_reading"]
    assert callable(test)
    test()


def test_the_map_names_the_rooms_and_files_that_are_there() -> None:
    text = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
    assert len(text.split()) <= 1_500
    rooms = re.findall(r"^\| (?:\[)?`(\w+)`", text, re.M)
    packages = [path.parent.name for path in SOURCE.glob("*/__init__.py")]
    assert sorted(rooms) == sorted(packages)
    start = text[text.index("## Where to start") :]
    for name in re.findall(r"^- `([\w/.]+)`", start, re.M):
        assert (SOURCE / name).exists(), name


@pytest.mark.parametrize("page", sorted(SOURCE.glob("*/README.md")), ids=named)
def test_pages_of_rooms_name_files_that_are_there(page: Path) -> None:
    names = re.findall(r"`([\w/]+(?:\.py|/))`", page.read_text(encoding="utf-8"))
    assert names
    roots = (page.parent, SOURCE, ROOT)
    assert [name for name in names if not any((root / name).exists() for root in roots)] == []


MISSING = re.compile(r"\b(?:not?|nothing)\b[^.|]*\byet\b|\bso far\b|not there yet", re.IGNORECASE)


def test_pages_say_of_nothing_else_that_it_is_missing() -> None:
    terms = tomllib.loads((ROOT / "docs" / "missing.toml").read_text(encoding="utf-8"))["terms"]
    claims = [
        f"{named(page)}: {line}"
        for page in [*GUIDES, *PERFORMED, ROOT / "README.md", ROOT / "docs" / "README.md"]
        for line in page.read_text(encoding="utf-8").splitlines()
        if MISSING.search(line) and not any(term in line for term in terms)
    ]
    assert claims == []
    assert MISSING.search("There is no encryption yet")


def test_the_list_of_pages_is_whole() -> None:
    folder = ROOT / "docs"
    listed = set(LINK.findall((folder / "README.md").read_text(encoding="utf-8")))
    pages = {str(page.relative_to(folder)) for page in [*GUIDES, *PERFORMED]}
    assert pages - listed == set()


def test_the_readme_comes_to_its_first_command_on_two_screens() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert text[: text.index("```sh")].count("\n") <= 2 * 30
