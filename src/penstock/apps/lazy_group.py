"""Groups of commands that are imported at their first use."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import Any

import click


class LazyGroup(click.Group):
    """Group whose commands are imported at their first use.

    `entries` maps a command's name to its module in `penstock.apps`, the name in it, and its line
    of help.
    """

    def __init__(
        self, *arguments: Any, entries: Mapping[str, tuple[str, str, str]], **options: Any
    ) -> None:
        super().__init__(*arguments, **options)
        self._entries = entries

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self._entries)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        entry = self._entries.get(cmd_name)
        if entry is None:
            return None
        command: click.Command = getattr(import_module(f"penstock.apps.{entry[0]}"), entry[1])
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, entry[2]) for name, entry in self._entries.items()])
