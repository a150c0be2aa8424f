"""Driver's part of the sink: one commit request for a whole batch.

A commit names the blobs of a batch in order, under the application and the batch number. The broker
first stores the commit, then appends the blobs idempotently, and responds when everything is
durable. If it already has this batch or a later one, it appends nothing, so the request may be
repeated. Any broker that has all blobs of the batch can start the commit, or finish it after
another broker failed.
"""

from __future__ import annotations

import http
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import quote

from penstock.base.errors import PenstockError
from penstock.base.ids import TopicPartition
from penstock.client.admin_http import Answer, Body
from penstock.client.errors import AdminUnavailable
from penstock.spark.admin_http import BrokerAdmins
from penstock.spark.errors import (
    CommitRefused,
    CommitUnfinished,
    NotPenstock,
    SinkOwnerChanged,
    UnknownTopics,
)
from penstock.spark.sink.blobs import STAGING_TIMEOUT_SECONDS, Blob

MANIFEST_BYTES_MAX: Final = 16 << 20
"""Bytes of the largest commit request that the broker accepts."""
DISCARD_TIMEOUT_SECONDS: Final = 5.0
"""Timeout of the request by which another broker removes its copies after a commit."""

_DONE: Final = "done"
_UNKNOWN_PARAMETER: Final = "parameter 'check': there is none of this name"
"""Part of the response of older brokers, which do not know the parameter `check`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Appended:
    """Result of a batch; `replayed` is true if the log already had the batch.

    `offsets` has the batch's offsets [first, after the last) by partition. It may be empty for a
    batch that the log already had.
    """

    batch_id: int
    records: int
    replayed: bool
    offsets: Mapping[TopicPartition, tuple[int, int]]


class Commits:
    """Client for the commits of one application."""

    def __init__(
        self,
        admins: BrokerAdmins,
        application: str,
        *,
        timeout_seconds: float,
        transactional: bool = False,
    ) -> None:
        self._admins = admins
        self._urls = ",".join(address.url for address in admins.in_order)
        self._application = application
        self._path = f"/v1/sinks/{quote(application, safe='')}"
        self._timeout_seconds = timeout_seconds
        self._transactional = transactional

    def has(self, batch_id: int, owner: str | None) -> bool:
        """Whether this batch of this owner, or a later one, is durable in the log.

        Raises:
            NotPenstock, AdminUnavailable: as in `BrokerAdmin.call`.
        """
        answer = self._admins.call("GET", self._path, timeout_seconds=STAGING_TIMEOUT_SECONDS)
        if answer.status == http.HTTPStatus.NOT_FOUND:
            return False
        if answer.status != http.HTTPStatus.OK or not isinstance(answer.body.get("batch"), int):
            raise NotPenstock(self._urls, f"GET {self._path}: {answer.status}")
        return (
            answer.body["batch"] >= batch_id
            and answer.body.get("state") == _DONE
            and answer.body.get("owner") in {owner, None}
        )

    def check(self, batch_id: int, owner: str | None, blobs: Sequence[Blob]) -> None:
        """Check that the broker would accept the commit now; nothing is appended.

        Brokers of older releases do not support the check; for these it does nothing.

        Raises:
            PenstockError: the commit would be rejected; the errors are those of `commit`.
        """
        try:
            manifest = self._manifest(batch_id, owner, blobs)
            self._post(batch_id, manifest, blobs, "?check=true")
        except CommitRefused as error:
            if _UNKNOWN_PARAMETER not in str(error):
                raise

    def commit(self, batch_id: int, owner: str | None, blobs: Sequence[Blob]) -> Appended:
        """Append the blobs in their order; on return the records are durable.

        Raises:
            CommitUnfinished: the commit did not finish in time; repeating the batch is safe.
            SinkOwnerChanged: the application belongs to another query.
            UnknownTopics: a topic or partition no longer exists.
            CommitRefused: the broker rejected the commit for another reason.
        """
        manifest = self._manifest(batch_id, owner, blobs)
        answer = self._post(batch_id, manifest, blobs)
        self._discard(batch_id, manifest, blobs)
        return _appended(self._urls, batch_id, answer)

    def _post(
        self,
        batch_id: int,
        manifest: Body,
        blobs: Sequence[Blob],
        query: str = "",
    ) -> Answer:
        path = f"{self._path}/commits/{batch_id}{query}"
        holders = self._holders(batch_id, blobs)
        try:
            answer = self._admins.call(
                "POST", path, manifest, timeout_seconds=self._timeout_seconds, among=holders
            )
        except AdminUnavailable as error:
            raise CommitUnfinished(
                f"{self._what(batch_id)} did not finish in time: {error}. The staged records are"
                " not lost. Write the same batch again (a restarted query does this)"
            ) from error
        if answer.status != http.HTTPStatus.OK:
            raise self._refusal(batch_id, answer)
        return answer

    def _holders(self, batch_id: int, blobs: Sequence[Blob]) -> list[str]:
        """Return the addresses of the brokers that have all blobs; all addresses if there is no
        blob.
        """
        urls = [address.url for address in self._admins.in_order]
        holders = [url for url in urls if all(url in blob.holders for blob in blobs)]
        if not holders:
            raise CommitUnfinished(
                f"{self._what(batch_id)} was not started: no broker has all of its blobs, because"
                " brokers failed while the batch was staged. Write the same batch again (a"
                " restarted query does this)"
            )
        return holders

    def _discard(self, batch_id: int, manifest: Body, blobs: Sequence[Blob]) -> None:
        """Repeat the commit at all brokers with blobs of the batch, so that they delete their
        copies.
        """
        held = {url for blob in blobs for url in blob.holders}
        if len(held) < 2:
            return
        path, timeout = f"{self._path}/commits/{batch_id}", DISCARD_TIMEOUT_SECONDS
        for url in held:
            try:
                self._admins.call("POST", path, manifest, timeout_seconds=timeout, among=(url,))
            except (AdminUnavailable, NotPenstock):
                self._admins.unanswered = True

    def forget(self) -> None:
        """Delete the last batch number that the broker stores for the application.

        This is for a batch write with a unique application name, which is never repeated. If an
        earlier request may still be running at a broker, the number is kept: without it, that
        request would append the batch again. A rejected deletion is ignored, because the number
        does no harm.
        """
        if self._admins.unanswered:
            return
        self._admins.call("DELETE", self._path, timeout_seconds=STAGING_TIMEOUT_SECONDS)

    def _manifest(self, batch_id: int, owner: str | None, blobs: Sequence[Blob]) -> Body:
        entries = ",".join(blob.entry() for blob in blobs)
        # The field is sent only if it is true: older brokers reject unknown fields.
        transactional = ',"transactional":true' if self._transactional else ""
        manifest = f'{{"owner":{json.dumps(owner)},"blobs":[{entries}]{transactional}}}'.encode()
        if len(manifest) > MANIFEST_BYTES_MAX:
            sections = sum(len(blob.sections) for blob in blobs)
            raise CommitRefused(
                f"{self._what(batch_id)} has {len(blobs)} blobs with {sections} sections. Its"
                f" request would have {len(manifest)} bytes; the limit is {MANIFEST_BYTES_MAX}."
                " Make batches smaller (option maxRecordsPerTrigger of the source)",
                "message_too_large",
            )
        return Body(pieces=[manifest], size_bytes=len(manifest), content_type="application/json")

    def _what(self, batch_id: int) -> str:
        return f"the commit of batch {batch_id} of application {self._application}"

    def _refusal(self, batch_id: int, answer: Answer) -> PenstockError:
        what = f"{self._what(batch_id)} was rejected: {answer.error}: {answer.message}"
        if answer.error == "producer_fenced":
            return SinkOwnerChanged(f"{what} (at {self._admins.in_order[0].url})")
        if answer.error == "unknown_topic_or_partition":
            return UnknownTopics(what)
        if not answer.error:
            return NotPenstock(self._urls, f"response to POST: {answer.status}")
        return CommitRefused(what, answer.error)


def _appended(url: str, batch_id: int, answer: Answer) -> Appended:
    body: Mapping[str, Any] = answer.body
    try:
        return Appended(
            batch_id=batch_id,
            records=int(body["records"]),
            replayed=body["outcome"] == "replayed",
            offsets={
                TopicPartition(item["topic"], int(item["partition"])): (
                    int(item["base_offset"]),
                    int(item["next_offset"]),
                )
                for item in body["offsets"]
            },
        )
    except (KeyError, TypeError, ValueError) as error:
        raise NotPenstock(url, f"invalid response to a commit: {error!r}") from error
