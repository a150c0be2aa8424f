"""Positions in a log, as kcat writes them.

beginning, earliest    the first record
end, latest            behind the last record
1234                   an offset
-10                    ten offsets before the end
s@ms, @ms              the first record at or after a timestamp
e@ms                   the same, as the end of a range
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import click

from penstock.base.settings import whole_number
from penstock.records.positions import READ_UNCOMMITTED

if TYPE_CHECKING:
    from penstock.client import Client

Kind = Literal["beginning", "end", "offset", "before_end", "time", "end_time"]


@dataclass(frozen=True, slots=True)
class At:
    """Position; by its kind, `value` is an offset, a number of offsets, or a timestamp in ms."""

    kind: Kind
    value: int = 0


_WORDS: dict[str, At] = {
    "beginning": At("beginning"),
    "earliest": At("beginning"),
    "end": At("end"),
    "latest": At("end"),
}
_KINDS: dict[str, Kind] = {
    "": "offset", "-": "before_end", "@": "time", "s@": "time", "e@": "end_time",
}  # fmt: skip
_FORM = re.compile(r"(|-|[se]?@)([0-9]+)")


def parse_position(text: str) -> At:
    """Parse a position.

    Raises:
        click.UsageError: the text is not a position.
    """
    if text in _WORDS:
        return _WORDS[text]
    found = _FORM.fullmatch(text)
    number = whole_number(found[2]) if found else None
    if found and number is not None:
        return At(_KINDS[found[1]], number)
    raise click.UsageError(
        f"offset {text!r}: must be beginning, end, a number, -N, s@milliseconds or e@milliseconds"
    )


def resolve(
    client: Client,
    topic: str,
    position: At,
    partitions: Sequence[int] | None,
    isolation: int = READ_UNCOMMITTED,
) -> dict[int, int]:
    """Return the offset of a position in each partition.

    With the isolation level READ_COMMITTED, the end of a log is before its open transactions.
    """
    latest = client.list_offsets(topic, "latest", partitions=partitions, isolation=isolation)
    if position.kind == "end":
        return latest
    if position.kind in ("time", "end_time"):
        found = client.list_offsets(
            topic, position.value, partitions=partitions, isolation=isolation
        )
        return {p: latest[p] if offset < 0 else offset for p, offset in found.items()}
    earliest = client.list_offsets(topic, "earliest", partitions=partitions)
    if position.kind == "beginning":
        return earliest
    if position.kind == "before_end":
        return {p: max(earliest[p], latest[p] - position.value) for p in latest}
    return dict.fromkeys(latest, position.value)
