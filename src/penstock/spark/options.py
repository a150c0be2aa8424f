"""The options of the source, read once and checked by name.

Spark's Kafka source gives the names and meanings; the ones that Penstock adds are `bootstrap`,
`penstock.admin.url`, `penstock.store.options.*`, `columns`, `groupId`, `parallelism`,
`maxBytesPerTrigger`, `maxRecordsPerTrigger` and `wakeFile`. An option that is not known is refused
by name: a misspelt limit that is silently ignored is found in production.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal, cast

from penstock.base.ids import validate_topic_name
from penstock.base.settings import LONG_MAX
from penstock.spark.errors import InvalidOption
from penstock.spark.schema import COLUMN_NAMES, DEFAULT_COLUMNS, HEADERS

EARLIEST: Final = -2
LATEST: Final = -1
PARALLELISM_MAX: Final = 10_000
STORE_OPTIONS: Final = "penstock.store.options."
"""What follows is the name of an option of the object store, such as `aws_endpoint`."""

_ALIASES: Final = {
    "kafka.bootstrap.servers": "bootstrap",
    "maxOffsetsPerTrigger": "maxRecordsPerTrigger",
    "minOffsetsPerTrigger": "minRecordsPerTrigger",
    "kafka.group.id": "groupId",
}
_KNOWN: Final = (
    "bootstrap",
    "penstock.admin.url",
    "subscribe",
    "subscribePattern",
    "assign",
    "startingOffsets",
    "endingOffsets",
    "startingTimestamp",
    "endingTimestamp",
    "startingOffsetsByTimestamp",
    "endingOffsetsByTimestamp",
    "startingOffsetsByTimestampStrategy",
    "failOnDataLoss",
    "maxRecordsPerTrigger",
    "maxBytesPerTrigger",
    "minRecordsPerTrigger",
    "maxTriggerDelay",
    "columns",
    "includeHeaders",
    "groupId",
    "parallelism",
    "wakeFile",
)
_CANONICAL: Final = {name.lower(): name for name in (*_KNOWN, *_ALIASES)}
_ENVIRONMENT: Final = {
    "bootstrap": "PENSTOCK_BOOTSTRAP",
    "penstock.admin.url": "PENSTOCK_ADMIN_URL",
    "parallelism": "PENSTOCK_SPARK_PARALLELISM",
}
_DURATION: Final = re.compile(r"(\d+)\s*(ms|s|m|h|d)?")
_UNIT_MS: Final = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000, None: 1}
MAX_TRIGGER_DELAY_DEFAULT_MS: Final = 15 * 60_000

PartitionMap = Mapping[str, Mapping[int, int]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Bound:
    """One end of what is read, as the options say it.

    `everywhere` is an offset (`EARLIEST`, `LATEST`) or a timestamp that holds for every
    partition; `each`, when given, has one per partition instead.
    """

    option: str
    kind: Literal["offset", "timestamp"]
    everywhere: int = LATEST
    each: PartitionMap | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceOptions:
    """All options of one read, checked. Unit and default are in the field's name and value."""

    bootstrap: str
    admin_url: str | None
    topics: tuple[str, ...] = ()
    pattern: str | None = None
    assign: Mapping[str, tuple[int, ...]] | None = None
    start: Bound | None = None
    end: Bound | None = None
    missing_timestamp_is_latest: bool = False
    fail_on_data_loss: bool = True
    trigger_records_max: int | None = None
    trigger_bytes_max: int | None = None
    trigger_records_min: int | None = None
    trigger_delay_max_ms: int = MAX_TRIGGER_DELAY_DEFAULT_MS
    columns: tuple[str, ...] = DEFAULT_COLUMNS
    group_id: str | None = None
    parallelism: int = 1
    wake_file: str | None = None
    store_options: Mapping[str, str] = field(default_factory=dict, repr=False)
    """How tasks open the object store of diskless topics; may be credentials, so never shown."""

    @property
    def limited(self) -> bool:
        """Whether a trigger takes less than all that is there."""
        limits = (self.trigger_records_max, self.trigger_bytes_max, self.trigger_records_min)
        return any(limit is not None for limit in limits)


def parse(raw: Mapping[str, str]) -> SourceOptions:
    """Read Spark's options (names in any case).

    Raises:
        InvalidOption: unknown name, malformed value, or options that exclude each other.
    """
    given = _by_name(raw)
    columns = _columns(given)
    return SourceOptions(
        bootstrap=_required_bootstrap(given),
        admin_url=(given.get("penstock.admin.url") or "").rstrip("/") or None,
        **_subscription(given),
        start=_bound(given, "starting"),
        end=_bound(given, "ending"),
        missing_timestamp_is_latest=_choice(
            given, "startingOffsetsByTimestampStrategy", ("error", "latest")
        )
        == "latest",
        fail_on_data_loss=_flag(given, "failOnDataLoss", default=True),
        trigger_records_max=_count(given, "maxRecordsPerTrigger"),
        trigger_bytes_max=_count(given, "maxBytesPerTrigger"),
        trigger_records_min=_count(given, "minRecordsPerTrigger"),
        trigger_delay_max_ms=_duration_ms(given, "maxTriggerDelay"),
        columns=columns,
        group_id=given.get("groupId") or None,
        parallelism=_count(given, "parallelism", maximum=PARALLELISM_MAX) or os.cpu_count() or 1,
        wake_file=given.get("wakeFile") or None,
        store_options={
            name.removeprefix(STORE_OPTIONS): value
            for name, value in given.items()
            if name.startswith(STORE_OPTIONS)
        },
    )


def _by_name(raw: Mapping[str, str]) -> dict[str, str]:
    given: dict[str, str] = {}
    for name, value in raw.items():
        lower = name.lower()
        if lower.startswith(STORE_OPTIONS) and lower != STORE_OPTIONS:
            given[lower] = value
            continue
        canonical = _CANONICAL.get(lower)
        if canonical is None:
            raise InvalidOption(
                name,
                value,
                f"there is no such option; there are {', '.join(_KNOWN)} and {STORE_OPTIONS}*",
            )
        target = _ALIASES.get(canonical, canonical)
        if given.setdefault(target, value) != value:
            raise InvalidOption(canonical, value, f"{target} is given twice, with other values")
    for name, variable in _ENVIRONMENT.items():
        if name not in given and os.environ.get(variable):
            given[name] = os.environ[variable]
    return given


def _required_bootstrap(given: Mapping[str, str]) -> str:
    bootstrap = given.get("bootstrap", "").strip()
    if not bootstrap:
        raise InvalidOption(
            "bootstrap",
            bootstrap,
            "give the broker's address as HOST:PORT (or kafka.bootstrap.servers)",
        )
    return bootstrap


def _subscription(given: Mapping[str, str]) -> dict[str, Any]:
    chosen = [name for name in ("subscribe", "subscribePattern", "assign") if name in given]
    if len(chosen) != 1:
        raise InvalidOption(
            "subscribe", given.get("subscribe"),
            f"give one of subscribe, subscribePattern and assign; given: {chosen or 'none'}",
        )  # fmt: skip
    name, value = chosen[0], given[chosen[0]]
    if name == "subscribe":
        topics = tuple(dict.fromkeys(word.strip() for word in value.split(",") if word.strip()))
        if not topics:
            raise InvalidOption(name, value, "names no topic")
        return {"topics": tuple(sorted(validate_topic_name(topic) for topic in topics))}
    if name == "subscribePattern":
        try:
            re.compile(value)
        except re.error as error:
            raise InvalidOption(name, value, f"is no regular expression: {error}") from error
        return {"pattern": value}
    body = _json_object(name, value)
    if not body or not all(
        isinstance(numbers, list) and numbers and all(_is_partition(item) for item in numbers)
        for numbers in body.values()
    ):
        raise InvalidOption(name, value, 'must look like {"topic": [0, 1]}')
    return {"assign": {topic: tuple(sorted(set(body[topic]))) for topic in sorted(body)}}


def _bound(given: Mapping[str, str], side: Literal["starting", "ending"]) -> Bound | None:
    # Spark's order of precedence: one timestamp, timestamps per partition, offsets.
    by_time, each, offsets = f"{side}Timestamp", f"{side}OffsetsByTimestamp", f"{side}Offsets"
    if by_time in given:
        timestamp = _count(given, by_time, minimum=0)
        return Bound(option=by_time, kind="timestamp", everywhere=cast("int", timestamp))
    if each in given:
        return Bound(option=each, kind="timestamp", each=_partition_map(each, given[each], 0))
    if offsets not in given:
        return None
    value = given[offsets].strip()
    word = {"earliest": EARLIEST, "latest": LATEST}.get(value.lower())
    if word == EARLIEST and side == "ending":
        raise InvalidOption(offsets, value, "nothing ends at the earliest offset")
    if word is not None:
        return Bound(option=offsets, kind="offset", everywhere=word)
    floor = EARLIEST if side == "starting" else LATEST
    return Bound(option=offsets, kind="offset", each=_partition_map(offsets, value, floor))


def _partition_map(name: str, value: str, floor: int) -> PartitionMap:
    parsed: dict[str, dict[int, int]] = {}
    for topic, partitions in _json_object(name, value).items():
        if not isinstance(partitions, dict):
            raise InvalidOption(name, value, 'must look like {"topic": {"0": 42}}')
        for partition, number in partitions.items():
            whole = isinstance(number, int) and not isinstance(number, bool)
            if not whole or not partition.isdecimal() or not floor <= number <= LONG_MAX:
                raise InvalidOption(
                    name, value, f"{topic}: {partition!r}: {number!r} is no partition and number"
                )
            parsed.setdefault(topic, {})[int(partition)] = number
    return parsed


def _columns(given: Mapping[str, str]) -> tuple[str, ...]:
    with_headers = _flag(given, "includeHeaders", default=False)
    if "columns" not in given:
        return COLUMN_NAMES if with_headers else DEFAULT_COLUMNS
    by_lower = {name.lower(): name for name in COLUMN_NAMES}
    names: dict[str, None] = {}
    for word in given["columns"].split(","):
        name = by_lower.get(word.strip().lower())
        if name is None:
            raise InvalidOption(
                "columns", given["columns"],
                f"there is no column {word.strip()!r}; there are {', '.join(COLUMN_NAMES)}",
            )  # fmt: skip
        names[name] = None
    if with_headers:
        names[HEADERS] = None
    return tuple(names)


def _json_object(name: str, value: str) -> dict[str, Any]:
    try:
        body = json.loads(value)
    except ValueError as error:
        raise InvalidOption(name, value, f"is no JSON: {error}") from error
    if not isinstance(body, dict):
        raise InvalidOption(name, value, "must be a JSON object")
    return body


def _is_partition(item: object) -> bool:
    return isinstance(item, int) and not isinstance(item, bool) and item >= 0


def _count(
    given: Mapping[str, str], name: str, *, minimum: int = 1, maximum: int = LONG_MAX
) -> int | None:
    if name not in given:
        return None
    text = given[name].strip()
    if not text.isdecimal() or not minimum <= int(text) <= maximum:
        raise InvalidOption(
            name, given[name], f"must be a whole number from {minimum} to {maximum}"
        )
    return int(text)


def _flag(given: Mapping[str, str], name: str, *, default: bool) -> bool:
    word = given.get(name, str(default)).strip().lower()
    if word not in {"true", "false"}:
        raise InvalidOption(name, given[name], "must be true or false")
    return word == "true"


def _choice(given: Mapping[str, str], name: str, choices: tuple[str, ...]) -> str:
    word = given.get(name, choices[0]).strip().lower()
    if word not in choices:
        raise InvalidOption(name, given[name], f"must be one of {', '.join(choices)}")
    return word


def _duration_ms(given: Mapping[str, str], name: str) -> int:
    if name not in given:
        return MAX_TRIGGER_DELAY_DEFAULT_MS
    match = _DURATION.fullmatch(given[name].strip().lower())
    if match is None:
        raise InvalidOption(name, given[name], "must be a time such as 500ms, 30s or 15m")
    return int(match.group(1)) * _UNIT_MS[match.group(2)]
