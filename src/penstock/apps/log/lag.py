"""Evaluated lag of groups, for `penstock group watch`.

Each broker evaluates the groups that it coordinates, so all brokers' admin interfaces are asked.
Groups that none of them reports are evaluated here, by the same rules, from the offsets that the
Kafka protocol returns. It does not return times of commits: such a group is evaluated from the
changes seen while the command runs, and a commit of an unchanged offset counts as silence.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final
from uuid import UUID

from penstock.apps.client.session import COLUMN_GAP, write_rich
from penstock.base.errors import PenstockError
from penstock.base.ids import TopicPartition
from penstock.base.system import SYSTEM_CLOCK, Clock

if TYPE_CHECKING:
    from rich.console import RenderableType

    from penstock.apps.client.session import State
    from penstock.broker.lag.rules import Ends, Window
    from penstock.broker.lag.service import EvaluatedPartition
    from penstock.client import Client
    from penstock.client.groups import GroupListing

Row = Mapping[str, Any]

NOT_FOUND: Final = "NOTFOUND"
SHARE: Final = "share"
UNKNOWN: Final = "-"
"""Cell of an unknown value."""
_STYLES: Final = {"OK": "green", "WARN": "yellow", NOT_FOUND: "dim"}
_BAD: Final = "red"
_NO_TOPIC_ID: Final = UUID(int=0)
_ORDER: Final = (NOT_FOUND, "REWIND", "STALL", "STOP", "ERR", "WARN", "OK")


class LagWatch:
    """Look-up of the evaluated lag of groups: all groups, or those with the given names."""

    def __init__(
        self,
        state: State,
        client: Client,
        names: Collection[str] = (),
        *,
        admin: str | None = None,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        """`admin` names the admin interfaces to ask; by default those that brokers report."""
        self._state = state
        self._client = client
        self._names = frozenset(names)
        self._admin = admin
        self._clock = clock
        self._windows: dict[str, dict[tuple[str, int], Window]] = {}
        self._ends: dict[tuple[str, int], Ends] = {}

    def look(self) -> list[Row]:
        """Return a row for each group, those in the worst states first.

        Raises:
            PenstockError: no broker answers.
        """
        rows = {row["group_id"]: row for row in self._reported() if self._wanted(row["group_id"])}
        for listed in self._client.list_groups():
            name = listed.group_id
            if self._wanted(name) and name not in rows and listed.group_type.lower() != SHARE:
                rows[name] = self._evaluated(listed)
        for name in self._names - rows.keys():
            rows[name] = _not_found(name)
        return sorted(
            rows.values(),
            key=lambda row: (_ORDER.index(row["state"]), -row["lag_records"], row["group_id"]),
        )

    def _wanted(self, name: str) -> bool:
        return not self._names or name in self._names

    def _reported(self) -> Iterator[Row]:
        from penstock.apps.checks.brokers import admin_answers, known_admins

        addresses: Sequence[str] = ()
        with suppress(PenstockError):  # brokers of other products report no admin interface
            addresses = known_admins(self._state, self._client.broker_states(), self._admin)
        for answer in admin_answers(self._state, addresses, "/v1/lag"):
            yield from answer["groups"]

    def _evaluated(self, listed: GroupListing) -> Row:
        from penstock.broker.admin.lag import group_row
        from penstock.broker.lag.rules import Window
        from penstock.broker.lag.service import group_of, is_abandoned

        name = listed.group_id
        committed = self._client.committed(name)
        windows = self._windows.setdefault(name, {})
        for where in windows.keys() - committed.keys():
            del windows[where]
        abandoned = is_abandoned(listed.state, listed.protocol_type)
        found = []
        for topic in sorted({topic for topic, _ in committed}):
            ends = self._client.list_offsets(topic, "latest")
            starts = self._client.list_offsets(topic, "earliest")
            for where in [where for where in committed if where[0] == topic]:
                window = windows.setdefault(where, Window(_NO_TOPIC_ID, self._clock.now_ms()))
                end, start = ends.get(where[1]), starts.get(where[1])
                offset = committed[where].offset
                found.append(self._partition(where, offset, window, end, start, abandoned))
        return group_row(group_of(name, found, abandoned=abandoned))

    def _partition(
        self,
        where: tuple[str, int],
        offset: int,
        window: Window,
        end: int | None,
        start: int | None,
        abandoned: bool,
    ) -> EvaluatedPartition:
        from penstock.broker.lag.rules import Ends, Position, evaluate
        from penstock.broker.lag.service import EvaluatedPartition

        now_ms = self._clock.now_ms()
        ends = self._ends.setdefault(where, Ends())
        if end is not None:
            ends.add(end, now_ms)
            if offset >= end:
                window.caught_up_ms = now_ms
        if window.offset != offset:
            window.add(offset, now_ms, end)
        position = Position(
            now_ms=now_ms,
            offset=offset,
            end=end,
            start=start,
            unread_ms=None if not end or offset >= end else self._unread_ms(where, offset),
            produced_per_second=ends.per_second(),
            abandoned=abandoned,
        )
        return EvaluatedPartition(
            TopicPartition(*where), window, position, evaluate(window, position)
        )

    def _unread_ms(self, where: tuple[str, int], offset: int) -> int | None:
        """Return the timestamp of the first record from an offset on; None if it is unknown."""
        from penstock.records.columnar.rows import read_rows

        topic, partition = where
        with suppress(PenstockError):
            found = self._client.fetch_raw(topic, partition, offset)
            rows = read_rows(found.data, columns=("timestamp",), start_offset=offset)
            for timestamp in rows.longs("timestamp")[:1].tolist():
                return int(timestamp)
        return None


def _not_found(name: str) -> Row:
    from penstock.broker.admin.lag import group_row
    from penstock.broker.lag.rules import State, Summary
    from penstock.broker.lag.service import EvaluatedGroup

    summary = Summary(state=State.NOTFOUND, lag=0)
    group = EvaluatedGroup(group_id=name, summary=summary, partitions=(), abandoned=False)
    return {**group_row(group), "explanation": "The group does not exist."}


# The table.


def table(rows: Sequence[Row], trouble: str = "") -> RenderableType:
    """Return a table of groups, and below it the reasons of some of them.

    These are the groups that are not OK, and those with lag that all members have left. `trouble`
    is a line about a failed look.
    """
    from rich import box
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    if not rows:
        return Text(trouble or "no groups")
    made = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for name in ("group", "state"):
        made.add_column(name, overflow="fold")
    for name in _COLUMNS:
        made.add_column(name, justify="right", no_wrap=True)
    lines = Text()
    for row in rows:
        style = _STYLES.get(row["state"], _BAD)
        cells = [show(row) for show in _COLUMNS.values()]
        made.add_row(Text(row["group_id"]), Text(row["state"], style=style), *map(Text, cells))
        if row["state"] != "OK" or (row["abandoned"] and row["lag_records"]):
            lines.append(f"{row['group_id']} ", style="bold")
            lines.append(f"{row['state']}: ", style=style)
            lines.append(f"{row['explanation']}\n")
    lines.append(trouble, style=_BAD)
    return Group(made, lines) if lines.plain else made


def write_groups(rows: Sequence[Row]) -> None:
    """Write the table to stdout; only columns without numbers are folded."""
    columns_min = sum(
        COLUMN_GAP + max([len(name), *(len(show(row)) for row in rows)])
        for name, show in _COLUMNS.items()
    )
    write_rich(table(rows), columns_min=columns_min)


def _seconds(row: Row) -> str:
    from penstock.broker.lag.rules import duration

    return UNKNOWN if row["seconds_behind"] is None else duration(row["seconds_behind"])


def _rate(name: str) -> Callable[[Row], str]:
    return lambda row: UNKNOWN if row[name] is None else f"{row[name]:,.1f}"


def _forecast(row: Row) -> str:
    from penstock.broker.lag.rules import duration

    outlook = str(row["forecast"]).replace("_", " ")
    if outlook == "unknown":
        return UNKNOWN
    seconds = row["forecast_seconds"]
    return f"{outlook} in {duration(seconds)}" if seconds else outlook


_COLUMNS: Final[dict[str, Callable[[Row], str]]] = {
    "lag": lambda row: f"{row['lag_records']:,}",
    "behind": _seconds,
    "read/s": _rate("consumed_per_second"),
    "written/s": _rate("produced_per_second"),
    "forecast": _forecast,
}
