"""The part of the control plane that keeps sink commits."""

from __future__ import annotations

from functools import partial

from penstock.control.drivers.statements import OverDatabase
from penstock.control.sink_commits import operations
from penstock.control.values import SinkCommit


class SinkCommits(OverDatabase):
    """Methods of `ControlPlane`, over either database."""

    async def sink_commit(self, query_id: str) -> SinkCommit | None:
        return await self._database.read(partial(operations.read, query_id))

    async def save_sink_commit(self, record: SinkCommit, *, expected_version: int) -> int:
        return await self._database.change(
            partial(operations.save, record, expected_version=expected_version)
        )

    async def sink_commits(self) -> list[SinkCommit]:
        return await self._database.read(operations.read_all)

    async def delete_sink_commit(self, query_id: str, *, expected_version: int) -> None:
        await self._database.change(
            partial(operations.delete, query_id, expected_version=expected_version)
        )
