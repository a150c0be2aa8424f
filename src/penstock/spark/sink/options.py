"""Options of the sink to the log: names, defaults and checks.

Options that Spark's Kafka sink also has keep its names and meanings (`kafka.bootstrap.servers`,
`topic`, `kafka.compression.type`).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    DataType,
    DateType,
    IntegerType,
    LongType,
    MapType,
    NullType,
    NumericType,
    StringType,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from penstock.base.settings import Kind, by_name, setting
from penstock.client.errors import BATCH_BYTES
from penstock.records import Codec
from penstock.spark import option_values
from penstock.spark.errors import InvalidOption, InvalidRows
from penstock.spark.options import taken_from

BATCH_BYTES_MIN: Final = 1_024
BATCH_BYTES_MAX: Final = 64 << 20
"""Bounds of `batch_bytes`."""
COMMIT_TIMEOUT_SECONDS: Final = 120.0
COMMIT_TIMEOUT_SECONDS_MAX: Final = 86_400.0

_CODECS: Final = {codec.name.lower(): codec for codec in Codec} | {"uncompressed": Codec.NONE}
_APPLICATION: Final = re.compile(r"[A-Za-z0-9._/-]{1,249}")
ALIASES: Final = {"kafka.bootstrap.servers": "bootstrap", "kafka.compression.type": "codec"}
_IGNORED: Final = frozenset({"checkpointlocation", "path"})
"""Options that Spark itself adds to a query's options."""


def _codec(value: object) -> Codec:
    chosen = _CODECS.get(value.lower()) if isinstance(value, str) else None
    if chosen is None:
        raise ValueError("must be one of none, gzip, snappy, lz4, zstd")
    return chosen


def _application(value: object) -> str:
    if not _APPLICATION.fullmatch(str(value)):
        raise ValueError("must be 1 to 249 characters of A-Z, a-z, 0-9, '.', '_', '-' and '/'")
    return str(value)


def _seconds(value: object) -> float:
    try:
        seconds = float(str(value))
    except ValueError:
        raise ValueError("must be a number of seconds") from None
    if not 1 <= seconds <= COMMIT_TIMEOUT_SECONDS_MAX:
        raise ValueError(f"must be a number from 1 to {COMMIT_TIMEOUT_SECONDS_MAX}")
    return seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkOptions:
    """Checked options of a sink; `check` and `parse` create it."""

    bootstrap: str = setting(
        "", "Addresses of the brokers.", kind=option_values.SERVERS, shown="`PENSTOCK_BOOTSTRAP`"
    )
    admin_url: str = setting(
        "", "Admin addresses of the brokers, through which batches are committed.",
        name="penstock.admin.url", kind=option_values.URL, shown="`PENSTOCK_ADMIN_URL`",
    )  # fmt: skip
    topic: str | None = setting(
        None, "Topic of all rows.", kind=option_values.TOPIC, shown="the column `topic`"
    )
    codec: Codec = setting(
        Codec.NONE, "Compression of batches.", shown="`none`",
        kind=Kind("`none`, `gzip`, `snappy`, `lz4`, `zstd`", _codec),
    )  # fmt: skip
    batch_bytes: int = setting(
        BATCH_BYTES, "Size in bytes at which a record batch is closed. A larger record gets its own"
        " batch, up to the topic's `max.message.bytes`.", name="batchBytes",
        kind=option_values.whole(BATCH_BYTES_MIN, BATCH_BYTES_MAX),
    )  # fmt: skip
    application: str | None = setting(
        None,
        "Name under which the broker compares batch numbers.",
        kind=Kind("name", _application),
        shown="the query's id",
    )
    batch_id: int | None = setting(
        None,
        "Number of a batch write (`df.write`); requires `application`.",
        name="batchId",
        kind=option_values.whole(0),
    )
    transactional: bool = setting(
        False,
        "Whether each batch is one transaction, so that read_committed consumers see all of it at"
        " once.",
        kind=option_values.FLAG,
    )
    commit_timeout_seconds: float = setting(
        COMMIT_TIMEOUT_SECONDS, "Longest time for a commit, including retries.",
        name="commitTimeoutSeconds",
        kind=Kind("number of seconds", _seconds),
    )  # fmt: skip
    security: Mapping[str, str] = field(default_factory=dict, repr=False)
    """Security options of connections to brokers and admin addresses; excluded from `repr`."""


def check(**options: Any) -> SinkOptions:
    """Return checked options; the arguments are the fields of `SinkOptions`, None means not given.

    `bootstrap` and `admin_url` default to PENSTOCK_BOOTSTRAP and PENSTOCK_ADMIN_URL.

    Raises:
        InvalidOption: an option is missing or invalid; the error names it.
    """
    names = {info.attribute: name for name, info in by_name(SinkOptions).items()}
    security = options.pop("security", None) or taken_from({})[0]
    found = _checked({names[key]: value for key, value in options.items() if value is not None})
    return replace(found, security=security)


def parse(raw: Mapping[str, str]) -> SinkOptions:
    """Return checked options from Spark's options, whose names may be in any case.

    Raises:
        InvalidOption: an option is unknown or malformed.
    """
    for name, value in raw.items():
        if name.lower() == "orderedby":
            raise InvalidOption(
                name, value,
                "not available with format(\"penstock\"), because a data source cannot move rows"
                " between tasks. Use LogSink(ordered_by=…) in foreachBatch",
            )  # fmt: skip
    security, raw = taken_from(raw)
    own = {name: value for name, value in raw.items() if name.lower() not in _IGNORED}
    unknown = "the sink has no such option. Its options:"
    found = option_values.named((SinkOptions,), own, ALIASES, unknown)
    if "batchId" in found and "application" not in found:
        raise InvalidOption("batchId", found["batchId"], "requires the option application")
    return replace(_checked(found), security=security)


def _checked(found: Mapping[str, Any]) -> SinkOptions:
    filled = {"bootstrap": "", **option_values.named((SinkOptions,), found, {}, "")}
    options = option_values.checked(SinkOptions, filled)
    scheme, _, address = (options.admin_url or "").partition("://")
    listeners = {server.strip() for server in options.bootstrap.split(",")}
    if scheme not in {"http", "https"} or address in listeners:
        raise InvalidOption(
            "penstock.admin.url", options.admin_url or "",
            "must be the broker's admin address, such as http://host:9644, through which the sink"
            " commits batches. Apache Kafka has no such address; use Spark's own Kafka sink for it,"
            " which delivers at least once",
        )  # fmt: skip
    return options


# Columns of a data frame that the sink writes, and checks of their types.
#
# The columns are those of Spark's Kafka sink (`value`, and optionally `key`, `headers`, `topic` and
# `partition`), and also `timestamp`. Other columns are not written. A `value` that is a struct is
# written as JSON.


VALUE: Final = "value"
TOPIC: Final = "topic"
PARTITION: Final = "partition"
KEY: Final = "key"
_JSON_LEAVES: Final = (
    BooleanType, NumericType, StringType, DateType, TimestampType, TimestampNTZType, NullType,
)  # fmt: skip
_CURE: Final = "use to_json({name}) or cast({name} as string)"


def written_columns(schema: StructType, *, topic: str | None) -> tuple[str, ...]:
    """Return the columns to write, in the order of `_CHECKS`, for a sink with this topic.

    Raises:
        InvalidRows: the column `value` or any topic is missing, or a column has the wrong type.
    """
    if VALUE not in schema.names:
        raise InvalidRows(
            f"the data has no column named value; its columns: {', '.join(schema.names) or 'none'}."
            " Name the column to write value, for example with to_json(struct(*)) as value"
        )
    if topic is None and TOPIC not in schema.names:
        raise InvalidRows("no topic is set. Set the option topic, or add a column named topic")
    names = [name for name in _CHECKS if name in schema.names]
    if topic is not None and TOPIC in names:
        names.remove(TOPIC)  # the option wins, as in Spark's Kafka sink
    for name in names:
        right, wanted, fix = _CHECKS[name]
        found = schema[name].dataType
        if not right(found):
            raise InvalidRows(
                f"column {name} has type {found.simpleString()}, but must be {wanted}."
                f" To convert it, {fix.format(name=name)}"
            )
    return tuple(names)


def _bytes(kind: DataType) -> bool:
    return isinstance(kind, (StringType, BinaryType, NullType))


def is_json_value(kind: DataType) -> bool:
    """Return whether `formats/json/writing.py` can write values of this type inside a struct.

    Workers write a struct in the column `value` as JSON with that module.
    """
    if isinstance(kind, StructType):
        return all(is_json_value(field.dataType) for field in kind)
    if isinstance(kind, ArrayType):
        return is_json_value(kind.elementType)
    if isinstance(kind, MapType):
        return isinstance(kind.keyType, StringType) and is_json_value(kind.valueType)
    return isinstance(kind, _JSON_LEAVES)


def _value(kind: DataType) -> bool:
    return _bytes(kind) or (isinstance(kind, StructType) and is_json_value(kind))


def _headers(kind: DataType) -> bool:
    if not isinstance(kind, ArrayType) or not isinstance(kind.elementType, StructType):
        return isinstance(kind, NullType)
    fields = {field.name: field.dataType for field in kind.elementType.fields}
    return (
        list(fields) == ["key", "value"]
        and isinstance(fields["key"], StringType)
        and isinstance(fields["value"], (BinaryType, StringType))
    )


_CHECKS: Final[dict[str, tuple[Callable[[DataType], bool], str, str]]] = {
    KEY: (_bytes, "string or binary", _CURE),
    VALUE: (_value, "string, binary, or a struct of types that JSON supports", _CURE),
    "headers": (
        _headers,
        "array<struct<key:string,value:binary>>",
        "use array(struct('name' as key, cast(x as binary) as value))",
    ),
    "timestamp": (
        lambda kind: isinstance(kind, (TimestampType, LongType)),
        "timestamp or bigint (milliseconds)",
        "use cast({name} as timestamp)",
    ),
    TOPIC: (lambda kind: isinstance(kind, StringType), "string", "use cast({name} as string)"),
    PARTITION: (lambda kind: isinstance(kind, IntegerType), "int", "use cast({name} as int)"),
}
