"""Command group `penstock keys`: manages keyrings, which have the keys of encrypted fields."""

from __future__ import annotations

import sys
from collections.abc import Callable
from datetime import UTC, datetime
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from penstock.apps.client.session import (
    BadInput,
    State,
    counted,
    default_option,
    output_option,
    say,
    show,
)

if TYPE_CHECKING:
    from penstock.security.data.file_ring import KeyPlace

SHOWN_MAX: Final = 1_000
SUBJECTS_MAX: Final = 1_000_000
"""Most subjects that one command shreds or readmits."""
STDIN: Final = "-"


def _ring(command: Callable[..., None]) -> Callable[..., None]:
    """Add the options that locate a keyring, as one argument `place`."""

    @click.option(
        "--ring",
        required=True,
        envvar="PENSTOCK_KEYS",
        metavar="DIRECTORY",
        help="Directory of the keyring (PENSTOCK_KEYS).",
    )
    @click.option(
        "--master-key",
        envvar="PENSTOCK_KEYS_MASTER",
        metavar="FILE|env:NAME",
        help="Master key: a file, or an environment variable as env:NAME (PENSTOCK_KEYS_MASTER)."
        " Default: master.key in the keyring's directory.",
    )
    @wraps(command)
    def wrapped(*arguments: Any, ring: str, master_key: str | None, **options: Any) -> None:
        from penstock.security.data.file_ring import KeyPlace

        place = KeyPlace(ring=Path(ring).expanduser().absolute(), master=master_key)
        command(*arguments, place=place, **options)

    return wrapped  # fmt: skip


@click.group("keys", short_help="Manage the keys of encrypted fields.")
def keys() -> None:
    """Manage keyrings, which have a data key for each subject whose fields are encrypted.

    A subject is the person whom data is about, such as a customer or a patient. When a subject's
    key is deleted (shredded), everything encrypted for that subject reads as null.
    """


@keys.command("init", short_help="Create a keyring.")
@_ring
@output_option
def init(state: State, place: KeyPlace) -> None:
    """Create a keyring and, unless an environment variable has it, its master key.

    Keep a copy of the master key apart from the keyring: without it all encrypted data is lost.
    """
    from penstock.security.data.file_ring import FileKeyRing
    from penstock.security.data.master_keys import master_keys

    FileKeyRing.create(place.ring, master_keys(place.master_place)).close()
    where = place.master_place
    say(
        state, f"keyring {place.ring} created; its master key is {where}",
        ring=str(place.ring), master_key=where,
    )  # fmt: skip


@keys.command("list", short_help="Show subjects that have keys.")
@default_option(
    "--limit", SHOWN_MAX, "Largest number of subjects to show, the oldest first.",
    click.IntRange(0, SUBJECTS_MAX),
)  # fmt: skip
@_ring
@output_option
def list_keys(state: State, place: KeyPlace, limit: int) -> None:
    """List subjects that have keys, and count shredded subjects; never shows a key."""
    from penstock.security.data.file_ring import ring_at

    ring = ring_at(place)
    counts = ring.counts()
    rows = [
        {"subject": entry.subject, "made": _moment(entry.made_ms)} for entry in ring.entries(limit)
    ]
    title = f"{counts.living} subjects with keys, {counts.shredded} shredded"
    show(state, rows, ("subject", "made"), title=title)


@keys.command("rotate", short_help="Encrypt all keys with a new master key.")
@_ring
@output_option
def rotate(state: State, place: KeyPlace) -> None:
    """Create a new master key, and encrypt all keys of the ring with it, while the ring is in use.

    Afterwards, earlier copies of the ring are useless without the old master key. If the master key
    is in an environment variable, set the new one in the variable of that name with the suffix
    _NEXT.
    """
    from penstock.security.data.file_ring import ring_at

    count, todo = ring_at(place).rotate()
    text = f"{counted(count, 'key')} encrypted with a new master key"
    say(state, f"{text}; {todo}" if todo else text, keys=count, todo=todo)


@keys.command("shred", short_help="Delete subjects' keys permanently.")
@click.argument("subjects", nargs=-1, required=True, metavar="SUBJECT…")
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
@_ring
@output_option
def shred(state: State, place: KeyPlace, subjects: tuple[str, ...], yes: bool) -> None:
    """Delete the keys of subjects permanently: everything encrypted for them then reads as null.

    This cannot be undone, and a shredded subject gets no new key unless `readmit` allows it. With -
    as SUBJECT, the subjects are read from stdin, one per line. Exits with status 1 if a subject has
    no key.
    """
    from penstock.security.data.file_ring import ring_at

    if subjects == (STDIN,) and not yes:
        raise BadInput("subjects from stdin require --yes: the command cannot ask for confirmation")
    named = _subjects(subjects)
    ring = ring_at(place)
    if not yes:
        what = f"the key of {named[0]}" if len(named) == 1 else f"the keys of {len(named)} subjects"
        click.confirm(f"delete {what} permanently?", abort=True, err=True)
    _told(state, [(subject, ring.shred(subject)) for subject in named], "shredded", "has no key")


@keys.command("readmit", short_help="Allow new keys for shredded subjects.")
@click.argument("subjects", nargs=-1, required=True, metavar="SUBJECT…")
@_ring
@output_option
def readmit(state: State, place: KeyPlace, subjects: tuple[str, ...]) -> None:
    """Allow new keys for shredded subjects.

    Data that was encrypted before the shredding stays null. With - as SUBJECT, the subjects are
    read from stdin, one per line.
    """
    from penstock.security.data.file_ring import ring_at

    ring = ring_at(place)
    found = [(subject, ring.readmit(subject)) for subject in _subjects(subjects)]
    _told(state, found, "readmitted", "was not shredded")


def _moment(at_ms: int) -> str:
    return datetime.fromtimestamp(at_ms // 1_000, UTC).isoformat()


def _subjects(given: tuple[str, ...]) -> list[str]:
    if given != (STDIN,):
        return list(dict.fromkeys(given))
    lines = sys.stdin.read().splitlines()
    named = list(dict.fromkeys(filter(None, lines)))
    if not 0 < len(named) <= SUBJECTS_MAX:
        raise BadInput(f"stdin has {len(named)} subjects; it must have from 1 to {SUBJECTS_MAX}")
    return named


def _told(state: State, found: list[tuple[str, bool]], done: str, otherwise: str) -> None:
    rows = [{"subject": subject, done: was} for subject, was in found]
    if state.json:
        show(state, rows, ("subject", done))
    else:
        for subject, was in found:
            click.echo(f"{subject} {done if was else otherwise}", err=not was)
    if not all(was for _, was in found):
        raise click.exceptions.Exit(1)
