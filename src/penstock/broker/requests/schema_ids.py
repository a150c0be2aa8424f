"""Check of the schema ids of produced records, for topics with `schema.validation.key` or
`schema.validation.value`.

The ids of a batch are read by columns (`records/columnar/schema_ids.py`), on the event loop or by
the thread that decompresses batches. The different ids are compared with those that the schema
registry of this broker has in memory. If some are unknown, the changes of the registry are read
once, because another broker may just have registered them. A batch is rejected if a record has no
id, or an unknown one.

Source: Confluent Server's schema ID validation.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from penstock.base.errors import PenstockError
from penstock.broker.net.errors import InvalidConfig, NotEnoughReplicas
from penstock.broker.requests.opening import Opened, OpenResult, demanded
from penstock.records import InvalidRecord
from penstock.records.columnar.validation import REFUSED_RECORDS_NAMED_MAX

if TYPE_CHECKING:
    from penstock.base.crc import Readable
    from penstock.records.columnar.schema_ids import PartIds, SchemaId
    from penstock.storage import LogConfig

_NAMED_IDS_MAX: Final = 3
"""Most ids that an error message names."""


class SchemaIds(Protocol):
    """Port to the ids of registered schemas."""

    def missing(self, ids: Collection[SchemaId], subject: str | None) -> Collection[SchemaId]:
        """Return those of `ids` that no schema of the default context has, from memory.

        With `subject`, only schemas of versions of this subject count.
        """
        ...

    async def refresh(self) -> None:
        """Read all changes that were made before this call; raises PenstockError."""
        ...


class UnknownSchema(InvalidRecord):
    """Batch with ids of schemas that the registry does not have, as far as this broker knows."""


class TopicIds:
    """Reader of the ids of a topic's batches, which checks them by the registry in memory."""

    __slots__ = ("_checks", "_config", "_topic")

    def __init__(self, checks: SchemaChecks, topic: str, config: LogConfig) -> None:
        self._checks = checks
        self._topic = topic
        self._config = config

    def read(self, section: Readable, count: int) -> None:
        """Read and check the ids of a batch.

        Raises:
            CorruptBatch: as `read_ids`.
            PenstockError: as `SchemaChecks.check`.
        """
        from penstock.records.columnar.schema_ids import read_ids

        found = [read_ids(part, section, count) for part in demanded(self._config)]
        self._checks.check(self._topic, self._config, found)


class Candidate(NamedTuple):
    """Batch of a topic that is read, or the error that rejects it."""

    topic: str
    config: LogConfig
    batch: OpenResult


class SchemaChecks:
    """Checks of the ids of batches; `registered` is None on a broker without a schema registry."""

    def __init__(self, registered: SchemaIds | None) -> None:
        self._registered = registered

    def check_config(
        self, topic: str, config: LogConfig, stored: Mapping[str, str] | None = None
    ) -> None:
        """Reject a topic that demands schema ids, if this broker cannot check them.

        A demand that is part of the `stored` configurations of the topic is not rejected, so that
        others can be changed.

        Raises:
            InvalidConfig: the broker has no schema registry.
        """
        if self._registered is not None:
            return
        for part in demanded(config):
            name = f"schema.validation.{part}"
            if stored is None or stored.get(name) != "true":
                raise InvalidConfig(
                    f"topic {topic!r}: {name} = true needs registry.enable = true in the"
                    " configuration of all brokers"
                )

    def check(self, topic: str, config: LogConfig, parts: Sequence[PartIds]) -> None:
        """Check the ids of a batch by the registry's state in memory.

        Raises:
            InvalidConfig: as `check_config`.
            UnknownSchema: a schema is unknown; after `refresh` it may be known.
            InvalidRecord: a record has no id.
        """
        self.check_config(topic, config)
        for part in parts:
            if part.absent:
                raise _without_id(topic, part)
        for part in parts:
            missing = self._missing(topic, config, part)
            if missing:
                raise _unknown(topic, config, part, missing)

    def _missing(self, topic: str, config: LogConfig, part: PartIds) -> Collection[SchemaId]:
        registered = self._registered
        if registered is None or not part.ids:
            return ()
        of_topic = config.schema_validation_subject_strategy == "topic"
        return registered.missing(part.ids, f"{topic}-{part.part}" if of_topic else None)

    async def checked(self, candidates: Sequence[Candidate]) -> list[OpenResult]:
        """Check batches of a request, with the newest schemas; return the batches or their errors.

        The registry is read at most once.
        """
        found = [self._checked(candidate) for candidate in candidates]
        unknown = [isinstance(result, UnknownSchema) for result in found]
        if self._registered is None or not any(unknown):
            return found
        try:
            await self._registered.refresh()
        except PenstockError as error:
            unread = NotEnoughReplicas(f"the newest schemas could not be read: {error}")
            return [
                unread if again else result for result, again in zip(found, unknown, strict=True)
            ]
        return [
            self._checked(candidate) if again else result
            for result, candidate, again in zip(found, candidates, unknown, strict=True)
        ]

    def _checked(self, candidate: Candidate) -> OpenResult:
        topic, config, batch = candidate
        if isinstance(batch, Opened) and batch.ids:
            try:
                self.check(topic, config, batch.ids)
            except PenstockError as error:
                return error
        return batch


def _without_id(topic: str, part: PartIds) -> InvalidRecord:
    name = part.part
    records = part.without_id()
    return InvalidRecord(
        f"topic {topic!r}: record {records[0]} of {len(part.numbers)} has no schema id in its"
        f" {name}; {len(records)} of the batch's records have none. schema.validation.{name} = true"
        " demands a serializer that writes the id of a registered schema",
        records=records[:REFUSED_RECORDS_NAMED_MAX],
    )


def _unknown(
    topic: str, config: LogConfig, part: PartIds, missing: Collection[SchemaId]
) -> UnknownSchema:
    name = part.part
    records = part.with_ids(missing)
    shown = ", ".join([str(schema_id) for schema_id in list(missing)[:_NAMED_IDS_MAX]])
    more = len(missing) - _NAMED_IDS_MAX
    ids = f"{shown} and {more} more" if more > 0 else shown
    if config.schema_validation_subject_strategy == "topic":
        reason = (
            f"is not a version of subject '{topic}-{name}', which"
            " schema.validation.subject.strategy = topic demands. Register the schema under this"
            " subject"
        )
    else:
        reason = "is not registered. Register the schema in the registry of this cluster"
    return UnknownSchema(
        f"topic {topic!r}: record {records[0]} of {len(part.numbers)}: the schema id of its {name}"
        f" {reason}. Unknown ids of the batch: {ids}",
        records=records[:REFUSED_RECORDS_NAMED_MAX],
    )
