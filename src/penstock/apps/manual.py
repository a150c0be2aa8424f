r"""Commands `penstock completion` and `penstock man`: documents for shells and for `man`.

Manual pages are generated from the commands, a page for each command of the root. Its subcommands
are sections of the page. Text is escaped for roff: backslashes, hyphens, and dots or apostrophes
that begin a line; other characters than ASCII are written as `\[uXXXX]`.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import click
from click.shell_completion import get_completion_class

from penstock import __version__

SHELLS: Final = ("bash", "zsh", "fish")
COMPLETION_VARIABLE: Final = "_PENSTOCK_COMPLETE"
_VERBATIM: Final = "\b"


@click.command("completion")
@click.argument("shell", type=click.Choice(SHELLS))
@click.pass_context
def completion(context: click.Context, shell: str) -> None:
    """Print the script with which a shell completes commands, options and their values.

    \b
    bash  penstock completion bash > ~/.local/share/bash-completion/completions/penstock
    zsh   penstock completion zsh > DIR/_penstock, for a directory DIR of $fpath
    fish  penstock completion fish > ~/.config/fish/completions/penstock.fish
    """
    click.echo(completion_script(context.find_root().command, shell))


def completion_script(root: click.Command, shell: str) -> str:
    """Return the completion script of `bash`, `zsh` or `fish`."""
    kind = get_completion_class(shell)
    if kind is None:
        raise click.UsageError(f"shell {shell!r}: must be one of {', '.join(SHELLS)}")
    return kind(root, {}, "penstock", COMPLETION_VARIABLE).source()


@click.command("man")
@click.option(
    "--directory", type=click.Path(path_type=Path, file_okay=False), required=True,
    help="Directory of section 1, such as ~/.local/share/man/man1. It is created if needed.",
)  # fmt: skip
@click.pass_context
def man(context: click.Context, directory: Path) -> None:
    """Write the manual pages of all commands: penstock.1, penstock-topic.1 and so on."""
    directory.mkdir(parents=True, exist_ok=True)
    pages = dict(manual_pages(context.find_root().command))
    for name, text in pages.items():
        (directory / f"{name}.1").write_text(text)
    click.echo(f"{len(pages)} manual pages are in {directory}")


def manual_pages(root: click.Command) -> Iterator[tuple[str, str]]:
    """Yield the name and the roff text of each manual page."""
    context = click.Context(root, info_name="penstock")
    for command, inside in (root, context), *_subcommands(root, context):
        yield _name(inside), _page(command, inside)


def _name(context: click.Context) -> str:
    return context.command_path.replace(" ", "-")


def _subcommands(
    command: click.Command, context: click.Context
) -> Iterator[tuple[click.Command, click.Context]]:
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            found = command.get_command(context, name)
            if found is not None:
                yield found, click.Context(found, info_name=name, parent=context)


def _page(command: click.Command, context: click.Context) -> str:
    name = _name(context)
    lines = [
        f'.TH {_escaped(name.upper())} 1 "" "Penstock {__version__}" "Penstock"',
        ".ad l",
        ".SH NAME",
        f"{_escaped(name)} \\- {_escaped(command.get_short_help_str(1000).rstrip('.'))}",
        ".SH SYNOPSIS",
        *_usage(command, context),
        ".SH DESCRIPTION",
        *_text(command.help or ""),
        *_options(command, context, ".SH OPTIONS"),
    ]
    if context.parent is not None:
        for found, inside in _descendants(command, context):
            lines += [f".SH {_quoted(inside.command_path.upper())}", *_usage(found, inside), ".PP"]
            lines += [*_text(found.help or ""), *_options(found, inside, ".SS Options")]
        lines += [".SH SEE ALSO", ".BR penstock (1)"]
    else:
        lines.append(".SH COMMANDS")
        for found, inside in _subcommands(command, context):
            lines += [".TP", f".BR {_escaped(_name(inside))} (1)"]
            lines.append(_escaped(found.get_short_help_str(1000)))
    return "\n".join(lines) + "\n"


def _descendants(
    command: click.Command, context: click.Context
) -> Iterator[tuple[click.Command, click.Context]]:
    for found, inside in _subcommands(command, context):
        yield found, inside
        yield from _descendants(found, inside)


def _usage(command: click.Command, context: click.Context) -> list[str]:
    pieces = " ".join(command.collect_usage_pieces(context))
    return [f".B {_escaped(context.command_path)}", _escaped(pieces)]


def _options(command: click.Command, context: click.Context, heading: str) -> list[str]:
    lines = []
    for option in command.params:
        record = option.get_help_record(context) if isinstance(option, click.Option) else None
        if record is not None:
            lines += [".TP", f".B {_escaped(record[0])}", _escaped(" ".join(record[1].split()))]
    return [heading, *lines] if lines else []


def _text(text: str) -> Iterator[str]:
    """Yield paragraphs; a paragraph that begins with `\\b` keeps its lines, as in click."""
    for number, paragraph in enumerate(inspect.cleandoc(text).split("\n\n")):
        if number:
            yield ".PP"
        lines = paragraph.strip("\n").splitlines()
        if lines and lines[0].strip() == _VERBATIM:
            yield from [".nf", *map(_escaped, lines[1:]), ".fi"]
        else:
            yield _escaped(" ".join(line.strip() for line in lines))


def _quoted(text: str) -> str:
    return '"' + _escaped(text).replace('"', "\\(dq") + '"'


def _escaped(text: str) -> str:
    written = text.replace("\\", "\\e").replace("-", "\\-")
    written = "".join(
        letter if letter.isascii() else f"\\[u{ord(letter):04X}]" for letter in written
    )
    return f"\\&{written}" if written.startswith((".", "'")) else written
