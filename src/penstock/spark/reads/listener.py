"""Listeners that commit a stream's end offsets to a consumer group after each batch.

Spark stores its progress in a checkpoint, which tools for consumer lag cannot read. A query whose
source has the option `groupId` stores group and bootstrap address in its positions, and the
listener commits the offsets. The group is for monitoring only: Spark restarts from its checkpoint.
If a commit fails, it is logged and retried at the next event of any query, unless a later commit
covers it.
"""

from __future__ import annotations

import json
import logging
from collections import OrderedDict
from typing import TYPE_CHECKING, Any, Final

from pyspark import SparkContext
from pyspark.sql.streaming.listener import (
    JStreamingQueryListener,
    QueryIdleEvent,
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    StreamingQueryListener,
)

from penstock.base.errors import InvalidError, PenstockError
from penstock.spark.reads.positions import TOPICS, Positions, from_json

if TYPE_CHECKING:
    from penstock.client import Client


CLIENTS_MAX: Final = 16
REQUEST_TIMEOUT_MS: Final = 10_000


_LOG: Final = logging.getLogger(__name__)


class ReportListener(StreamingQueryListener):
    """Listener that receives the progress report of each batch as one JSON text.

    PySpark's own listener calls Java for every number, which takes longer than a small batch.
    """

    @property
    def _jlistener(self) -> Any:
        if "_jlistenerobj" not in vars(self):
            java: Any = SparkContext._jvm
            self._jlistenerobj = java.PythonStreamingQueryListenerWrapper(_ByText(self))
        return self._jlistenerobj


class _ByText(JStreamingQueryListener):
    def onQueryProgress(self, jevent: Any) -> None:  # noqa: N802
        progress = json.loads(jevent.progress().json())
        self.pylistener.onQueryProgress(QueryProgressEvent.fromJson({"progress": progress}))


class GroupCommitListener(ReportListener):
    """Listener that commits the positions of every `penstock` source with the option `groupId`."""

    def __init__(self) -> None:
        self._clients: OrderedDict[str, Client] = OrderedDict()
        self._committed: dict[tuple[str, str], Positions] = {}
        self._failed: dict[tuple[str, str], Positions] = {}

    def onQueryStarted(self, event: QueryStartedEvent) -> None:  # noqa: N802
        """Do nothing; nothing has been read yet."""

    def onQueryProgress(self, event: QueryProgressEvent) -> None:  # noqa: N802
        """Commit the batch's end offsets for each source of the query."""
        self._commit_failed()
        for source in event.progress.sources:
            positions = positions_of(source.endOffset)
            if positions is not None and positions.group_id:
                self._commit(positions)

    def onQueryIdle(self, event: QueryIdleEvent) -> None:  # noqa: N802
        self._commit_failed()

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:  # noqa: N802
        """Retry commits that failed; the end of the last batch has already been handled."""
        self._commit_failed()

    def close(self) -> None:
        while self._clients:
            self._clients.popitem()[1].close()

    def _commit_failed(self) -> None:
        for positions in list(self._failed.values()):
            self._commit(positions)

    def _commit(self, positions: Positions) -> None:
        key = (positions.bootstrap, positions.group_id or "")
        self._failed.pop(key, None)
        before = self._committed.get(key)
        if before is not None and before.same_offsets(positions):
            return
        offsets = {
            (at.topic, at.partition): position.offset
            for at, position in positions.partitions.items()
        }
        try:
            self._client(positions.bootstrap).commit_offsets(key[1], offsets)
        except (PenstockError, OSError) as error:
            _LOG.warning("group %s: will retry, cannot commit offsets: %s", key[1], error)
            self._failed[key] = positions
            return
        self._committed[key] = positions

    def _client(self, bootstrap: str) -> Client:
        client = self._clients.pop(bootstrap, None)
        if client is None:
            from penstock.client import Client

            client = Client(
                bootstrap, client_id="penstock-spark", request_timeout_ms=REQUEST_TIMEOUT_MS
            )
        self._clients[bootstrap] = client
        if len(self._clients) > CLIENTS_MAX:
            self._clients.popitem(last=False)[1].close()
        return client


def positions_of(end_offset: str | None) -> Positions | None:
    """Return the positions in a source's progress; None if the source is not `penstock`."""
    try:
        body = json.loads(end_offset or "null")
    except ValueError:
        return None
    if not isinstance(body, dict) or TOPICS not in body:
        return None
    try:
        return from_json(body)
    except InvalidError:
        return None
