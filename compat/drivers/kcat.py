"""kcat: librdkafka at the shell. Every call is a process of its own; records travel as JSON."""

from __future__ import annotations

import json
import subprocess
import threading
from collections import defaultdict
from collections.abc import Mapping, Sequence

from compat.drivers.port import (
    HEARTBEAT_MS,
    SESSION_TIMEOUT_MS,
    WAIT_SECONDS,
    Driver,
    KafkaProblem,
    Member,
    Record,
)
from compat.parts import kcat
from compat.security import Security

QUIET = ["-X", "log_level=0", "-X", "allow.auto.create.topics=false"]


class KcatMember(Member):
    """`kcat -G`: what it owns is read from its notices, what it receives from its output."""

    def __init__(self, command: list[str], topic: str) -> None:
        self._process = subprocess.Popen(
            [*command, "-J", "-u", topic],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self._seen: list[Record] = []
        self._owned: frozenset[int] = frozenset()
        self._gone: set[int] = set()
        self._changes = 0
        self._closing = False
        self._threads = [
            threading.Thread(target=work, daemon=True) for work in (self._read, self._notices)
        ]
        for thread in self._threads:
            thread.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._seen.append(_from_json(json.loads(line)))

    def _notices(self) -> None:
        """`% Group g rebalanced (memberid m): assigned: t [0], t [1]` or `revoked: …`."""
        assert self._process.stderr is not None
        for line in self._process.stderr:
            if " rebalanced " not in line or self._closing:
                continue
            _, _, told = line.partition("): ")
            what, _, listed = told.partition(":")
            parts = frozenset(int(item.split("]")[0]) for item in listed.split("[")[1:])
            self._changes += 1
            if what.strip() == "assigned":
                self._owned = parts
            else:
                self._owned = frozenset()
                self._gone |= parts

    def assignment(self) -> frozenset[int]:
        return self._owned

    def rebalances(self) -> int:
        return self._changes

    def revoked(self) -> frozenset[int]:
        return frozenset(self._gone)

    def records(self) -> list[Record]:
        return list(self._seen)

    def close(self) -> None:
        self._closing = True
        self._process.terminate()
        self._process.wait(WAIT_SECONDS)
        for thread in self._threads:
            thread.join(WAIT_SECONDS)
        for stream in (self._process.stdout, self._process.stderr):
            assert stream is not None
            stream.close()


def _from_json(found: dict[str, object]) -> Record:
    key, payload = found["key"], found["payload"]
    pairs = found.get("headers") or []
    assert isinstance(pairs, list)
    return Record(
        value=None if payload is None else str(payload).encode(),
        key=None if key is None else str(key).encode(),
        headers=tuple(
            (name, None if value is None else value.encode())
            for name, value in zip(pairs[::2], pairs[1::2], strict=True)
        ),
        timestamp=int(str(found["ts"])),
        partition=int(str(found["partition"])),
        offset=int(str(found["offset"])),
    )


class Kcat(Driver):
    """kcat. It cannot set timestamps, so a record's own is what the scenario reads back."""

    name = "kcat"
    codecs = ("none", "gzip", "snappy", "lz4", "zstd")
    assignors = {"eager": "range"}
    able = frozenset({"join", "offsets_at", "bounds", "topics"})
    sets_timestamps = False
    keeps_nulls = False

    def __init__(self, bootstrap: str, security: Security | None = None) -> None:
        super().__init__(bootstrap, security)
        patience = ["-m", f"{WAIT_SECONDS:.0f}"]
        self._command = [kcat(), "-b", bootstrap, *patience, *QUIET]
        for name, value in self.security.options().items():
            self._command += ["-X", f"{name}={value}"]
        said = subprocess.run([kcat(), "-V"], capture_output=True, text=True, check=True).stdout
        self.version = said[said.index("Version") :].split("builtin")[0].strip()

    def close(self) -> None:
        """Each call was a process of its own, which has ended."""

    def _run(self, *arguments: str, text: str = "") -> str:
        done = subprocess.run(
            [*self._command, *arguments],
            input=text,
            capture_output=True,
            text=True,
            timeout=WAIT_SECONDS + 5,
        )
        if done.returncode != 0:
            raise KafkaProblem("KCAT", done.stderr.strip())
        return done.stdout

    def produce(
        self,
        topic: str,
        records: Sequence[Record],
        *,
        codec: str = "none",
        idempotent: bool = False,
    ) -> list[int]:
        """One process for each run of records that share partition and headers.

        kcat tells no offsets: the topic's end before and the order of the records give them.
        """
        next_offset = {part: end for part, (_, end) in self.bounds(topic, _parts(records)).items()}
        runs: dict[tuple[int, tuple[tuple[str, bytes | None], ...]], list[Record]] = defaultdict(
            list
        )
        for record in records:
            runs[record.partition, record.headers].append(record)
        order: dict[int, int] = {}
        for (part, _), run in runs.items():
            settings = [
                "-z",
                codec,
                "-X",
                "max.in.flight=1",
                "-X",
                f"enable.idempotence={str(idempotent).lower()}",
            ]
            for name, value in run[0].headers:
                settings += ["-H", f"{name}={(value or b'').decode()}"]
            lines = "".join(
                f"{(record.key or b'').decode()}\t{(record.value or b'').decode()}\n"
                for record in run
            )
            arguments = ["-P", "-t", topic, "-p", str(part), "-Z", "-K", "\t", "-X", "acks=all"]
            self._run(*arguments, "-X", "linger.ms=5", *settings, text=lines)
            for record in run:
                order[id(record)] = next_offset[part]
                next_offset[part] += 1
        return [order[id(record)] for record in records]

    def consume(
        self, topic: str, starts: Mapping[int, int], count: int, *, committed: bool = False
    ) -> list[Record]:
        seen: list[Record] = []
        level = f"isolation.level=read_{'committed' if committed else 'uncommitted'}"
        for part, start in starts.items():
            place = ["-C", "-t", topic, "-p", str(part), "-o", str(start)]
            out = self._run(*place, "-e", "-q", "-J", "-X", "fetch.wait.max.ms=50", "-X", level)
            seen += [_from_json(json.loads(line)) for line in out.splitlines()]
        return seen[:count]

    def join(
        self, group: str, topic: str, *, kind: str = "eager", instance_id: str | None = None
    ) -> Member:
        settings = {
            "auto.offset.reset": "earliest",
            "auto.commit.interval.ms": "200",
            "session.timeout.ms": str(SESSION_TIMEOUT_MS),
            "heartbeat.interval.ms": str(HEARTBEAT_MS),
            "partition.assignment.strategy": self.assignors[kind],
            "fetch.wait.max.ms": "100",
        }
        options = [part for item in settings.items() for part in ("-X", "=".join(item))]
        return KcatMember([*self._command, *options, "-G", group], topic)

    def offsets_at(self, topic: str, timestamp: int, partitions: Sequence[int]) -> dict[int, int]:
        found = {}
        for part in partitions:
            out = self._run("-Q", "-t", f"{topic}:{part}:{timestamp}")
            found[part] = int(out.rsplit("offset", 1)[1])
        return found

    def bounds(self, topic: str, partitions: Sequence[int]) -> dict[int, tuple[int, int]]:
        first = self.offsets_at(topic, -2, partitions)
        last = self.offsets_at(topic, -1, partitions)
        return {part: (first[part], last[part]) for part in partitions}

    def topics(self) -> dict[str, int]:
        found = json.loads(self._run("-L", "-J"))
        return {topic["topic"]: len(topic["partitions"]) for topic in found["topics"]}


def _parts(records: Sequence[Record]) -> list[int]:
    return sorted({record.partition for record in records})
