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

from penstock.apps.client.session import COLUMN_GAP
from penstock.base.errors import PenstockError
from penstock.base.system import SYSTEM_CLOCK, Clock

if TYPE_CHECKING:
    from rich.console import RenderableType

    from penstock.apps.client.session import State
    from penstock.broker.lag.rules import Ends, Evaluation, Position, Window
    from penstock.client import Client
    from penstock.client.groups import Committed

Row = Mapping[str, Any]

NOT_FOUND: Final = "NOTFOUND"
SHARE: Final = "share"
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
                rows[name] = self._evaluated(name)
        for name in self._names - rows.keys():
            rows[name] = _row(name, NOT_FOUND, 0, "The group does not exist.")
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

    def _evaluated(self, name: str) -> Row:
        from penstock.broker.lag.rules import Window, summary_of

        committed = self._client.committed(name)
        windows = self._windows.setdefault(name, {})
        for where in windows.keys() - committed.keys():
            del windows[where]
        now_ms = self._clock.now_ms()
        found: list[tuple[str, Evaluation, Window, Position]] = []
        for topic in sorted({topic for topic, _ in committed}):
            ends = self._client.list_offsets(topic, "latest")
            starts = self._client.list_offsets(topic, "earliest")
            for where in [where for where in committed if where[0] == topic]:
                window = windows.setdefault(where, Window(_NO_TOPIC_ID, now_ms))
                end, start = ends.get(where[1]), starts.get(where[1])
                found.append(self._partition(where, committed[where], window, end, start))
        summary = summary_of([evaluation for _, evaluation, _, _ in found])
        if summary.worst is None:
            return _row(name, summary.state.name, 0, "The group has no committed offsets.")
        where_text, worst, _, _ = found[summary.worst]
        return _row(
            name,
            summary.state.name,
            len(found),
            f"{where_text}: {worst.explanation}" if worst.lag else worst.explanation,
            lag_records=summary.lag,
            seconds_behind=summary.seconds_behind,
            consumed_per_second=summary.consumed_per_second,
            produced_per_second=summary.produced_per_second,
            forecast=summary.forecast.outlook.value,
            forecast_seconds=summary.forecast.seconds,
        )

    def _partition(
        self,
        where: tuple[str, int],
        committed: Committed,
        window: Window,
        end: int | None,
        start: int | None,
    ) -> tuple[str, Evaluation, Window, Position]:
        from penstock.broker.lag.rules import Ends, Position, evaluate

        now_ms, offset = self._clock.now_ms(), committed.offset
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
        )
        topic, partition = where
        return f"{topic}-{partition}", evaluate(window, position), window, position

    def _unread_ms(self, where: tuple[str, int], offset: int) -> int | None:
        """Return the timestamp of the first record from an offset on; None if it is unknown."""
        topic, partition = where
        with suppress(PenstockError):
            found = self._client.read_arrow(
                topic, partitions=[partition], start={partition: offset}, max_records=1,
                columns=["timestamp"],
            )  # fmt: skip
            for row in found.to_pylist():
                return int(row["timestamp"])
        return None


def _row(name: str, state: str, partitions: int, explanation: str, **facts: Any) -> Row:
    return {
        "group_id": name,
        "partition_count": partitions,
        "state": state,
        "lag_records": 0,
        "seconds_behind": None,
        "consumed_per_second": None,
        "produced_per_second": None,
        "forecast": "unknown",
        "forecast_seconds": None,
        **facts,
        "explanation": explanation,
    }


# The table.


def table(rows: Sequence[Row], trouble: str = "") -> RenderableType:
    """Return a table of groups, and below it one line for each group that is not OK.

    `trouble` is a line about a failed look.
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
        if row["state"] != "OK":
            lines.append(f"{row['group_id']} ", style="bold")
            lines.append(f"{row['state']}: ", style=style)
            lines.append(f"{row['explanation']}\n")
    lines.append(trouble, style=_BAD)
    return Group(made, lines) if lines.plain else made


def columns_min(rows: Sequence[Row]) -> int:
    """Return the width that the columns of numbers need, in characters."""
    return sum(
        COLUMN_GAP + max([len(name), *(len(show(row)) for row in rows)])
        for name, show in _COLUMNS.items()
    )


def _seconds(row: Row) -> str:
    from penstock.broker.lag.rules import duration

    return "" if row["seconds_behind"] is None else duration(row["seconds_behind"])


def _rate(name: str) -> Callable[[Row], str]:
    return lambda row: "" if row[name] is None else f"{row[name]:,.1f}"


def _forecast(row: Row) -> str:
    from penstock.broker.lag.rules import duration

    outlook = str(row["forecast"]).replace("_", " ")
    if outlook == "unknown":
        return ""
    seconds = row["forecast_seconds"]
    return f"{outlook} in {duration(seconds)}" if seconds else outlook


_COLUMNS: Final[dict[str, Callable[[Row], str]]] = {
    "lag": lambda row: f"{row['lag_records']:,}",
    "behind": _seconds,
    "read/s": _rate("consumed_per_second"),
    "written/s": _rate("produced_per_second"),
    "forecast": _forecast,
}
