"""Replay of the topic `_schemas`, in which Confluent's registry and Karapace store everything.

Keys and values are JSON. A key has `keytype` and `magic`, 0 or 1. A record replaces earlier ones
with the same key; without a value (or with the value `null`) it deletes them.

| keytype          | key                | value                                                   |
|------------------|--------------------|---------------------------------------------------------|
| `SCHEMA`         | subject, version   | id, schema, schemaType, references, metadata, ruleSet,  |
|                  |                    | deleted                                                 |
| `DELETE_SUBJECT` | subject            | subject, version: deletes all versions up to it, softly |
| `CLEAR_SUBJECT`  | subject            | subject: removes its versions that are deleted softly   |
| `CONFIG`, `MODE` | subject, or null   | fields of the config, or the mode                       |
| `CONTEXT`        | tenant, context    | context; it has no effect here                          |
| `NOOP`           |                    | none                                                    |

Other records are skipped and counted by their reason. Order is that of the only partition.

Source: Confluent's documentation of the `_schemas` topic, and Karapace's `schema_reader.py`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Final

import msgspec

from penstock.apps.schema.snapshot import RegisteredVersion, Snapshot
from penstock.base.errors import InvalidError
from penstock.client.schemas import StoredSchema
from penstock.registry.errors import InvalidSubject
from penstock.registry.values import VERSION_MAX, parse_subject

if TYPE_CHECKING:
    from penstock.client import Client

MAGIC: Final = (0, 1)
WHOLE: Final = ""
"""Scope of configs and modes without a subject."""
_NO_EFFECT: Final = ("NOOP", "CONTEXT")


class NotSchemasTopic(InvalidError):
    """Topic that does not have the form of `_schemas`."""

    code: ClassVar[str] = "invalid_topic_exception"


class _Malformed(Exception):
    """Record that cannot be understood; the text is the reason."""


class Replay:
    """State after the records that were applied."""

    def __init__(self) -> None:
        self.found = Snapshot()
        self.records = 0
        self.skipped: Counter[str] = Counter()
        """Records without effect, by reason."""
        self._handlers: Mapping[str, Callable[[Any, Any], None]] = {
            "SCHEMA": self._schema,
            "DELETE_SUBJECT": self._delete_subject,
            "CLEAR_SUBJECT": self._clear_subject,
            "CONFIG": self._config,
            "MODE": self._mode,
        }

    def apply(self, key: bytes | None, value: bytes | None) -> None:
        """Apply a record; a malformed one is skipped and counted."""
        self.records += 1
        try:
            self._apply(_decoded(key, "key"), _decoded(value, "value"))
        except _Malformed as reason:
            self.skipped[str(reason)] += 1
        except (msgspec.ValidationError, InvalidSubject, KeyError, TypeError) as error:
            self.skipped[f"a field is missing or wrong: {error}"] += 1

    def _apply(self, key: Any, value: Any) -> None:
        if not isinstance(key, dict):
            raise _Malformed("the record has no key")
        kind, magic = str(key.get("keytype")), key.get("magic", 0)
        if magic not in MAGIC:
            raise _Malformed(f"the key type {kind[:32]} has magic {str(magic)[:8]}")
        handler = self._handlers.get(kind)
        if handler is not None:
            handler(key, value)
        elif kind not in _NO_EFFECT:
            raise _Malformed(f"the key type {kind[:32]} is unknown")

    def _schema(self, key: Any, value: Any) -> None:
        name, number = _subject(key), msgspec.convert(key["version"], int)
        if not 0 < number <= VERSION_MAX:
            raise _Malformed("the key type SCHEMA has a version below 1, or too large")
        if value is None:
            self.found.versions.pop((name, number), None)
            return
        given = {field: content for field, content in value.items() if content is not None}
        self.found.versions[name, number] = RegisteredVersion(
            subject=name,
            version=number,
            id=msgspec.convert(given["id"], int),
            deleted=bool(given.get("deleted")),
            schema=msgspec.convert(
                {field: given[field] for field in _CONTENT if field in given}, StoredSchema
            ),
        )

    def _delete_subject(self, key: Any, value: Any) -> None:
        if value is None:
            return
        name, last = _subject(value), msgspec.convert(value["version"], int)
        versions = self.found.versions
        for (subject, number), found in versions.items():
            if subject == name and number <= last:
                versions[subject, number] = msgspec.structs.replace(found, deleted=True)

    def _clear_subject(self, key: Any, value: Any) -> None:
        if value is None:
            return
        cleared = parse_subject(_subject(value))
        for (subject, number), found in list(self.found.versions.items()):
            whole = not cleared.name and parse_subject(subject).context == cleared.context
            if found.deleted and (whole or subject == cleared.qualified):
                del self.found.versions[subject, number]

    def _config(self, key: Any, value: Any) -> None:
        scope = WHOLE if key.get("subject") is None else _subject(key)
        if value is None:
            self.found.configs.pop(scope, None)
            return
        fields = {
            name: content
            for name, content in value.items()
            if name != "subject" and content is not None
        }
        self.found.configs[scope] = fields

    def _mode(self, key: Any, value: Any) -> None:
        scope = WHOLE if key.get("subject") is None else _subject(key)
        if value is None:
            self.found.modes.pop(scope, None)
        else:
            self.found.modes[scope] = msgspec.convert(value["mode"], str)


_CONTENT: Final = ("schema", "schemaType", "references", "metadata", "ruleSet")


def _decoded(data: bytes | None, what: str) -> Any:
    if not data:
        return None
    try:
        found = msgspec.json.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise _Malformed(f"the {what} is not JSON") from None
    if found is not None and not isinstance(found, dict):
        raise _Malformed(f"the {what} is not a JSON object")
    return found


def _subject(fields: Any) -> str:
    return parse_subject(msgspec.convert(fields["subject"], str)).qualified


def replay(records: Iterable[tuple[bytes | None, bytes | None]]) -> Replay:
    """Return the state after records, which are pairs of key and value."""
    state = Replay()
    for key, value in records:
        state.apply(key, value)
    return state


def read_topic(client: Client, topic: str) -> Replay:
    """Read a topic to its present end, and replay it.

    Control records, such as transaction markers, and records of aborted transactions are omitted.

    Raises:
        NotSchemasTopic: the topic has several partitions, or no record of a schema registry.
        PenstockError: the topic cannot be read.
    """
    partitions = len(client.describe_topic(topic).partitions)
    if partitions != 1:
        raise NotSchemasTopic(
            f"topic {topic} has {partitions} partitions; a registry's topic has only one, because"
            " the order of its records matters. Name the right topic, as topic:_schemas"
        )
    batches = client.iter_arrow(topic, columns=("key", "value"), isolation="read_committed")
    columns = ((batch.column("key"), batch.column("value")) for batch in batches)
    state = replay(
        record
        for keys, values in columns
        for record in zip(keys.to_pylist(), values.to_pylist(), strict=True)
    )
    if state.records and state.skipped.total() == state.records:
        reasons = ", ".join(state.skipped)
        raise NotSchemasTopic(
            f"topic {topic} has {state.records} records, and none of a schema registry: {reasons}."
            " Name the right topic, as topic:_schemas"
        )
    return state
