"""Clients of other languages: a program beside the suite that takes one JSON call a line.

`{"id": 1, "op": "produce", …}` goes to its standard input, `{"id": 1, "result": …}` or
`{"id": 1, "error": NAME, "message": …}` comes back; bytes travel in base64. The program lives as
long as the suite, since a Java machine takes half a second to start.
"""

from __future__ import annotations

import base64
import json
import os
import queue
import subprocess
import threading
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from compat.drivers.port import (
    EVERYTHING,
    HEARTBEAT_MS,
    SESSION_TIMEOUT_MS,
    WAIT_SECONDS,
    Driver,
    GroupDescription,
    KafkaProblem,
    Member,
    Record,
    Transactional,
)
from compat.parts import franz_go, java_program, kafkajs
from compat.security import Security

HERE = Path(__file__).resolve().parent.parent
ANSWER_SECONDS = WAIT_SECONDS + 15


def _text(value: bytes | None) -> str | None:
    return None if value is None else base64.b64encode(value).decode()


def _bytes(value: str | None) -> bytes | None:
    return None if value is None else base64.b64decode(value)


def _to_json(record: Record) -> dict[str, Any]:
    return {
        "value": _text(record.value),
        "key": _text(record.key),
        "headers": [[name, _text(value)] for name, value in record.headers],
        "timestamp": record.timestamp,
        "partition": record.partition,
    }


def from_json(found: dict[str, Any]) -> Record:
    """A record from what the program answers."""
    return Record(
        value=_bytes(found["value"]),
        key=_bytes(found["key"]),
        headers=tuple((name, _bytes(value)) for name, value in found["headers"]),
        timestamp=found["timestamp"],
        partition=found["partition"],
        offset=found["offset"],
    )


class Program:
    """The running program; calls are answered in order, one at a time."""

    def __init__(
        self,
        command: list[str],
        environment: Mapping[str, str],
        *,
        answer_seconds: float = ANSWER_SECONDS,
    ) -> None:
        self._answer_seconds = answer_seconds
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env={**os.environ, **environment},
        )
        self._answers: queue.Queue[str] = queue.Queue()
        self._calls = 0
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._answers.put(line)
        self._answers.put("")

    @property
    def pid(self) -> int:
        """The process id."""
        return self._process.pid

    def kill(self) -> None:
        """End the program at once; calls that are under way fail."""
        self._process.kill()

    def call(self, operation: str, **arguments: Any) -> Any:
        """The result of one operation."""
        assert self._process.stdin is not None
        self._calls += 1
        wanted = {"id": self._calls, "op": operation, **arguments}
        self._process.stdin.write(json.dumps(wanted) + "\n")
        self._process.stdin.flush()
        while True:
            try:
                line = self._answers.get(timeout=self._answer_seconds)
            except queue.Empty:
                limit = self._answer_seconds
                raise TimeoutError(f"{operation}: no answer in {limit} s") from None
            if not line:
                raise RuntimeError(f"{operation}: the program has ended")
            answer = json.loads(line)
            if answer["id"] != self._calls:
                continue
            if "error" in answer:
                raise KafkaProblem(answer["error"], answer.get("message", ""))
            return answer["result"]

    def close(self) -> None:
        """End the program."""
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):  # it was killed
            self._process.stdin.close()
        try:
            self._process.wait(WAIT_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._reader.join(WAIT_SECONDS)
        assert self._process.stdout is not None
        self._process.stdout.close()


class RemoteMember(Member):
    """A member that lives in the program."""

    def __init__(self, program: Program, handle: int) -> None:
        self._program = program
        self._handle = handle

    def _state(self) -> dict[str, Any]:
        state = self._program.call("member_state", member=self._handle)
        assert isinstance(state, dict)
        return state

    def assignment(self) -> frozenset[int]:
        return frozenset(self._state()["assignment"])

    def rebalances(self) -> int:
        return int(self._state()["rebalances"])

    def revoked(self) -> frozenset[int]:
        return frozenset(self._state()["revoked"])

    def records(self) -> list[Record]:
        found = self._program.call("member_records", member=self._handle)
        return [from_json(each) for each in found]

    def close(self) -> None:
        self._program.call("member_close", member=self._handle)


class Remote(Driver):
    """A client behind a program."""

    def __init__(self, bootstrap: str, security: Security | None = None) -> None:
        super().__init__(bootstrap, security)
        self.program = self._start()
        self.version = self._call("version")

    @abstractmethod
    def _start(self) -> Program:
        """Start the program."""

    def _call(self, operation: str, **arguments: Any) -> Any:
        return self.program.call(operation, bootstrap=self.bootstrap, **arguments)

    def close(self) -> None:
        self.program.close()

    def produce(
        self,
        topic: str,
        records: Sequence[Record],
        *,
        codec: str = "none",
        idempotent: bool = False,
    ) -> list[int]:
        found = self._call(
            "produce",
            topic=topic,
            records=[_to_json(record) for record in records],
            codec=codec,
            idempotent=idempotent,
        )
        return [int(offset) for offset in found]

    def consume(
        self, topic: str, starts: Mapping[int, int], count: int, *, committed: bool = False
    ) -> list[Record]:
        places = [[part, start] for part, start in starts.items()]
        found = self._call(
            "consume",
            topic=topic,
            starts=places,
            count=count,
            wait_ms=int(WAIT_SECONDS * 1000),
            committed=committed,
        )
        return [from_json(each) for each in found]

    def join(
        self, group: str, topic: str, *, kind: str = "eager", instance_id: str | None = None
    ) -> Member:
        handle = self._call(
            "member_open",
            group=group,
            topic=topic,
            protocol="consumer" if kind == "server" else "classic",
            assignor=self.assignors[kind],
            instance=instance_id,
            session_ms=SESSION_TIMEOUT_MS,
            heartbeat_ms=HEARTBEAT_MS,
        )
        return RemoteMember(self.program, handle)

    def commit(self, group: str, topic: str, offsets: Mapping[int, tuple[int, str]]) -> None:
        wanted = [[part, offset, metadata] for part, (offset, metadata) in offsets.items()]
        self._call("commit", group=group, topic=topic, offsets=wanted)

    def committed(
        self, group: str, topic: str, partitions: Sequence[int]
    ) -> dict[int, tuple[int, str]]:
        found = self._call("committed", group=group, topic=topic, partitions=list(partitions))
        return {part: (offset, metadata) for part, offset, metadata in found}

    def offsets_at(self, topic: str, timestamp: int, partitions: Sequence[int]) -> dict[int, int]:
        asked = list(partitions)
        found = self._call("offsets_at", topic=topic, timestamp=timestamp, partitions=asked)
        return dict(found)

    def bounds(self, topic: str, partitions: Sequence[int]) -> dict[int, tuple[int, int]]:
        return self._pairs("bounds", topic, partitions)

    def tiers(self, topic: str, partitions: Sequence[int]) -> dict[int, tuple[int, int]]:
        return self._pairs("tiers", topic, partitions)

    def _pairs(
        self, operation: str, topic: str, partitions: Sequence[int]
    ) -> dict[int, tuple[int, int]]:
        found = self._call(operation, topic=topic, partitions=list(partitions))
        return {part: (first, last) for part, first, last in found}

    def create_topic(self, name: str, partitions: int, configs: Mapping[str, str]) -> None:
        self._call("create_topic", topic=name, partitions=partitions, configs=dict(configs))

    def delete_topic(self, name: str) -> None:
        self._call("delete_topic", topic=name)

    def topics(self) -> dict[str, int]:
        return dict(self._call("topics"))

    def create_partitions(self, name: str, total: int) -> None:
        self._call("create_partitions", topic=name, total=total)

    def configs(self, name: str) -> dict[str, str]:
        return dict(self._call("configs", topic=name))

    def alter_config(self, name: str, key: str, value: str) -> None:
        self._call("alter_config", topic=name, key=key, value=value)

    def delete_records(self, topic: str, offsets: Mapping[int, int]) -> None:
        self._call("delete_records", topic=topic, offsets=[list(each) for each in offsets.items()])

    def groups(self) -> set[str]:
        return set(self._call("groups"))

    def describe_group(self, group: str) -> GroupDescription:
        state, members = self._call("describe_group", group=group)
        return GroupDescription(state.lower().replace("_", ""), members)

    def delete_group(self, group: str) -> None:
        self._call("delete_group", group=group)

    def cluster(self) -> tuple[str, int]:
        cluster_id, brokers = self._call("cluster")
        return cluster_id, brokers

    def log_dirs(self, topic: str) -> dict[int, int]:
        return dict(self._call("log_dirs", topic=topic))

    def config_topics(self) -> set[str]:
        return set(self._call("config_topics"))

    def transactional(self, transactional_id: str, *, timeout_ms: int = 60_000) -> Transactional:
        handle = self._call(
            "transactional_open", transactional=transactional_id, timeout_ms=timeout_ms
        )
        return RemoteTransactional(self.program, handle)


class RemoteTransactional(Transactional):
    """A transactional producer that lives in the program."""

    def __init__(self, program: Program, handle: int) -> None:
        self._program = program
        self._handle = handle

    def _call(self, operation: str, **arguments: Any) -> Any:
        return self._program.call(
            "transactional", producer=self._handle, does=operation, **arguments
        )

    def begin(self) -> None:
        self._call("begin")

    def send(self, topic: str, records: Sequence[Record]) -> list[int]:
        found = self._call("send", topic=topic, records=[_to_json(record) for record in records])
        return [int(offset) for offset in found]

    def send_offsets(self, group: str, topic: str, offsets: Mapping[int, int]) -> None:
        self._call("send_offsets", group=group, topic=topic, offsets=list(offsets.items()))

    def end(self, *, commit: bool) -> None:
        self._call("commit" if commit else "abort")

    def close(self) -> None:
        self._call("close")


def java_environment(security: Security) -> dict[str, str]:
    """What tells a Java program how to connect: a file of properties."""
    return {} if security.plain else {"CLIENT_PROPERTIES": security.properties_file()}


def environment(security: Security) -> dict[str, str]:
    """What tells another program how to connect: librdkafka's options, and a token."""
    token = {"token": Path(security.token).read_text()} if security.token else {}
    return {"CLIENT_OPTIONS": json.dumps({**security.options(), **token})}


class Java(Remote):
    """Apache Kafka's own Java client."""

    name = "java"
    codecs = ("none", "gzip", "snappy", "lz4", "zstd")
    assignors = {
        "eager": "org.apache.kafka.clients.consumer.RangeAssignor",
        "cooperative": "org.apache.kafka.clients.consumer.CooperativeStickyAssignor",
        "server": "uniform",
    }
    able = EVERYTHING | {"log_dirs", "config_topics", "tiers", "transactions"}

    def _start(self) -> Program:
        quiet = "-Dorg.slf4j.simpleLogger.defaultLogLevel=off"
        small = ["-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"]
        name = "ForeignClient"
        token, prefix = self.security.token, "-Dorg.apache.kafka.sasl.oauthbearer.allowed"
        places = {"urls": Path(token).absolute().as_uri(), "files": token}
        allowed = [f"{prefix}.{kind}={place}" for kind, place in places.items() if token]
        command = ["java", "-cp", java_program(name, "kafka"), *small, quiet, *allowed, name]
        return Program(command, java_environment(self.security))


class FranzGo(Remote):
    """franz-go, the client of Go programs."""

    name = "franz-go"
    codecs = ("none", "gzip", "snappy", "lz4", "zstd")
    assignors = {"eager": "range", "cooperative": "cooperative", "server": "uniform"}
    able = EVERYTHING | {"log_dirs", "config_topics", "transactions"}

    def _start(self) -> Program:
        return Program([str(franz_go())], environment(self.security))


class KafkaJS(Remote):
    """KafkaJS under Node."""

    name = "kafkajs"
    codecs = ("none", "gzip", "snappy", "lz4")
    assignors = {"eager": "RoundRobinAssigner"}
    able = EVERYTHING - {"static"}
    groups_needed = (("read", "group", "reader-*"),)

    def _start(self) -> Program:
        modules = str(kafkajs() / "node_modules")
        program = str(HERE / "kafkajs" / "driver.js")
        own = {"NODE_PATH": modules, "KAFKAJS_NO_PARTITIONER_WARNING": "1"}
        return Program(["node", program], {**own, **environment(self.security)})
