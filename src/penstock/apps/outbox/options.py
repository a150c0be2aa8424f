"""Shared options of the outbox commands: root and topic, durations and sizes."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, Final

import click

_DURATION: Final = re.compile(r"([0-9]{1,12})(ms|s|m|h|d)")
_UNIT_MS: Final = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_SIZE: Final = re.compile(r"([0-9]{1,15})([kKmMgG]?)")
_UNIT_BYTES: Final = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30}

Command = Callable[..., Any]


def outbox_options(*, topic_required: bool = True) -> Callable[[Command], Command]:
    """Give a command `--root` and `-t`."""

    def wrap(command: Command) -> Command:
        command = click.option(
            "-t", "--topic", required=topic_required, help="Topic of the pointers."
        )(command)
        return click.option(
            "--root", required=True, envvar="PENSTOCK_OUTBOX_ROOT", metavar="DIRECTORY",
            help="The outbox's root (PENSTOCK_OUTBOX_ROOT).",
        )(command)  # fmt: skip

    return wrap


def parse_duration(text: str, option: str) -> int:
    """Return the milliseconds of `500ms`, `90s`, `15m`, `24h` or `7d`.

    Raises:
        click.UsageError: the text is invalid.
    """
    found = _DURATION.fullmatch(text)
    if found is None:
        raise click.UsageError(f"{option} {text}: must be a number and ms, s, m, h or d, as in 24h")
    return int(found.group(1)) * _UNIT_MS[found.group(2)]


def parse_size(text: str, option: str) -> int:
    """Return the bytes of `4096`, `64k`, `1m` or `2g`.

    Raises:
        click.UsageError: the text is invalid.
    """
    found = _SIZE.fullmatch(text)
    if found is None:
        raise click.UsageError(f"{option} {text}: must be a number of bytes, or one with k, m or g")
    return int(found.group(1)) * _UNIT_BYTES[found.group(2).lower()]
