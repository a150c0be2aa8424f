"""Control-plane interface of sink commits."""

from __future__ import annotations

from functools import partial

from penstock.control.drivers.statements import OverDatabase
from penstock.control.sink_commits import operations
from penstock.control.values import SinkCommit


class SinkCommits(OverDatabase):
    """Methods of `ControlPlane` for sink commits."""

    async def sink_commit(self, query_id: str) -> SinkCommit | None:
        """Return the newest commit of a query, or None."""
        return await self._database.read(partial(operations.read, query_id))

    async def save_sink_commit(self, record: SinkCommit, *, expected_version: int) -> int:
        """Save a query's commit if it is at `expected_version` (0: absent); return the new version.

        An intent is followed by itself with other targets, or by its own end; the end of a batch by
        a higher batch. Versions come from one counter for all queries and are never reused.

        Raises:
            StaleSink: it is at another version, or the record cannot follow it.
            TooLarge: too many queries or targets, or a manifest of more than
                `SINK_MANIFEST_BYTES_MAX`.
        """
        return await self._database.change(
            partial(operations.save, record, expected_version=expected_version)
        )

    async def sink_commits(self) -> list[SinkCommit]:
        """Return the newest commits of all queries, by query id, without manifests."""
        return await self._database.read(operations.read_all)

    async def delete_sink_commit(self, query_id: str, *, expected_version: int) -> None:
        """Delete a query's commit, if there is one.

        Raises:
            StaleSink: it is at another version.
        """
        await self._database.change(
            partial(operations.delete, query_id, expected_version=expected_version)
        )
