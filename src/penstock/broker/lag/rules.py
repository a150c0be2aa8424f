"""Rules that evaluate a group's lag by the trend of its commits, without thresholds and I/O.

A `Window` keeps the last `COMMITS_MAX` commits of a group in a partition, at least `DISTANCE_MS`
apart: faster commits are merged, so that a window covers almost a minute. `state_of` applies these
rules in order:

    lag 0                                                          OK
    silence longer than the time that the window covers,
    and the log still has unread records                           STOP
    the newest offset is below an earlier one                      REWIND
    the log has deleted records that the group has not read        ERR
    the lag was 0 at any commit of the window                      OK
    all commits have the same offset                               STALL
    the lag decreased at no commit                                 WARN
    otherwise                                                      OK

Silence is the time since the last commit, or since the group was last seen without lag if that is
later. A group that has nothing to commit is therefore not stopped. While a window has less than
`COMMITS_MAX` commits, STALL and WARN do not apply, and STOP requires more: a silence of
`PATIENCE_MS` or, if the group's interval of commits is unknown, of `PATIENCE_ALONE_MS`, since this
broker has observed the group. A restart of the broker thus causes no false alarm.

Source: the wiki of LinkedIn's Burrow, "Consumer Lag Evaluation Rules", and its `caching.go`. The
meaning of silence, ERR for deleted records, and the treatment of incomplete windows are ours.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Sequence
from enum import IntEnum, StrEnum
from itertools import pairwise
from typing import TYPE_CHECKING, Final, NamedTuple

from msgspec import Struct

if TYPE_CHECKING:
    from uuid import UUID

COMMITS_MAX: Final = 10
"""Commits of a complete window, as in Burrow."""
DISTANCE_MS: Final = 5_000
"""Smallest time between two commits of a window, Kafka's default `auto.commit.interval.ms`."""
PATIENCE_MS: Final = 300_000
"""Silence after which a group with an incomplete window has stopped. It is Kafka's default
`max.poll.interval.ms`, after which a live consumer has polled or lost its partitions."""
PATIENCE_ALONE_MS: Final = 3_600_000
"""The same for a window with one commit, which shows no interval between commits."""
ENDS_MAX: Final = 10
"""Number of different end offsets that are kept of a partition."""
RATE_TOLERANCE: Final = 0.05
"""Relative difference of two rates below which the lag counts as steady. Samples and commits have
different times, so equal rates are measured with a difference."""
UNKNOWN: Final = -1
_FIELDS: Final = 3
_MS: Final = 1000


class State(IntEnum):
    """State of a group in a partition; higher numbers are worse. The numbers are Burrow's."""

    NOTFOUND = 0
    OK = 1
    WARN = 2
    ERR = 3
    STOP = 4
    STALL = 5
    REWIND = 6


class Outlook(StrEnum):
    """Forecast for a group in a partition, if both rates stay as they are."""

    CAUGHT_UP = "caught_up"
    CATCHES_UP = "catches_up"
    STEADY = "steady"
    STAYS_BEHIND = "stays_behind"
    LOSES_RECORDS = "loses_records"
    UNKNOWN = "unknown"


class Commit(NamedTuple):
    """Committed offset, its time in ms, and the lag in records then; None if it was unknown."""

    offset: int
    at_ms: int
    lag: int | None


class Window:
    """Last commits of a group in a partition, oldest first, in at most 240 bytes of numbers."""

    __slots__ = ("_values", "caught_up_ms", "last_ms", "observed_ms", "topic_id")

    def __init__(self, topic_id: UUID, observed_ms: int) -> None:
        """`observed_ms` is the time since which this broker has observed the group."""
        self.topic_id = topic_id
        self.observed_ms = observed_ms
        self.last_ms = UNKNOWN
        """Time of the last commit."""
        self.caught_up_ms = UNKNOWN
        """Latest known time at which the group had no lag."""
        self._values = array("q")

    def __len__(self) -> int:
        return len(self._values) // _FIELDS

    @property
    def complete(self) -> bool:
        return len(self) == COMMITS_MAX

    @property
    def offset(self) -> int:
        """Offset of the last commit; -1 for an empty window."""
        return self._values[-_FIELDS] if self._values else UNKNOWN

    def commits(self) -> list[Commit]:
        values = self._values
        return [
            Commit(values[at], values[at + 1], None if values[at + 2] < 0 else values[at + 2])
            for at in range(0, len(values), _FIELDS)
        ]

    def consumed_per_second(self, now_ms: int) -> float | None:
        """Return the records read per second since the last rewind; None for one commit.

        The time since the last commit counts once it exceeds the mean interval between commits, and
        less this interval. So the rate falls when a group stops.
        """
        values = self._values
        offsets = list(values[::_FIELDS])
        begin = 0
        if offsets != sorted(offsets):
            begin = max(i for i in range(1, len(offsets)) if offsets[i] < offsets[i - 1])
        if len(offsets) - begin < 2:
            return None
        began_ms, last_ms = values[begin * _FIELDS + 1], values[-2]
        interval_ms = (last_ms - began_ms) / (len(offsets) - begin - 1)
        elapsed_ms = max(1, last_ms - began_ms, now_ms - interval_ms - began_ms)
        return (offsets[-1] - offsets[begin]) / elapsed_ms * _MS

    def add(self, offset: int, at_ms: int, end: int | None) -> None:
        """Add a commit; `end` is the partition's end offset, if known.

        A commit replaces the last one if both follow the one before within `DISTANCE_MS`, unless
        its offset is smaller.
        """
        values = self._values
        lag = UNKNOWN if end is None else max(0, end - offset)
        count = len(values)
        if count > _FIELDS and offset >= values[-3] and at_ms - values[-5] < DISTANCE_MS:
            del values[-_FIELDS:]
        elif count == COMMITS_MAX * _FIELDS:
            del values[:_FIELDS]
        values.extend((offset, at_ms, lag))
        self.last_ms = max(self.last_ms, at_ms)
        if lag == 0:
            self.caught_up_ms = max(self.caught_up_ms, at_ms)


class Ends:
    """Last different end offsets of a partition, each with the first and last time it was seen."""

    __slots__ = ("_values", "windows")

    def __init__(self) -> None:
        self._values = array("q")
        self.windows = 0
        """Number of windows of the partition."""

    @property
    def end(self) -> int | None:
        return self._values[-3] if self._values else None

    def add(self, end: int, at_ms: int) -> None:
        values = self._values
        if values and values[-3] == end:
            values[-1] = at_ms
            return
        if len(values) == ENDS_MAX * _FIELDS:
            del values[:_FIELDS]
        values.extend((end, at_ms, at_ms))

    def per_second(self) -> float | None:
        """Return the records appended per second; None if they are not known yet."""
        values = self._values
        if not values or values[-1] <= values[1]:
            return None
        return max(0, values[-3] - values[0]) / (values[-1] - values[1]) * _MS


class Position(Struct, frozen=True, kw_only=True):
    """Facts about a group in a partition at one time.

    `end` is the first offset that consumers cannot read yet. `unread_ms` is the timestamp of the
    first unread record. The log keeps records for `retention_ms` after their timestamp, and about
    `retention_records` of them. None means unknown, and for the last two also unlimited.
    """

    now_ms: int
    offset: int
    end: int | None
    start: int | None = None
    unread_ms: int | None = None
    produced_per_second: float | None = None
    retention_ms: int | None = None
    retention_records: float | None = None
    abandoned: bool = False

    @property
    def lag(self) -> int | None:
        return None if self.end is None else max(0, self.end - self.offset)

    @property
    def lost(self) -> int:
        """Number of unread records that the log has deleted already."""
        return 0 if self.start is None else max(0, self.start - self.offset)

    @property
    def seconds_behind(self) -> float | None:
        """Age of the first unread record; 0 without lag.

        The age grows while a record waits, even if no further records arrive. A difference from
        the newest record's timestamp would not.
        """
        if self.lag == 0:
            return 0.0
        if self.unread_ms is None or self.unread_ms < 0:
            return None
        return max(0, self.now_ms - self.unread_ms) / _MS


class Forecast(Struct, frozen=True, kw_only=True):
    """Outlook, and the seconds until it happens; None if it has no such time."""

    outlook: Outlook
    seconds: float | None = None


class Evaluation(Struct, frozen=True, kw_only=True):
    """State of a group in a partition. None means unknown."""

    state: State
    lag: int | None
    seconds_behind: float | None
    consumed_per_second: float | None
    produced_per_second: float | None
    forecast: Forecast


def evaluate(window: Window, position: Position) -> Evaluation:
    """Return the evaluation of a group in a partition."""
    lag = position.lag
    commits = window.commits() if lag else []
    stopped = bool(lag) and has_stopped(
        commits,
        now_ms=position.now_ms,
        last_ms=window.last_ms,
        caught_up_ms=window.caught_up_ms,
        observed_ms=None if window.complete else window.observed_ms,
    )
    state = state_of(
        commits, lag=lag, stopped=stopped, complete=window.complete, lost=position.lost
    )
    idle = position.abandoned or state in (State.STOP, State.STALL)
    consumed = 0.0 if idle else window.consumed_per_second(position.now_ms)
    return Evaluation(
        state=state,
        lag=lag,
        seconds_behind=position.seconds_behind,
        consumed_per_second=consumed,
        produced_per_second=position.produced_per_second,
        forecast=forecast_of(position, consumed),
    )


def has_stopped(
    commits: Sequence[Commit],
    *,
    now_ms: int,
    last_ms: int,
    caught_up_ms: int = UNKNOWN,
    observed_ms: int | None = None,
) -> bool:
    """Return whether a group has been silent for too long.

    `last_ms` is the time of the last commit, and `caught_up_ms` the last time without lag.
    `observed_ms` is the time since which an incomplete window is filled; None for a complete one.
    """
    since_ms = max(last_ms, caught_up_ms)
    span_ms = last_ms - commits[0].at_ms if commits else 0
    if observed_ms is None:
        return now_ms - since_ms > span_ms
    patience_ms = PATIENCE_MS if len(commits) > 1 else PATIENCE_ALONE_MS
    return now_ms - max(since_ms, observed_ms) > max(span_ms, patience_ms)


def state_of(
    commits: Sequence[Commit], *, lag: int | None, stopped: bool, complete: bool, lost: int = 0
) -> State:
    """Return the state by the rules above; an unknown lag is OK.

    `stopped` is true if the silence is too long, `complete` if the window is complete, and `lost`
    is the number of unread records that were deleted.
    """
    if not lag or not commits:
        return State.OK
    if stopped and lag > lost:
        return State.STOP
    if commits[-1].offset < max(commit.offset for commit in commits):
        return State.REWIND
    if lost:
        return State.ERR
    if not complete or any(commit.lag == 0 for commit in commits):
        return State.OK
    if all(commit.offset == commits[0].offset for commit in commits):
        return State.STALL
    lags = [commit.lag for commit in commits if commit.lag is not None]
    decreased = any(after < before for before, after in pairwise(lags))
    return State.OK if decreased or not lags else State.WARN


def forecast_of(position: Position, consumed: float | None) -> Forecast:
    """Return what happens if production and consumption continue at their present rates."""
    lag, produced = position.lag, position.produced_per_second
    if lag == 0:
        return Forecast(outlook=Outlook.CAUGHT_UP, seconds=0.0)
    if lag is None or consumed is None or produced is None:
        return Forecast(outlook=Outlook.UNKNOWN)
    gain = consumed - produced
    if consumed and abs(gain) <= RATE_TOLERANCE * produced:
        return Forecast(outlook=Outlook.STEADY)
    if gain > 0:
        return Forecast(outlook=Outlook.CATCHES_UP, seconds=lag / gain)
    seconds = min(_losses(position, lag, consumed, produced), default=None)
    if position.lost:
        seconds = 0.0
    outlook = Outlook.STAYS_BEHIND if seconds is None else Outlook.LOSES_RECORDS
    return Forecast(outlook=outlook, seconds=seconds)


def _losses(position: Position, lag: int, consumed: float, produced: float) -> Iterator[float]:
    """Yield the seconds until retention deletes unread records, by age and by size.

    The age of the first unread record grows by 1 - consumed / produced seconds per second, and the
    lag by produced - consumed records. An age grows by 1 if nothing is consumed.
    """
    behind = position.seconds_behind
    if position.retention_ms is not None and behind is not None:
        growth = 1 - consumed / produced if produced > 0 else 1.0
        if growth > 0:
            yield max(0.0, position.retention_ms / _MS - behind) / growth
    if position.retention_records is not None and produced > consumed:
        yield max(0.0, position.retention_records - lag) / (produced - consumed)


# One sentence for each evaluation.


def explanation_of(facts: Evaluation, window: Window, position: Position) -> str:
    """Return the reasons of a state in one sentence."""
    if facts.lag is None:
        return "The end offset of the partition is unknown, because its leader does not respond."
    if facts.lag == 0:
        return "The group has read all records."
    commits = window.commits()
    waiting = f"{_records(facts.lag)} {'waits' if facts.lag == 1 else 'wait'}"
    since = duration(max(0, position.now_ms - window.last_ms) / _MS)
    if facts.state is State.STOP:
        return f"No commit for {since}, while {waiting}{_then(facts.forecast)}."
    if facts.state is State.REWIND:
        before = max(commit.offset for commit in commits)
        return f"The group went back from offset {before} to {position.offset}; {waiting}."
    if facts.state is State.ERR:
        return f"Retention deleted {_records(position.lost)} before the group read them."
    if facts.state is State.STALL:
        return (
            f"The last {len(commits)} commits all have offset {position.offset}, while"
            f" {waiting}{_then(facts.forecast)}."
        )
    if facts.state is State.WARN:
        return (
            f"The lag did not decrease at any of the last {len(commits)} commits;"
            f" {waiting}{_then(facts.forecast)}."
        )
    if not window.complete:
        return (
            f"{waiting.capitalize()}; {len(commits)} of {COMMITS_MAX} commits have been seen,"
            f" the last one {since} ago."
        )
    return f"{waiting.capitalize()}; the group keeps up{_then(facts.forecast)}."


def _records(count: int) -> str:
    return f"{count:,} record{'' if count == 1 else 's'}"


def _then(forecast: Forecast) -> str:
    """Return the forecast as the end of a sentence."""
    if forecast.outlook is Outlook.CATCHES_UP and forecast.seconds is not None:
        return f", and it catches up in {duration(forecast.seconds)} at this rate"
    if forecast.outlook is Outlook.LOSES_RECORDS and forecast.seconds is not None:
        if forecast.seconds == 0:
            return ", and retention deletes unread records now"
        return f", and retention deletes unread records in {duration(forecast.seconds)}"
    return ""


def duration(seconds: float) -> str:
    """Return a time such as `42 s`, `7 min`, `3.5 h` or `12 days`."""
    if seconds < 120:
        return f"{seconds:.0f} s"
    if seconds < 7_200:
        return f"{seconds / 60:.0f} min"
    if seconds < 172_800:
        return f"{seconds / 3_600:.1f} h"
    return f"{seconds / 86_400:.0f} days"


class Summary(Struct, frozen=True, kw_only=True):
    """Evaluation of a whole group: its worst state, sums of lag and rates, and the worst outlook.

    `seconds_behind` is the largest one that is known. `worst` is the index of the partition that
    determines the state; None without partitions.
    """

    state: State
    lag: int
    seconds_behind: float | None = None
    consumed_per_second: float | None = None
    produced_per_second: float | None = None
    forecast: Forecast = Forecast(outlook=Outlook.UNKNOWN)
    worst: int | None = None


_WORST_FIRST: Final = (
    Outlook.LOSES_RECORDS, Outlook.STAYS_BEHIND, Outlook.UNKNOWN, Outlook.STEADY,
    Outlook.CATCHES_UP, Outlook.CAUGHT_UP,
)  # fmt: skip


def summary_of(found: Sequence[Evaluation]) -> Summary:
    """Return the summary of the evaluations of a group's partitions."""
    if not found:
        return Summary(state=State.OK, lag=0)
    worst = max(range(len(found)), key=lambda index: (found[index].state, found[index].lag or 0))
    behind = [e.seconds_behind for e in found if e.seconds_behind is not None]
    return Summary(
        state=found[worst].state,
        lag=sum(evaluation.lag or 0 for evaluation in found),
        seconds_behind=max(behind, default=None),
        consumed_per_second=_total(e.consumed_per_second for e in found),
        produced_per_second=_total(e.produced_per_second for e in found),
        forecast=_worst_forecast([e.forecast for e in found]),
        worst=worst,
    )


def _total(rates: Iterable[float | None]) -> float | None:
    known = [rate for rate in rates if rate is not None]
    return sum(known) if known else None


def _worst_forecast(forecasts: Sequence[Forecast]) -> Forecast:
    outlook = min((f.outlook for f in forecasts), key=_WORST_FIRST.index)
    times = [f.seconds for f in forecasts if f.outlook is outlook and f.seconds is not None]
    soonest = outlook is Outlook.LOSES_RECORDS
    seconds = (min if soonest else max)(times, default=None)
    return Forecast(outlook=outlook, seconds=seconds)
