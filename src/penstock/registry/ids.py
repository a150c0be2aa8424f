"""Ids of registered schemas, for the brokers' check of produced records.

A number or GUID is registered if a version of a subject in the default context has it, also if the
version is deleted but not yet removed: readers can still get the schema. For the ids of a single
subject, deleted versions do not count, because its clients must not write with them any more.
"""

from __future__ import annotations

from collections.abc import Collection
from functools import lru_cache
from typing import TYPE_CHECKING, Final

from penstock.registry.service import SchemaRegistry
from penstock.registry.values import DEFAULT_CONTEXT, Subject

if TYPE_CHECKING:
    from penstock.records.columnar.schema_ids import SchemaId

SUBJECTS_MAX: Final = 1_000
"""Most subjects whose ids are kept. Those of others are collected again when they are needed."""


class RegisteredIds:
    """Ids that a registry has in memory; each is found by one look-up of a hash table."""

    def __init__(self, registry: SchemaRegistry) -> None:
        self._registry = registry
        self._generation = registry.generation
        self._of = lru_cache(SUBJECTS_MAX)(self._collected)

    def missing(self, ids: Collection[SchemaId], subject: str | None) -> list[SchemaId]:
        """Return those of `ids` that are not registered.

        With `subject`, a subject of the default context or an alias of one, only its versions
        count.
        """
        if subject is not None:
            if self._generation != self._registry.generation:
                self._generation = self._registry.generation
                self._of.cache_clear()
            of_subject = self._of(subject)
            return [schema_id for schema_id in ids if schema_id not in of_subject]
        context = self._registry.state.contexts.get(DEFAULT_CONTEXT)
        if context is None:
            return list(ids)
        return [
            schema_id
            for schema_id in ids
            if schema_id not in context.guids and schema_id not in context.ids
        ]

    async def refresh(self) -> None:
        """Read all changes that were made before this call; raises PenstockError."""
        await self._registry.refresh()

    def _collected(self, subject: str) -> frozenset[SchemaId]:
        state = self._registry.state
        versions = state.versions_of(state.resolved(Subject(DEFAULT_CONTEXT, subject)))
        pairs = [(version.id, version.guid) for version in versions.values()]
        return frozenset([word for pair in pairs for word in pair])
