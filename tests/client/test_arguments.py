"""Invalid arguments are rejected by name, limit and value before anything is sent."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from penstock.client import Client, InvalidArgument

ROWS = pa.table({"value": ["x"]})
LARGEST = str(2**63 - 1)


@pytest.fixture
def unconnected() -> Iterator[Client]:
    """Client of an address that records connections, of which there must be none."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.setblocking(False)
        with Client(f"127.0.0.1:{listener.getsockname()[1]}") as client:
            yield client
            with pytest.raises(BlockingIOError):
                listener.accept()


REFUSED: dict[str, tuple[Callable[[Any], object], str]] = {
    "commit below": (lambda c: c.commit_offsets("g", {("t", 0): -5}), f"-0 = -5.*0 to {LARGEST}"),
    "commit above": (lambda c: c.commit_offsets("g", {("t", 0): 2**63}), f"t-0 = {2**63}"),
    "commit of text": (lambda c: c.commit_offsets("g", {("t", 0): "5"}), "t-0 = '5'"),
    "commit of a float": (lambda c: c.commit_offsets("g", {("t", 0): 5.0}), r"t-0 = 5\.0"),
    "commit of a flag": (lambda c: c.commit_offsets("g", {("t", 0): True}), "t-0 = True"),
    "commit without partition": (lambda c: c.commit_offsets("g", {"t": 5}), "'t': must be a topic"),
    "commit to partition": (lambda c: c.commit_offsets("g", {("t", -1): 5}), "of 't' = -1"),
    "no group": (lambda c: c.commit_offsets("", {("t", 0): 5}), "group = ''"),
    "group of None": (lambda c: c.describe_group(None), "group = None"),
    "committed": (lambda c: c.committed("g", [("t", -1)]), "of 't' = -1"),
    "delete offsets": (lambda c: c.delete_offsets("g", [("t", "0")]), "of 't' = '0'"),
    "records below 0": (lambda c: c.read_arrow("t", max_records=-1), "max_records = -1"),
    "records of text": (lambda c: c.read_arrow("t", max_records="9"), "max_records = '9'"),
    "start below 0": (lambda c: c.read_arrow("t", start={0: -1}), "start: offset.*0 = -1"),
    "start of a float": (lambda c: c.read_arrow("t", start={0: 1.5}), r"partition 0 = 1\.5"),
    "time below 0": (lambda c: c.read_arrow("t", start=-2), "start = -2"),
    "end of a word": (lambda c: c.read_arrow("t", end="soon"), "end = 'soon'"),
    "end of None": (lambda c: c.read_arrow("t", start=None), "start = None"),
    "partition below 0": (lambda c: c.read_arrow("t", partitions=[-1]), "partitions = -1"),
    "partitions as text": (lambda c: c.read_arrow("t", partitions="01"), "partitions = '01'"),
    "column": (lambda c: c.read_arrow("t", columns=["no"]), "column 'no'"),
    "isolation": (lambda c: c.read_arrow("t", isolation="some"), "'some'"),
    "no topic": (lambda c: c.read_arrow(""), "topic = ''"),
    "follow, at the call": (lambda c: c.iter_arrow("t", max_records=-1), "max_records = -1"),
    "follow bytes": (lambda c: c.iter_arrow("t", max_bytes=0), "max_bytes = 0"),
    "follow wait": (lambda c: c.iter_arrow("t", max_wait_ms=-1), "max_wait_ms = -1"),
    "follow idle": (lambda c: c.iter_arrow("t", idle_timeout_ms=0), "idle_timeout_ms = 0"),
    "fetch partition": (lambda c: c.fetch_raw("t", -1, 0), "partition = -1"),
    "fetch offset": (lambda c: c.fetch_raw("t", 0, -1), "offset = -1"),
    "fetch bytes": (lambda c: c.fetch_raw("t", 0, 0, max_bytes=2**40), f"max_bytes = {2**40}"),
    "fetch wait": (lambda c: c.fetch_raw("t", 0, 0, max_wait_ms=-1), "max_wait_ms = -1"),
    "write partition": (lambda c: c.write_arrow("t", ROWS, partition=-1), "partition = -1"),
    "write flag": (lambda c: c.write_arrow("t", ROWS, partition=True), "partition = True"),
    "write batch": (lambda c: c.write_arrow("t", ROWS, batch_bytes=61), "batch_bytes = 61"),
    "write in flight": (lambda c: c.write_arrow("t", ROWS, max_in_flight=6), "max_in_flight = 6"),
    "write rate": (lambda c: c.write_arrow("t", ROWS, records_per_second=-1), "second = -1"),
    "write acks": (lambda c: c.write_arrow("t", ROWS, acks=2), "acks = 2"),
    "write acks flag": (lambda c: c.write_arrow("t", ROWS, acks=True), "acks = True"),
    "write codec": (lambda c: c.write_arrow("t", ROWS, codec="zstdd"), "'zstdd'"),
    "write codec None": (lambda c: c.write_arrow("t", ROWS, codec=None), "codec = None"),
    "level": (lambda c: c.write_arrow("t", ROWS, codec="gzip", level=10), "gzip = 10.*1 to 9"),
    "level of none": (lambda c: c.write_arrow("t", ROWS, level=3), "none has no levels"),
    "create": (lambda c: c.create_topic("t", 0), "partitions = 0"),
    "create below": (lambda c: c.create_topic("t", -2), "partitions = -2"),
    "create text": (lambda c: c.create_topic("t", "3"), "partitions = '3'"),
    "replicas": (lambda c: c.create_topic("t", replication_factor=0), "replication_factor = 0"),
    "more replicas": (lambda c: c.create_topic("t", replication_factor=2**15), "1 to 32767"),
    "grow": (lambda c: c.create_partitions("t", 0), "total = 0"),
    "trim": (lambda c: c.delete_records("t", {0: -2}), "partition 0 = -2"),
    "trim list": (lambda c: c.delete_records("t", [5]), r"before = \[5\]"),
    "offsets at": (lambda c: c.list_offsets("t", -7), "at = -7"),
    "offsets at word": (lambda c: c.list_offsets("t", "soon"), "at = 'soon'"),
    "offsets isolation": (lambda c: c.list_offsets("t", isolation=2), "isolation = 2"),
    "describe kind": (lambda c: c.describe_configs("topics", "t"), "kind = 'topics'"),
    "alter kind": (lambda c: c.alter_configs("topics", "t", {}), "kind = 'topics'"),
    "broker name": (lambda c: c.describe_configs("broker", "²"), "broker '²'"),
    "metadata of text": (lambda c: c.metadata("t"), "topics = 't'"),
    "describe": (lambda c: c.describe_topic(""), "name = ''"),
    "delete": (lambda c: c.delete_topic(None), "name = None"),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_refuses_before_anything_is_sent(unconnected: Client, case: str) -> None:
    call, named = REFUSED[case]
    with pytest.raises(InvalidArgument, match=named):
        call(unconnected)


@pytest.mark.parametrize("name", ["request", "connect", "api", "delivery"])
@pytest.mark.parametrize("value", [0, -1, 2**31, 1.5, None])
def test_refuses_times_of_a_client(name: str, value: object) -> None:
    times: dict[str, Any] = {f"{name}_timeout_ms": value}
    with pytest.raises(InvalidArgument, match=f"{name}_timeout_ms = {value}: must be .* 1 to"):
        Client("127.0.0.1:1", **times)


def test_takes_what_is_at_the_limits(client: Client, topic: Callable[..., str]) -> None:
    name = topic(1)
    client.write_arrow(name, pa.table({"value": ["a", "b", "c"]}), batch_bytes=80, partition=0)
    assert client.read_arrow(name, max_records=0).num_rows == 0
    assert list(client.iter_arrow(name, end=None, max_records=0)) == []
    two: Any = np.int64(2)
    assert client.read_arrow(name, max_records=two).num_rows == 2
    assert client.read_arrow(name, start={0: two}, partitions=range(1)).num_rows == 1
    client.commit_offsets("limits", {(name, 0): 0})
    assert client.committed("limits")[name, 0].offset == 0
