"""Manual pages and completion scripts, read by the programs that use them."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import click
import pytest
from compat.parts import debian

from penstock.apps.cli import root
from penstock.apps.manual import SHELLS, completion_script, manual_pages
from tests.apps.conftest import Run

BIN = Path(sys.executable).parent

COMPLETE = """
source "$1"
COMP_WORDS=(penstock {words}) COMP_CWORD={index} COMPREPLY=()
_penstock_completion penstock
printf '%s\\n' "${{COMPREPLY[@]}}"
"""

FISH = """
source $argv[1]
complete --do-complete 'penstock topic cr'
"""

ZSH = """
module_path=($1)
compdef() { :; }
compadd() { print -rl -- ${(P)argv[-1]}; }
_describe() { print -rl -- ${(P)argv[3]}; }
source $2
words=(penstock topic cre) CURRENT=3
_penstock_completion
"""


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    folder = tmp_path_factory.mktemp("man1")
    for name, text in manual_pages(root):
        (folder / f"{name}.1").write_text(text)
    return sorted(folder.iterdir())


@pytest.fixture
def path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", f"{BIN}{os.pathsep}{os.environ['PATH']}")


def test_there_is_a_page_for_each_command(pages: list[Path]) -> None:
    context = click.Context(root)
    assert isinstance(root, click.Group)
    expected = {f"penstock-{name}" for name in root.list_commands(context)} | {"penstock"}
    assert {page.stem for page in pages} == expected


def test_groff_accepts_every_page(pages: list[Path]) -> None:
    words = ["groff", "-man", "-ww", "-Tutf8", *map(str, pages)]
    done = subprocess.run(words, capture_output=True, text=True, check=True)
    assert done.stderr == ""
    assert done.stdout.count("PENSTOCK") > 2 * len(pages)


def test_a_page_shows_characters_as_they_are(pages: list[Path]) -> None:
    (page,) = (page for page in pages if page.stem == "penstock-topic")
    words = ["groff", "-man", "-Tutf8", "-P-cbou", str(page)]
    shown = subprocess.run(words, capture_output=True, text=True, check=True).stdout
    assert "HOST:PORT,…" in shown
    assert "\n       penstock topic [OPTIONS] COMMAND" in shown


@pytest.mark.long
def test_mandoc_finds_no_error(pages: list[Path]) -> None:
    program = shutil.which("mandoc") or debian("mandoc") / "usr/bin/mandoc"
    words = [str(program), "-Tlint", "-Wwarning", *map(str, pages)]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    # `mandoc` knows no .ad in pages of -man, and a page without a date is as intended.
    known = ("missing date", "unknown font", "skipping paragraph macro")
    lines = [line for line in done.stdout.splitlines() if not any(word in line for word in known)]
    assert lines == []


def test_man_writes_the_pages(bare: Run, tmp_path: Path) -> None:
    done = bare("man", "--directory", str(tmp_path / "man1"))
    assert (tmp_path / "man1" / "penstock-serve.1").read_text().startswith(".TH PENSTOCK")
    assert done.out == f"{len(list((tmp_path / 'man1').iterdir()))} manual pages are in" + (
        f" {tmp_path / 'man1'}\n"
    )


def test_bash_completes_commands_and_options(path: None, tmp_path: Path) -> None:
    script = tmp_path / "completion"
    script.write_text(completion_script(root, "bash"))
    for words, index, expected in (
        ("to", 1, ["topic"]),
        ("topic cre", 2, ["create"]),
        ("--out", 1, ["--output"]),
        ("completion ''", 2, [*SHELLS]),
    ):
        text = COMPLETE.format(words=words, index=index)
        command = ["bash", "--norc", "-c", text, "bash", str(script)]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        assert done.stdout.split() == expected, done.stderr


@pytest.mark.long
def test_fish_completes_commands(path: None, tmp_path: Path) -> None:
    fish = debian("fish")
    script, program = tmp_path / "penstock.fish", tmp_path / "program.fish"
    script.write_text(completion_script(root, "fish"))
    program.write_text(FISH)
    libraries = os.pathsep.join(map(str, fish.glob("usr/lib/*-linux-gnu")))
    environment = {**os.environ, "LD_LIBRARY_PATH": libraries, "HOME": str(tmp_path)}
    done = subprocess.run(
        [fish / "usr/bin/fish", "--no-config", program, script],
        env=environment, capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert done.stdout.split()[0] == "create", done.stderr


@pytest.mark.long
def test_zsh_completes_commands(path: None, tmp_path: Path) -> None:
    zsh, script = debian("zsh"), tmp_path / "_penstock"
    script.write_text(completion_script(root, "zsh"))
    (modules,) = zsh.glob("usr/lib/*/zsh/*")
    words = [str(zsh / "bin/zsh"), "-f", "-c", ZSH, "zsh", str(modules), str(script)]
    done = subprocess.run(words, capture_output=True, text=True, check=True)
    assert done.stdout.split()[0].partition(":")[0] == "create", done.stderr


def test_an_unknown_shell_is_refused(bare: Run) -> None:
    done = bare("completion", "csh")
    assert done.status == 2
    assert "'bash', 'zsh', 'fish'" in done.err
