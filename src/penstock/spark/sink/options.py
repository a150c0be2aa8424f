"""The options of the sink to the log, read once and checked by name.

Names and meanings are those of Spark's Kafka sink where it has them (`kafka.bootstrap.servers`,
`topic`, `kafka.compression.type`). As in the source an option that is not known is refused: a
misspelt one that is silently ignored is found in production.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from penstock.base.errors import InvalidTopicName
from penstock.base.ids import validate_topic_name
from penstock.base.settings import LONG_MAX
from penstock.client.limits import BATCH_BYTES
from penstock.records import Codec
from penstock.spark.errors import InvalidOption
from penstock.spark.sink import limits

_CODECS: Final = {codec.name.lower(): codec for codec in Codec} | {"uncompressed": Codec.NONE}
_APPLICATION: Final = re.compile(r"[A-Za-z0-9._/-]{1,249}")
_ALIASES: Final = {
    "kafka.bootstrap.servers": "bootstrap",
    "kafka.compression.type": "codec",
}
_KNOWN: Final = (
    "bootstrap",
    "penstock.admin.url",
    "topic",
    "codec",
    "batchBytes",
    "application",
    "batchId",
    "commitTimeoutSeconds",
)
_IGNORED: Final = frozenset({"checkpointlocation", "path"})
"""What Spark itself puts among the options of a query."""
_CANONICAL: Final = {name.lower(): name for name in (*_KNOWN, *_ALIASES)}


@dataclass(frozen=True, slots=True, kw_only=True)
class SinkOptions:
    """Where a sink writes and how; checked by `check`."""

    bootstrap: str
    admin_url: str
    topic: str | None = None
    codec: Codec = Codec.NONE
    batch_bytes: int = BATCH_BYTES
    application: str | None = None
    batch_id: int | None = None
    commit_timeout_seconds: float = limits.COMMIT_TIMEOUT_SECONDS


def check(
    *,
    bootstrap: str | None,
    admin_url: str | None,
    topic: str | None = None,
    codec: str = "none",
    batch_bytes: int = BATCH_BYTES,
    application: str | None = None,
    batch_id: int | None = None,
    commit_timeout_seconds: float = limits.COMMIT_TIMEOUT_SECONDS,
) -> SinkOptions:
    """The options as a value.

    `bootstrap` and `admin_url` fall back to PENSTOCK_BOOTSTRAP and PENSTOCK_ADMIN_URL.

    Raises:
        InvalidOption: what is missing or not allowed, by name.
    """
    chosen = _CODECS.get(codec.lower()) if isinstance(codec, str) else None
    if chosen is None:
        raise InvalidOption("codec", codec, "must be one of none, gzip, snappy, lz4, zstd")
    if application is not None and not _APPLICATION.fullmatch(application):
        raise InvalidOption(
            "application", application,
            "must be 1 to 249 characters of A-Z, a-z, 0-9, '.', '_', '-' and '/'",
        )  # fmt: skip
    servers = _bootstrap(bootstrap)
    return SinkOptions(
        bootstrap=servers,
        admin_url=_admin_url(admin_url, servers),
        topic=_topic(topic),
        codec=chosen,
        batch_bytes=int(
            _bounded("batchBytes", batch_bytes, limits.BATCH_BYTES_MIN, limits.BATCH_BYTES_MAX)
        ),
        application=application,
        batch_id=None if batch_id is None else int(_bounded("batchId", batch_id, 0, LONG_MAX)),
        commit_timeout_seconds=_bounded(
            "commitTimeoutSeconds", commit_timeout_seconds, 1, limits.COMMIT_TIMEOUT_SECONDS_MAX
        ),
    )


def parse(raw: Mapping[str, str]) -> SinkOptions:
    """Read Spark's options (names in any case).

    Raises:
        InvalidOption: unknown name or malformed value.
    """
    given = _by_name(raw)
    more: dict[str, Any] = {}
    for name, target in (("batchBytes", "batch_bytes"), ("batchId", "batch_id")):
        if name in given:
            more[target] = _whole(name, given[name])
    if "commitTimeoutSeconds" in given:
        more["commit_timeout_seconds"] = _seconds(given["commitTimeoutSeconds"])
    if "batchId" in given and "application" not in given:
        raise InvalidOption("batchId", given["batchId"], "needs option application beside it")
    return check(
        bootstrap=given.get("bootstrap"),
        admin_url=given.get("penstock.admin.url"),
        topic=given.get("topic"),
        codec=given.get("codec", "none"),
        application=given.get("application"),
        **more,
    )


def _by_name(raw: Mapping[str, str]) -> dict[str, str]:
    given: dict[str, str] = {}
    for name, value in raw.items():
        lower = name.lower()
        if lower in _IGNORED:
            continue
        if lower == "orderedby":
            raise InvalidOption(
                name, value,
                "a data source cannot move rows between tasks; use LogSink(ordered_by=…) in"
                " foreachBatch",
            )  # fmt: skip
        canonical = _CANONICAL.get(lower)
        if canonical is None:
            raise InvalidOption(
                name, value, f"the sink has no such option; it has {', '.join(_KNOWN)}"
            )
        target = _ALIASES.get(canonical, canonical)
        if given.setdefault(target, value) != value:
            raise InvalidOption(canonical, value, f"{target} is given twice, with other values")
    return given


def _bootstrap(value: str | None) -> str:
    found = (value or os.environ.get("PENSTOCK_BOOTSTRAP") or "").strip()
    if not found:
        raise InvalidOption(
            "bootstrap", value,
            "give the broker's address as HOST:PORT (or kafka.bootstrap.servers)",
        )  # fmt: skip
    return found


def _admin_url(value: str | None, servers: str) -> str:
    found = (value or os.environ.get("PENSTOCK_ADMIN_URL") or "").strip().rstrip("/")
    scheme, _, address = found.partition("://")
    listeners = {server.strip() for server in servers.split(",")}
    if scheme not in {"http", "https"} or address in listeners:
        raise InvalidOption(
            "penstock.admin.url", found,
            "must be the broker's admin address, as http://host:9644: the sink commits a batch"
            " through it. Apache Kafka has no such commit; Spark's own Kafka sink writes to it,"
            " at least once",
        )  # fmt: skip
    return found


def _topic(value: str | None) -> str | None:
    if value is None:
        return None
    try:
        return validate_topic_name(value)
    except InvalidTopicName as error:
        raise InvalidOption("topic", value, error.reason) from error


def _bounded(name: str, value: float, minimum: float, maximum: float) -> float:
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if not number or not minimum <= value <= maximum:
        raise InvalidOption(name, value, f"must be a number from {minimum} to {maximum}")
    return value


def _whole(name: str, text: str) -> int:
    if not text.strip().isdecimal():
        raise InvalidOption(name, text, "must be a whole number")
    return int(text)


def _seconds(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise InvalidOption("commitTimeoutSeconds", text, "must be a number of seconds") from None
