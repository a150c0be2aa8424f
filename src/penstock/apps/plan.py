"""`penstock plan`: sizes, costs, and checks. Commands are imported when they are called."""

from __future__ import annotations

from importlib import import_module
from typing import Final

import click

_COMMANDS: Final[dict[str, tuple[str, str, str]]] = {
    "receive-path": (
        "penstock.apps.plan_receive_path",
        "receive_path",
        "Size windows, socket buffers, rings and timers of a receive path.",
    ),
    "capacity": (
        "penstock.apps.plan_capacity",
        "capacity",
        "Partitions, brokers, disks, network, latency.",
    ),
    "cost": ("penstock.apps.plan_cost", "cost", "What ways to carry the data cost a month."),
    "check-host": (
        "penstock.apps.plan_check_host",
        "check_host_command",
        "Say which layer of this host breaks the chain first.",
    ),
    "choose": ("penstock.apps.plan_choose", "choose", "Which technology fits, and why."),
    "keys": ("penstock.apps.plan_keys", "keys", "Skew and hot keys of a topic."),
}


class PlanGroup(click.Group):
    """A group whose commands live in modules of their own."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        entry = _COMMANDS.get(cmd_name)
        if entry is None:
            return None
        command: click.Command = getattr(import_module(entry[0]), entry[1])
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, entry[2]) for name, entry in _COMMANDS.items()])


@click.group("plan", cls=PlanGroup, short_help="Size it, cost it, check the host.")
def plan() -> None:
    """Size it, cost it, check the host.

    Every figure has a formula and a source: `--explain` shows them. `--output json` gives all of
    it to programs, `--plot FILE.svg` draws it, `--inputs FILE.toml` reads inputs from a file.
    """
