"""Options of the source: names, defaults and checks.

Options that Spark's Kafka source also has keep its names and meanings. Penstock adds `bootstrap`,
`penstock.admin.url`, `penstock.store.options.*`, `columns`, `groupId`, `parallelism`,
`maxBytesPerTrigger`, `maxRecordsPerTrigger`, `wakeFile`, and the options of the value's format,
whose names begin with `value`.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Final, Literal, cast

from penstock.base.errors import InvalidSetting
from penstock.base.ids import validate_topic_name
from penstock.base.settings import LONG_MAX, Kind, describe, setting
from penstock.client.security import CONFIG_VARIABLE, client_security, is_option
from penstock.client.security import environment_options as client_options
from penstock.formats.value_format import NEWEST, InvalidFormat, ValueFormat, check
from penstock.records.extents import EARLIEST, LATEST, READ_COMMITTED, READ_UNCOMMITTED
from penstock.security.files import UnusableFile
from penstock.spark import option_values
from penstock.spark.errors import InvalidOption
from penstock.spark.schema import COLUMN_NAMES, DEFAULT_COLUMNS, HEADERS

# Security options of the source and the sink, with the names that Spark's Kafka source uses.
#
# These are `kafka.ssl.…`, `kafka.sasl.…` and `kafka.security.protocol`. They apply to brokers and
# to admin addresses. If none is set, the options of the properties file apply that
# `PENSTOCK_CLIENT_CONFIG` names on the driver, so that programs need not contain secrets. Values
# are sent to tasks with the read or the write, and are never shown.


PREFIX: Final = "kafka."
HIDDEN: Final = "[hidden]"

Options = Mapping[str, str]


def taken_from(raw: Options) -> tuple[dict[str, str], dict[str, str]]:
    """Return the security options, without the prefix `kafka.`, and separately all other options.

    If there are no security options, those of the properties file are returned.

    Raises:
        InvalidOption: a security option is unknown or invalid; the message hides its value.
    """
    security: dict[str, str] = {}
    rest: dict[str, str] = {}
    for name, value in raw.items():
        own = name.lower().removeprefix(PREFIX)
        if name.lower().startswith(PREFIX) and is_option(own):
            security[own] = value
        elif own.startswith(("sasl.", "ssl.", "security.")):
            raise InvalidOption(name, HIDDEN, "unknown security option")
        else:
            rest[name] = value
    try:
        security = security or environment_options()
        client_security(security)
    except InvalidSetting as error:
        raise InvalidOption(PREFIX + error.name, HIDDEN, error.reason) from None
    return security, rest


def environment_options() -> dict[str, str]:
    """Return the options of the file that PENSTOCK_CLIENT_CONFIG names; none if it is not set.

    Raises:
        InvalidSetting: the file cannot be read.
    """
    try:
        return client_options()
    except UnusableFile as error:
        raise InvalidSetting(CONFIG_VARIABLE, os.environ[CONFIG_VARIABLE], str(error)) from None


PARALLELISM_MAX: Final = 10_000
STORE_OPTIONS: Final = "penstock.store.options."
"""Prefix of object store options, such as `penstock.store.options.aws_endpoint`."""

ALIASES: Final = {
    "kafka.bootstrap.servers": "bootstrap",
    "maxOffsetsPerTrigger": "maxRecordsPerTrigger",
    "minOffsetsPerTrigger": "minRecordsPerTrigger",
    "kafka.group.id": "groupId",
    "kafka.isolation.level": "isolationLevel",
}
_AS_JSON: Final = Kind("JSON", str)
_COUNT: Final = option_values.whole()
_TIMESTAMP: Final = option_values.whole(0)
_UNKNOWN: Final = f"unknown option. Allowed are {STORE_OPTIONS}* and"

PartitionMap = Mapping[str, Mapping[int, int]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Bound:
    """Start or end of the range to read, as one option sets it.

    `everywhere` is an offset (`EARLIEST`, `LATEST`) or a timestamp for all partitions. If `each` is
    not None, it has an offset or timestamp for every partition instead.
    """

    option: str
    kind: Literal["offset", "timestamp"]
    everywhere: int = LATEST
    each: PartitionMap | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Options of the source that are valid independently of the other options."""

    bootstrap: str = setting(
        "", "Addresses of the brokers.", kind=option_values.SERVERS, shown="`PENSTOCK_BOOTSTRAP`"
    )
    admin_url: str | None = setting(
        None, "Admin addresses of the brokers, separated by commas. With them, tasks read files and"
        " objects directly.", name="penstock.admin.url",
        kind=option_values.URL, shown="`PENSTOCK_ADMIN_URL`, else none",
    )  # fmt: skip
    pattern: str | None = setting(
        None,
        "Topics to read: those whose whole name matches.",
        name="subscribePattern",
        kind=option_values.PATTERN,
    )
    isolation: str = setting(
        "read_committed", "`read_committed` skips records of open and aborted transactions;"
        " `read_uncommitted` reads all records.", name="isolationLevel",
        kind=option_values.word_of("read_committed", "read_uncommitted"),
    )  # fmt: skip
    fail_on_data_loss: bool = setting(
        True, "Whether to fail if records were deleted before they were read.",
        name="failOnDataLoss",
        kind=option_values.FLAG,
    )  # fmt: skip
    trigger_records_max: int | None = setting(
        None, "Most records of a micro-batch.", name="maxRecordsPerTrigger", kind=_COUNT
    )
    trigger_bytes_max: int | None = setting(
        None,
        "Most bytes of a micro-batch, as stored in the log.",
        name="maxBytesPerTrigger",
        kind=_COUNT,
    )
    trigger_records_min: int | None = setting(
        None, "Fewest records of a micro-batch; it waits for them for at most `maxTriggerDelay`.",
        name="minRecordsPerTrigger", kind=_COUNT,
    )  # fmt: skip
    trigger_delay_max_ms: int = setting(
        15 * 60_000, "Longest wait for `minRecordsPerTrigger`, such as `500ms`, `30s` or `15m`.",
        name="maxTriggerDelay", kind=option_values.DURATION, shown="`15m`",
    )  # fmt: skip
    group_id: str | None = setting(
        None,
        "Consumer group to which the query's progress is committed, for monitoring only.",
        name="groupId",
        kind=option_values.TEXT,
    )
    parallelism: int = setting(
        os.cpu_count() or 1, "Number of tasks that can run at the same time.",
        kind=option_values.whole(most=PARALLELISM_MAX), shown="slots of the session",
    )  # fmt: skip
    wake_file: str | None = setting(
        None,
        "File with the time at which a micro-batch runs even if there are no new records.",
        name="wakeFile",
        kind=option_values.TEXT,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Choices:
    """Options that select topics and the range to read; `parse` rejects contradictory ones."""

    subscribe: str | None = setting(
        None, "Topics to read, separated by commas. Set exactly one of `subscribe`,"
        " `subscribePattern` and `assign`.", kind=Kind("topics", str),
    )  # fmt: skip
    assign: str | None = setting(None, 'Partitions to read: `{"topic": [0, 1]}`.', kind=_AS_JSON)
    starting: str | None = setting(
        None, 'First offsets: `earliest`, `latest`, or by partition `{"topic": {"0": 42}}`, where'
        " -2 is the earliest offset and -1 the latest.", name="startingOffsets",
        kind=_AS_JSON, shown="batch `earliest`, stream `latest`",
    )  # fmt: skip
    ending: str | None = setting(
        None,
        'End of a batch read: `latest`, or by partition `{"topic": {"0": 42}}`, the offset'
        " after the last record.",
        name="endingOffsets",
        kind=_AS_JSON,
        shown="`latest`",
    )
    starting_at: int | None = setting(
        None,
        "Timestamp of the first record to read in every partition, in milliseconds since 1970.",
        name="startingTimestamp",
        kind=_TIMESTAMP,
    )
    ending_at: int | None = setting(
        None,
        "Timestamp at which a batch read ends in every partition, in milliseconds since 1970.",
        name="endingTimestamp",
        kind=_TIMESTAMP,
    )
    starting_each: str | None = setting(
        None,
        "`startingTimestamp` for each partition.",
        name="startingOffsetsByTimestamp",
        kind=_AS_JSON,
    )
    ending_each: str | None = setting(
        None,
        "`endingTimestamp` for each partition.",
        name="endingOffsetsByTimestamp",
        kind=_AS_JSON,
    )
    missing: str = setting(
        "error", "If no record has the starting timestamp or a later one: `error` fails the query,"
        " `latest` starts at the end of the partition.",
        name="startingOffsetsByTimestampStrategy", kind=option_values.word_of("error", "latest"),
    )  # fmt: skip
    columns: str | None = setting(
        None, "Columns to read, separated by commas. Spark does not inform a Python source which"
        " columns a query uses.",
        kind=Kind("columns", str), shown="all but headers",
    )  # fmt: skip
    headers: bool = setting(
        False,
        "Whether to add the column `headers`.",
        name="includeHeaders",
        kind=option_values.FLAG,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Values:
    """Options for decoding values: the fields of a `ValueFormat`, and the selected fields."""

    kind: str = setting(
        "raw", "Format in which values are decoded. It adds the columns `_value`, a struct of the"
        " value's fields, and `_error`, the reason why a value is invalid. `raw` decodes nothing.",
        name="valueFormat",
        kind=option_values.word_of(
            "raw", "json", "json-schema", "avro", "protobuf", "registry", "debezium"
        ),
    )  # fmt: skip
    schema: str | None = setting(
        None, "Schema of values, as Spark writes it in JSON"
        ' (`StructType.fromDDL("id bigint").json()`). Required for `json` and `debezium`.'
        " For `registry`: a pinned schema, which a pipeline sets.", name="valueSchema",
        kind=_AS_JSON,
    )  # fmt: skip
    schema_file: Path | None = setting(
        None, "Schema file on the driver's machine. Required for `json-schema`, `avro` and"
        " `protobuf`.",
        name="valueSchemaFile", kind=Kind("path", Path),
    )  # fmt: skip
    message: str | None = setting(
        None, "Full name of the message. Required for `protobuf`. For `registry`: selects one of"
        " several messages.", name="valueMessage",
        kind=option_values.TEXT,
    )  # fmt: skip
    framing: str = setting(
        "none", "`confluent` skips the prefix that serialisers of a schema registry write.",
        name="valueFraming", kind=option_values.word_of("none", "confluent"),
    )  # fmt: skip
    ids: str | None = setting(
        None, "For `valueFraming`: accepted schema ids, such as `[1, 2]`. Values with other ids"
        " are invalid. Without it all values are read with the same schema, whatever their id.",
        name="valueIds", kind=_AS_JSON,
    )  # fmt: skip
    registry: str | None = setting(
        None, "For `registry`, required: URL of the schema registry.", name="valueRegistry",
        kind=option_values.URL, shown="`PENSTOCK_REGISTRY`",
    )  # fmt: skip
    registry_config: Path | None = setting(
        None, "For `registry`: file on the driver's machine with security options of its client.",
        name="valueRegistryConfig", kind=Kind("path", Path), shown="`PENSTOCK_CLIENT_CONFIG`",
    )  # fmt: skip
    subject: str | None = setting(
        None, "For `registry`: subject of the schema that values are read as.",
        name="valueSubject", kind=option_values.TEXT, shown="`<topic>-value`",
    )  # fmt: skip
    reader: str = setting(
        NEWEST, "For `registry`: schema that values are read as: `latest`, a version, `id N`, or a"
        " schema file on the driver's machine. It is fixed when the query starts.",
        name="valueReader", kind=option_values.TEXT,
    )  # fmt: skip
    envelope: str | None = setting(
        None, "For `registry`: `debezium` reads change events in Avro into the columns of a row and"
        " `_change`.", name="valueEnvelope", kind=option_values.word_of("debezium"),
    )  # fmt: skip
    unknown_fields: str = setting(
        "ignore", "For `json` and `json-schema`: `reject` makes a field that is not in the schema"
        " an error.",
        name="valueUnknownFields", kind=option_values.word_of("ignore", "reject"),
    )  # fmt: skip
    decimals: str = setting(
        "exact", "Treatment of a value with more digits than its column. `exact` makes it an error."
        " `round` rounds decimals half up, and truncates times to microseconds.",
        name="valueDecimals", kind=option_values.word_of("exact", "round"),
    )  # fmt: skip
    decimal_handling: str = setting(
        "precise", "For `debezium`: form of decimals in strings. `precise` means base64 of the"
        " unscaled bytes, `string` means digits.",
        name="valueDecimalHandling", kind=option_values.word_of("precise", "string"),
    )  # fmt: skip
    milliseconds: str | None = setting(
        None, 'For `debezium`: timestamp columns whose numbers are milliseconds, such as `["at"]`.'
        " The numbers of others are microseconds.", name="valueMilliseconds", kind=_AS_JSON,
    )  # fmt: skip
    zone: str | None = setting(
        None, "For `json`: time zone of times that have none.",
        name="valueZone", kind=option_values.TEXT, shown="UTC",
    )  # fmt: skip
    fields: str | None = setting(
        None, 'Fields of `_value`, such as `["id", "at"]`. All fields are checked, even if they are'
        " not selected.", name="valueFields", kind=_AS_JSON, shown="all",
    )  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceOptions(Limits):
    """Checked options of one read."""

    topics: tuple[str, ...] = ()
    assign: Mapping[str, tuple[int, ...]] | None = None
    start: Bound | None = None
    end: Bound | None = None
    missing_timestamp_is_latest: bool = False
    columns: tuple[str, ...] = DEFAULT_COLUMNS
    value_format: ValueFormat = field(default_factory=ValueFormat)
    value_fields: tuple[str, ...] | None = None
    store_options: Mapping[str, str] = field(default_factory=dict, repr=False)
    """Object store options for the tasks; excluded from `repr`, because they may be credentials."""
    security: Mapping[str, str] = field(default_factory=dict, repr=False)
    """Security options of connections to brokers and admin addresses; excluded from `repr`."""

    @property
    def isolation_level(self) -> int:
        return READ_COMMITTED if self.isolation == "read_committed" else READ_UNCOMMITTED

    @property
    def limited(self) -> bool:
        limits = (self.trigger_records_max, self.trigger_bytes_max, self.trigger_records_min)
        return any(limit is not None for limit in limits)


def parse(raw: Mapping[str, str]) -> SourceOptions:
    """Return checked options from Spark's options, whose names may be in any case.

    Raises:
        InvalidOption: an option is unknown or malformed, or options exclude each other.
    """
    security, raw = taken_from(raw)
    store = {
        name.lower(): value for name, value in raw.items()
        if name.lower().startswith(STORE_OPTIONS) and name.lower() != STORE_OPTIONS
    }  # fmt: skip
    rest = {name: value for name, value in raw.items() if name.lower() not in store}
    found = {"bootstrap": ""} | option_values.named(
        (Limits, Choices, Values), rest, ALIASES, _UNKNOWN
    )
    choices = option_values.checked(Choices, found)
    limits = option_values.checked(Limits, found)
    return SourceOptions(
        **asdict(limits),
        **_subscription(found),
        start=_bound(found, "starting", choices.starting_at),
        end=_bound(found, "ending", choices.ending_at),
        missing_timestamp_is_latest=choices.missing == "latest",
        columns=_columns(choices),
        **_values(option_values.checked(Values, found)),
        security=security,
        store_options={name.removeprefix(STORE_OPTIONS): value for name, value in store.items()},
    )


_MILLISECONDS: Final = "valueMilliseconds"


def value_options(value_format: ValueFormat, fields: Sequence[str] | None = None) -> dict[str, str]:
    wanted = None if fields is None else json.dumps(fields)
    given = {info.name: getattr(value_format, info.attribute, wanted) for info in describe(Values)}
    for name, items in (("valueIds", value_format.ids), (_MILLISECONDS, value_format.milliseconds)):
        given[name] = json.dumps(items) if items else None
    return {name: str(value) for name, value in given.items() if value is not None}


def named_as_option(error: InvalidFormat) -> InvalidOption:
    """Convert an error in a value format to an error that names the source's option for it."""
    names = {info.attribute: info.name for info in describe(Values)}
    return InvalidOption(names.get(error.name, "valueFormat"), str(error.value), error.reason)


def _values(values: Values) -> dict[str, Any]:
    parts = asdict(values)
    wanted, ids, milliseconds = (parts.pop(name) for name in ("fields", "ids", "milliseconds"))
    value_format = ValueFormat(
        **parts,
        ids=() if ids is None else _ids(ids),
        milliseconds=() if milliseconds is None else _texts(_MILLISECONDS, milliseconds),
    )
    # The schema is fixed when the source is created, which happens on the driver.
    pinned = value_format.kind != "registry" or value_format.schema is not None
    try:
        check(value_format if pinned else replace(value_format, schema="{}"))
    except InvalidFormat as error:
        raise named_as_option(error) from error
    if wanted is None:
        return {"value_format": value_format}
    return {"value_format": value_format, "value_fields": _texts("valueFields", wanted)}


def _texts(option: str, text: str) -> tuple[str, ...]:
    names = _json(option, text)
    if not isinstance(names, list) or not names or not all(isinstance(name, str) for name in names):
        raise InvalidOption(option, text, 'must look like ["id", "at"]')
    return tuple(names)


def _ids(text: str) -> tuple[int, ...]:
    numbers = _json("valueIds", text)
    if not isinstance(numbers, list) or not numbers or not all(map(_is_partition, numbers)):
        raise InvalidOption("valueIds", text, "must look like [1, 2]")
    return tuple(numbers)


def _subscription(given: Mapping[str, str]) -> dict[str, Any]:
    chosen = [name for name in ("subscribe", "subscribePattern", "assign") if name in given]
    if len(chosen) != 1:
        raise InvalidOption(
            "subscribe", given.get("subscribe"),
            f"set exactly one of subscribe, subscribePattern and assign, not {chosen or 'none'}",
        )  # fmt: skip
    name, value = chosen[0], given[chosen[0]]
    if name == "subscribePattern":
        return {}
    if name == "subscribe":
        topics = tuple(dict.fromkeys(word.strip() for word in value.split(",") if word.strip()))
        if not topics:
            raise InvalidOption(name, value, "names no topic")
        return {"topics": tuple(sorted(validate_topic_name(topic) for topic in topics))}
    body = _json_object(name, value)
    if not body or not all(
        isinstance(numbers, list) and numbers and all(_is_partition(item) for item in numbers)
        for numbers in body.values()
    ):
        raise InvalidOption(name, value, 'must look like {"topic": [0, 1]}')
    return {"assign": {topic: tuple(sorted(set(body[topic]))) for topic in sorted(body)}}


def _bound(
    given: Mapping[str, str], side: Literal["starting", "ending"], timestamp: int | None
) -> Bound | None:
    # Spark's order of precedence: one timestamp, timestamps per partition, offsets.
    by_time, each, offsets = f"{side}Timestamp", f"{side}OffsetsByTimestamp", f"{side}Offsets"
    if by_time in given:
        return Bound(option=by_time, kind="timestamp", everywhere=cast("int", timestamp))
    if each in given:
        return Bound(option=each, kind="timestamp", each=_partition_map(each, given[each], 0))
    if offsets not in given:
        return None
    value = given[offsets].strip()
    word = {"earliest": EARLIEST, "latest": LATEST}.get(value.lower())
    if word == EARLIEST and side == "ending":
        raise InvalidOption(offsets, value, "cannot be earliest; use latest, or offsets in JSON")
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
                    name,
                    value,
                    f"topic {topic}: {partition!r}: {number!r} must be a partition and a number"
                    f" from {floor}",
                )
            parsed.setdefault(topic, {})[int(partition)] = number
    return parsed


def _columns(choices: Choices) -> tuple[str, ...]:
    if choices.columns is None:
        return COLUMN_NAMES if choices.headers else DEFAULT_COLUMNS
    by_lower = {name.lower(): name for name in COLUMN_NAMES}
    names: dict[str, None] = {}
    for word in choices.columns.split(","):
        name = by_lower.get(word.strip().lower())
        if name is None:
            raise InvalidOption(
                "columns", choices.columns,
                f"column {word.strip()!r} must be one of {', '.join(COLUMN_NAMES)}",
            )  # fmt: skip
        names[name] = None
    if choices.headers:
        names[HEADERS] = None
    return tuple(names)


def _json_object(name: str, value: str) -> dict[str, Any]:
    body = _json(name, value)
    if not isinstance(body, dict):
        raise InvalidOption(name, value, "must be a JSON object")
    return body


def _json(name: str, value: str) -> Any:
    try:
        return json.loads(value)
    except ValueError as error:
        raise InvalidOption(name, value, f"must be JSON: {error}") from error


def _is_partition(item: object) -> bool:
    return isinstance(item, int) and not isinstance(item, bool) and item >= 0
