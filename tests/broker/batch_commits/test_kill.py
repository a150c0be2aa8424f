"""Brokers killed during commits: every record is in the log once, in order."""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial
from http.client import HTTPException

import pytest

from penstock.testing import Broker
from tests.broker.batch_commits.sink_client import Part, SinkClient, client_of, log_of

PARTITIONS = 4
RECORDS = 3000
PADDING = "x" * 1500
MOMENTS = 6
POLLS_MAX = 20_000


def parts(number: int, half: int) -> list[Part]:
    """Return half of a batch: some of each partition, a hundred record batches in total."""
    rows = range(half * RECORDS // 2, (half + 1) * RECORDS // 2)
    return [Part("t", p, [f"{number}/{p}/{n}/{PADDING}" for n in rows]) for p in range(PARTITIONS)]


def until(condition: Callable[[], bool]) -> bool:
    """Poll a bounded number of times; each poll is a request."""
    return any(condition() for _ in range(POLLS_MAX))


class Post(threading.Thread):
    """Post of a driver, which a killed broker never answers."""

    def __init__(self, client: SinkClient, batch: int, blobs: list[dict[str, object]]) -> None:
        super().__init__()
        self._call = partial(client.post, "app/q", batch, blobs)
        self.status = 0

    def run(self) -> None:
        try:
            self.status = self._call().status
        except (OSError, HTTPException):
            self.status = -1


def span(client: SinkClient) -> int:
    return int(client.request("GET", "/v1/topics/t").body["offset_span"])


def begun(client: SinkClient, number: int, wanted: int) -> bool:
    """Whether the batch is recorded, and part of it appended."""
    return (client.sink("app/q") or {}).get("batch") == number and span(client) >= wanted


@pytest.mark.timeout(600)
@pytest.mark.long
def test_killed_in_the_middle_of_commits() -> None:
    whole = PARTITIONS * RECORDS
    interrupted = 0
    with Broker(process=True) as broker:
        broker.create_topic("t", PARTITIONS)
        client = client_of(broker, "t")
        for number in range(MOMENTS):
            blobs = [
                client.stage(f"{number}-{half}", parts(number, half), records_per_batch=30)
                for half in range(2)
            ]
            before = span(client)
            assert before == number * whole
            post = Post(client, number, blobs)
            post.start()
            wanted = before + number * whole // MOMENTS
            assert until(partial(begun, client, number, wanted))
            broker.kill()
            post.join()
            broker.start()
            if number % 3 == 2:  # once more, while it is driven on
                broker.kill()
                broker.start()
            interrupted += span(client) < before + whole
            known = client.sink("app/q")
            if known is not None and known["batch"] == number:
                # Nobody posts: the broker finishes on its own.
                assert until(lambda: client.sink("app/q")["state"] == "done")
                assert span(client) == before + whole
            answer = client.post("app/q", number, blobs)
            assert answer.status == 200, answer
            assert answer.body["records"] == whole
            assert client.post("app/q", number, blobs).body["outcome"] == "replayed"
        for partition in range(PARTITIONS):
            assert log_of(broker, "t", partition) == [
                f"{number}/{partition}/{n}/{PADDING}"
                for number in range(MOMENTS)
                for n in range(RECORDS)
            ]
        assert list((broker.directory / "staging").iterdir()) == [
            broker.directory / "staging" / ".penstock-staging"
        ]
    assert interrupted, "no kill came in the middle of a commit"
