"""Pipeline under test: its broker, its topics and tables, its feeder, and its output."""

from __future__ import annotations

import contextlib
import itertools
import json
import random
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import psutil
import pyarrow as pa
from deltalake import DeltaTable
from deltalake.exceptions import TableNotFoundError

from penstock.base.errors import PenstockError
from penstock.spark.pipeline.journal import Journal
from penstock.spark.pipeline.parsing import load
from penstock.spark.pipeline.retry_store import ReleaseBox
from penstock.spark.pipeline.state import PipelinePaths
from penstock.testing import Broker
from tests.scenarios.spark.checks import Row, Written, problems, source_of

PARTITIONS: Final = 4
KEYS: Final = 60
QUERY: Final = "numbers"
BATCH_RECORDS: Final = 40
DRAIN_RECORDS: Final = 20_000
FEED_RECORDS: Final = 12
FEED_SECONDS: Final = 0.8
WAVE_RECORDS: Final = 100
NO_WAVE: Final = 1 << 30
PREFIX: Final = b"penstock.error."
FILE: Final = """
name = "kills"

[run]
trigger = "{trigger}"
max_records = {records}
restarts = 1000

[source.numbers]
topic = "in"
format = "json"
schema = "n bigint, kind string, wave bigint"

[source.numbers.expect]
"not bad" = {{ that = "kind <> 'bad'", otherwise = "dead-letter" }}
{rules}

[step.shown]
sql = '''
select n, cast(_record.key as string) as id, _record.partition as part, _record.offset as place,
  _record
from numbers
'''

[sink.lake]
from = "shown"
table = "lake"

[sink.latest]
from = "shown"
table = "latest"
mode = "upsert"
keys = ["id"]
order_by = "place"

[sink.out]
from = "shown"
topic = "out"
key = "id"
ordered = true

[errors]
dead_letters = "dead"
{errors}
"""
RULES: Final = """
"of a wave that is known" = {{ that = "kind <> 'park' or wave <= {wave}", otherwise = "park" }}
"second try" = {{ that = "kind <> 'again' or _record.attempt >= 1", otherwise = "retry" }}
"""
ERRORS: Final = """
retry_delays = ["200 ms", "1 second"]
keep_order = true
"""


class Line:
    """A pipeline in a folder; made again on the same folder it continues where it was."""

    def __init__(self, folder: Path, *, holding: bool, seed: int) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self.holding = holding
        self.file = folder / "pipeline.toml"
        self.log = folder / "kills.jsonl"
        self._random = random.Random(f"{seed}/{folder.name}")
        self._releases = itertools.count()
        directory = folder / "broker"
        directory.mkdir(exist_ok=True)
        self.broker = Broker(process=True, directory=directory)
        self._feeding = threading.Event()
        self._closed = threading.Event()
        self._feeder = threading.Thread(target=self._feed, daemon=True)
        self._sent = 0
        self.numbers: Counter[str] = Counter()

    def __enter__(self) -> Line:
        self._start_broker()
        with self.broker.client() as client:
            for name, partitions in (("in", PARTITIONS), ("out", 3), ("dead", 1)):
                client.create_topic(name, partitions=partitions, exist_ok=True)
            self._sent = client.read_arrow("in", columns=("offset",)).num_rows
        self.write_file()
        self._feeder.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._closed.set()
        self._feeding.set()
        self._feeder.join()
        self.broker.stop()

    @property
    def kills(self) -> list[str]:
        """The points of all kills so far."""
        if not self.log.exists():
            return []
        return [json.loads(line)["point"] for line in self.log.read_text().splitlines()]

    @property
    def broker_file(self) -> Path:
        """Return the path of the file with the broker's process id."""
        return self.folder / "broker.pid"

    def mend_broker(self) -> bool:
        """Start the broker again if it was killed; whether it was."""
        pid = self.broker.pid
        if pid is not None:
            with contextlib.suppress(psutil.NoSuchProcess):
                if psutil.Process(pid).status() != psutil.STATUS_ZOMBIE:
                    return False
            self.broker.kill()
        self._start_broker()
        return True

    def _start_broker(self) -> None:
        self.broker.start()
        self.broker_file.write_text(str(self.broker.pid))

    # Records and requests

    def feed(self, on: bool) -> None:
        """Let records arrive, or not."""
        (self._feeding.set if on else self._feeding.clear)()

    def _feed(self) -> None:
        client = None
        while self._feeding.wait() and not self._closed.wait(FEED_SECONDS):
            try:
                client = client or self.broker.client()
                self.send(client, FEED_RECORDS)
            except (PenstockError, OSError):
                # The broker is away. What it has of this is in the log, and counts from there.
                if client is not None:
                    client.close()
                client = None
        if client is not None:
            client.close()

    def send(self, client: Any, count: int) -> None:
        """Write records: most are good, some are not."""
        first, self._sent = self._sent, self._sent + count
        rows = list(self._records(first, count))
        keys, values = zip(*rows, strict=True)
        client.write_arrow("in", pa.table({"key": keys, "value": values}))

    def _records(self, first: int, count: int) -> Iterator[tuple[bytes, bytes]]:
        # Bad ones come in nearly every batch, so that no step of it is skipped.
        weights = {"good": 80, "bad": 6, "undecodable": 4}
        if self.holding:
            weights |= {"park": 2, "again": 4}
        for n in range(first, first + count):
            (kind,) = self._random.choices([*weights], [*weights.values()])
            key = f"k{self._random.randrange(KEYS)}".encode()
            value = json.dumps({"n": n, "kind": kind, "wave": n // WAVE_RECORDS}).encode()
            yield key, value[:-1] if kind == "undecodable" else value

    def ask_for_releases(self) -> None:
        """Request now and then that held records are released, or become dead letters."""
        if not self.holding:
            return
        chance = self._random.random()
        body: dict[str, Any] = {"keys": "all"}
        if chance < 0.25:
            picked = self._random.sample(range(KEYS), KEYS // 6)
            body = {"keys": [f"k{key}".encode().hex() for key in picked], "dead_letter": True}
        self.ask(body)

    def ask(self, body: dict[str, Any]) -> None:
        """Put a request to release into the box."""
        number = f"{len(self.kills):06d}-{next(self._releases):06d}"
        ReleaseBox(self.paths().releases(QUERY)).ask(number, body)

    def write_file(self, *, once: bool = False, known: bool = False) -> None:
        """Write the pipeline's file; with `known` no record is parked any more.

        The rule is mended wave by wave, also while a batch is half done: a replay has to go by the
        rules that its batch began with.
        """
        wave = NO_WAVE if known else max(0, self._sent // WAVE_RECORDS - 1)
        self.file.write_text(
            FILE.format(
                trigger="once" if once else "now",
                records=DRAIN_RECORDS if once else BATCH_RECORDS,
                rules=RULES.format(wave=wave) if self.holding else "",
                errors=ERRORS if self.holding else "",
            )
        )

    def paths(self) -> PipelinePaths:
        return PipelinePaths(
            load(self.file, bootstrap=self.broker.bootstrap, admin=self.broker.admin_url)
        )

    def held(self) -> int:
        """Return the number of held records after a batch."""
        last = Journal(self.paths().journal(QUERY)).last()
        return 0 if last is None else last.held

    # What was written

    def problems(self, *, final: bool = False) -> list[str]:
        """Return the errors in what was written so far."""
        with self.broker.client() as client:
            # The sinks first: they have no record that comes after them in the source.
            table, upsert = (tuple(self._rows(name)) for name in ("lake", "latest"))
            out: dict[int, list[Row]] = {}
            for row in self._read(client, "out"):
                out.setdefault(row["partition"], []).append(_row(json.loads(row["value"])))
            dead = tuple(_died(row) for row in self._read(client, "dead"))
            written = Written(
                source=source_of(self._read(client, "in")),
                table=table,
                upsert=upsert,
                out={partition: tuple(rows) for partition, rows in out.items()},
                dead=dead,
            )
        self.numbers = Counter(
            source=len(written.source),
            table=len(table),
            upsert=len(upsert),
            topic=sum(map(len, out.values())),
            dead=len(dead),
        )
        return problems(written, final=final)

    def _rows(self, name: str) -> Iterator[Row]:
        try:
            table = DeltaTable(str(self.folder / name)).to_pyarrow_table()
        except TableNotFoundError:
            return
        yield from map(_row, table.to_pylist())

    def _read(self, client: Any, topic: str) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = client.read_arrow(topic).to_pylist()
        return found


def _row(values: dict[str, Any]) -> Row:
    return Row(place=(values["part"], values["place"]), key=values["id"], n=values["n"])


def _died(letter: dict[str, Any]) -> tuple[int, int]:
    headers = {header["key"].encode(): header["value"] for header in letter["headers"]}
    return int(headers[PREFIX + b"partition"]), int(headers[PREFIX + b"offset"])
