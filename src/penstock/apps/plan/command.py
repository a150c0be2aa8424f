"""Command group `penstock plan`: sizes, costs and checks."""

from __future__ import annotations

from typing import Final

import click

from penstock.apps.client.session import LazyGroup

_COMMANDS: Final = {
    "receive-path": (
        "plan.check_host",
        "receive_path",
        "Size windows, socket buffers, rings and timers of a receive path.",
    ),
    "capacity": ("plan.capacity", "capacity", "Size partitions, brokers, disks and networks."),
    "cost": ("plan.cost", "cost", "Compare the monthly cost of ways to carry data."),
    "check-host": (
        "plan.check_host",
        "check_host_command",
        "Report which layer of this host fails first.",
    ),
    "choose": ("plan.choose", "choose", "Recommend a technology, with reasons."),
    "keys": ("plan.keys", "keys", "Report the skew and the hot keys of a topic."),
}
SUMMARIES: Final = {name: summary for name, (_, _, summary) in _COMMANDS.items()}
"""One sentence about each plan."""


@click.group(
    "plan",
    cls=LazyGroup,
    entries=_COMMANDS,
    short_help="Size a cluster, compute its cost, check the host.",
)
def plan() -> None:
    """Size a cluster, compute its cost, check the host.

    Every figure has a formula and a source, which --explain shows. --output json writes the whole
    plan, --plot FILE.svg draws it, and --inputs FILE.toml reads its inputs from a file.
    """
