"""Runs of connectors: positions, dead letters, retries, and the status of runs that end or die."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.catalog import load_catalog

from penstock.base.document import DocumentInvalid
from penstock.client import Client
from penstock.connect import running
from penstock.connect.connector_file import load
from penstock.connect.errors import ConnectorFailed
from penstock.connect.positions import forget
from penstock.connect.running import group_of
from penstock.connect.status import StatusFile, read_status
from penstock.records.extents import READ_COMMITTED
from penstock.testing import Broker
from tests.connect.postgresql.bed import run_once

PLUGIN = Path(__file__).parent / "plugin.py"
SOURCE = '[source]\nconnector = "{plugin}:Numbers"\nlast = {last}\ntopic = "{name}"\n'
SINK = '[sink]\nconnector = "{plugin}:Lines"\ntopics = ["{name}"]\npath = "{path}"\n'


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker() as running_broker:
        yield running_broker


def source_file(folder: Path, name: str, last: int, more: str = "") -> Path:
    file = folder / f"{name}.toml"
    text = f'name = "{name}"\n' + SOURCE.format(plugin=PLUGIN, last=last, name=name)
    file.write_text(text + more)
    return file


def sink_file(folder: Path, name: str, keys: str = "", more: str = "") -> Path:
    file = folder / f"{name}-out.toml"
    text = SINK.format(plugin=PLUGIN, name=name, path=folder / "lines")
    file.write_text(f'name = "{name}-out"\n' + text + keys + more)
    return file


def numbers(broker: Broker, topic: str) -> list[int]:
    with broker.client() as client:
        rows = client.read_arrow(topic, isolation="read_committed")
    return [json.loads(value)["n"] for value in rows["value"].to_pylist()]


def lines(folder: Path) -> list[int]:
    return [int(line) for line in (folder / "lines").read_text().splitlines()]


def test_a_source_continues_where_it_stopped(broker: Broker, tmp_path: Path) -> None:
    run_once(source_file(tmp_path, "first", 25), broker.bootstrap)
    run_once(source_file(tmp_path, "first", 42), broker.bootstrap)
    assert numbers(broker, "first") == list(range(1, 43))


def test_removed_positions_begin_again(broker: Broker, tmp_path: Path) -> None:
    file = source_file(tmp_path, "again", 5)
    run_once(file, broker.bootstrap)
    with broker.client() as client:
        assert forget(client, "again") == ["next"]
    run_once(file, broker.bootstrap)
    assert numbers(broker, "again") == [1, 2, 3, 4, 5] * 2


def test_a_second_run_replaces_the_first(broker: Broker, tmp_path: Path) -> None:
    spec = load(source_file(tmp_path, "twice", 10_000), bootstrap=broker.bootstrap)
    failed: list[Exception] = []
    began = threading.Event()

    def first() -> None:
        with Client(broker.bootstrap) as client:
            status = StatusFile(spec.name, spec.direction, tmp_path / "first")
            run = running.Run(
                spec=spec, client=client, status=status, stop=running.Stop(),
                report=lambda line: began.set(),
            )  # fmt: skip
            try:
                running.run(run)
            except Exception as error:
                failed.append(error)

    thread = threading.Thread(target=first)
    thread.start()
    assert began.wait(30)
    run_once(spec.file, broker.bootstrap)
    thread.join(60)
    assert numbers(broker, "twice") == list(range(1, 10_001))
    assert failed or read_status(tmp_path / "first").state == "RUNNING"  # type: ignore[union-attr]


def test_rows_that_a_sink_refuses_become_dead_letters(broker: Broker, tmp_path: Path) -> None:
    run_once(source_file(tmp_path, "bad", 30), broker.bootstrap)
    file = sink_file(tmp_path, "bad", "refuse = 7\n", '[errors]\ndead_letters = "bad.dead"\n')
    run = run_once(file, broker.bootstrap)
    assert lines(tmp_path) == [number for number in range(1, 31) if number != 7]
    with broker.client() as client:
        [dead] = client.read_arrow("bad.dead").to_pylist()
        committed = client.committed(group_of("bad-out"))
    assert json.loads(dead["value"]) == {"n": 7}
    headers = {item["key"]: item["value"] for item in dead["headers"]}
    assert headers["__connect.errors.topic"] == b"bad"
    assert headers["__connect.errors.stage"] == b"TASK_PUT"
    assert headers["__connect.errors.exception.message"] == b"is refused"
    assert headers["__connect.errors.connector.name"] == b"bad-out"
    assert headers["__connect.errors.offset"].isdigit()
    assert ("bad", 0) in committed
    assert run.status.status.dead_letters == 1


def test_a_refused_row_stops_a_sink_without_dead_letters(broker: Broker, tmp_path: Path) -> None:
    run_once(source_file(tmp_path, "stops", 30), broker.bootstrap)
    file = sink_file(tmp_path, "stops", "refuse = 7\n")
    with pytest.raises(ConnectorFailed, match="row 6: is refused"):
        run_once(file, broker.bootstrap)
    found = read_status(load(file).state)
    assert found is not None
    assert found.state == "FAILED"
    assert "errors.dead_letters" in str(found.cause)


def test_values_that_are_not_json_become_dead_letters(broker: Broker, tmp_path: Path) -> None:
    with broker.client() as client:
        client.create_topic("mixed")
        values = [b'{"n": 1}', b"{", b'{"n": 2}', b"1 2", b'{"n":\n3}']
        client.write_arrow("mixed", pa.table({"value": values}))
    run_once(sink_file(tmp_path, "mixed", "", '[errors]\ntolerance = "all"\n'), broker.bootstrap)
    assert lines(tmp_path) == [1, 2, 3]


def test_a_sink_waits_for_its_target(broker: Broker, tmp_path: Path) -> None:
    run_once(source_file(tmp_path, "waits", 3), broker.bootstrap)
    down = tmp_path / "down"
    down.touch()
    file = sink_file(tmp_path, "waits", f'down = "{down}"\n')
    directory = load(file).state
    thread = threading.Thread(target=run_once, args=(file, broker.bootstrap))
    thread.start()
    while (found := read_status(directory)) is None or found.state != "RETRYING":
        assert thread.is_alive()
    assert found.cause == "the file system is away"
    down.unlink()
    thread.join(60)
    assert lines(tmp_path) == [1, 2, 3]
    assert read_status(directory).state == "STOPPED"  # type: ignore[union-attr]


SINKS = {
    "files": 'connector = "files"\nurl = "{place}/files"\nfile_format = "jsonl"\n',
    "sql": 'connector = "sql"\nurl = "sqlite:///{place}/rows.db"\ncreate_table = true\n',
    "iceberg": (
        'connector = "iceberg"\ntable = "db.all"\n[sink.catalog]\ntype = "sql"\n'
        'uri = "sqlite:///{place}/catalog.db"\nwarehouse = "{place}/lake"\n'
    ),
}


def stored_rows(place: Path, kind: str) -> list[int]:
    """Return the numbers that a sink of `SINKS` has stored, sorted."""
    if kind == "files":
        found = [line for path in place.rglob("*.jsonl") for line in path.read_text().splitlines()]
        return sorted(json.loads(line)["n"] for line in found)
    if kind == "sql":
        with sqlite3.connect(place / "rows.db") as connection:
            return [row[0] for row in connection.execute('SELECT n FROM "all" ORDER BY n')]
    catalog = load_catalog(
        type="sql", uri=f"sqlite:///{place}/catalog.db", warehouse=f"{place}/lake"
    )
    column = catalog.load_table("db.all").scan().to_arrow()["n"]
    return sorted(column.to_pylist())


@pytest.mark.parametrize("kind", SINKS)
def test_topics_that_get_one_name_are_stored_once(
    broker: Broker, tmp_path: Path, kind: str
) -> None:
    names = [f"{kind}-{number}" for number in (1, 2)]
    file = tmp_path / f"{kind}-out.toml"
    file.write_text(
        f'[sink]\ntopics = ["{names[0]}", "{names[1]}"]\n'
        + SINKS[kind].format(place=tmp_path)
        + '[transform.same]\ntype = "RegexRouter"\nregex = ".*"\nreplacement = "all"\n'
    )
    for last in (3, 5):
        for name in names:
            run_once(source_file(tmp_path, name, last), broker.bootstrap)
        run = run_once(file, broker.bootstrap)
        assert stored_rows(tmp_path, kind) == sorted([*range(1, last + 1)] * 2)
        assert run.status.status.records == 2 * (3 if last == 3 else 2)
        with broker.client() as client:
            group = client.committed(group_of(f"{kind}-out"))
        sink = run.spec.sink_plugin()(run.spec.settings, run.spec.name)
        assert {place: found.offset for place, found in group.items()} == sink.offsets()
        sink.close()


def test_parts_of_a_batch_are_stored_once(broker: Broker, tmp_path: Path) -> None:
    moments = [86_400_000 * (number % 3) for number in range(9)]
    file = tmp_path / "parts-out.toml"
    file.write_text(
        f'[sink]\nconnector = "files"\ntopics = ["parts"]\nurl = "{tmp_path}/out"\n'
        'file_format = "jsonl"\nbatch_rows = 4\nrotate_rows = 4\n'
        '[transform.daily]\ntype = "TimestampRouter"\ntopic_format = "${topic}.${timestamp}"\n'
    )
    for first in (0, 9):
        with broker.client() as client:
            client.create_topic("parts", exist_ok=True)
            values = [b'{"n": %d}' % (first + number) for number in range(9)]
            times = pa.array(moments, pa.timestamp("ms", "UTC"))
            client.write_arrow("parts", pa.table({"value": values, "timestamp": times}))
        run_once(file, broker.bootstrap)
    for day in range(3):
        folder = tmp_path / "out" / f"parts.1970010{day + 1}"
        paths = sorted(folder.rglob("parts+0+*.jsonl"))
        found = [json.loads(line)["n"] for path in paths for line in path.read_text().splitlines()]
        assert found == [number for number in range(18) if number % 3 == day]


def test_offsets_of_a_sink_are_those_of_complete_files(broker: Broker, tmp_path: Path) -> None:
    run_once(source_file(tmp_path, "open", 30), broker.bootstrap)
    file = tmp_path / "open-out.toml"
    file.write_text(
        f'[sink]\nconnector = "files"\ntopics = ["open"]\nurl = "{tmp_path}/out"\n'
        'file_format = "jsonl"\nrotate_rows = 20\nbatch_rows = 10\nflush_interval_seconds = 0.1\n'
    )
    spec = load(file, bootstrap=broker.bootstrap)
    with Client(broker.bootstrap) as client:
        status = StatusFile(spec.name, spec.direction, tmp_path / "status")
        run = running.Run(spec=spec, client=client, status=status, stop=running.Stop())
        thread = threading.Thread(target=running.run, args=(run,))
        thread.start()
        try:
            while status.status.facts.get("open_rows") != 10 or not status.status.records:
                assert thread.is_alive()
            [following] = status.status.facts["stored"].values()
            assert status.status.records == 20
            assert status.status.positions == {"open-0": following}
            assert client.committed(group_of("open-out"))["open", 0].offset == following
        finally:
            run.stop.set()
            thread.join(60)
        [end] = client.list_offsets("open", "latest", isolation=READ_COMMITTED).values()
        assert client.committed(group_of("open-out"))["open", 0].offset == end
    assert status.status.records == 30


def test_rows_of_another_kind_become_dead_letters(broker: Broker, tmp_path: Path) -> None:
    values = [b'{"n": 1.5}', b'{"n": "NaN"}', b'{"n": 12345678901234567890123}', b'{"n": {}}']
    with broker.client() as client:
        client.create_topic("kinds")
        client.write_arrow("kinds", pa.table({"value": values}))
    file = tmp_path / "kinds-out.toml"
    file.write_text(
        f'[sink]\nconnector = "files"\ntopics = ["kinds"]\nurl = "{tmp_path}/out"\n'
        '[errors]\ndead_letters = "kinds.dead"\n'
    )
    run_once(file, broker.bootstrap)
    [path] = (tmp_path / "out").rglob("*.parquet")
    found = pq.read_table(path, partitioning=None)["n"].to_pylist()
    assert found == [Decimal("1.5"), Decimal("12345678901234567890123")]
    with broker.client() as client:
        dead = client.read_arrow("kinds.dead")["value"].to_pylist()
    assert dead == [values[1], values[3]]


def test_a_renamed_topic_is_stored_once(broker: Broker, tmp_path: Path) -> None:
    file = tmp_path / "renamed-out.toml"
    file.write_text(
        f'[sink]\nconnector = "files"\ntopics = ["renamed"]\nurl = "{tmp_path}/out"\n'
        'file_format = "jsonl"\n[transform.other]\ntype = "RegexRouter"\nregex = ".*"\n'
        'replacement = "other"\n'
    )
    for last in (3, 5):
        run_once(source_file(tmp_path, "renamed", last), broker.bootstrap)
        run_once(file, broker.bootstrap)
    parts = sorted((tmp_path / "out" / "other").rglob("*.jsonl"))
    found = [json.loads(line)["n"] for part in parts for line in part.read_text().splitlines()]
    assert found == [1, 2, 3, 4, 5]


def test_the_file_of_a_status_has_the_last_facts(tmp_path: Path) -> None:
    status = StatusFile("a", "source", tmp_path)
    status.refresh({"retained_bytes": 7})
    status.enter("RUNNING")
    found = read_status(tmp_path)
    assert found is not None
    assert found.facts == {"retained_bytes": 7}


def test_the_status_of_a_killed_run_is_failed(broker: Broker, tmp_path: Path) -> None:
    file = source_file(tmp_path, "killed", 10)
    command = [
        sys.executable,
        "-m",
        "penstock",
        "connect",
        "run",
        str(file),
        "-b",
        broker.bootstrap,
    ]
    process = subprocess.Popen(command)
    directory = load(file).state
    while (found := read_status(directory)) is None or found.state != "RUNNING":
        assert process.poll() is None
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    found = read_status(directory)
    assert found is not None
    assert found.state == "FAILED"
    assert f"process {process.pid} was killed" in str(found.cause)


WRONG = """\
name = "a b"
extra = 1
[source]
connector = "postgresql"
url = 5
tabels = ["x"]
[errors]
tolerance = "some"
"""


def test_all_problems_of_a_file_are_reported(tmp_path: Path) -> None:
    file = tmp_path / "wrong.toml"
    file.write_text(WRONG)
    with pytest.raises(DocumentInvalid) as caught:
        load(file)
    found = [str(problem).removeprefix(f"{file}:") for problem in caught.value.problems]
    assert found == [
        "1: name: 'a b': may contain only ASCII letters, digits, '.', '_' and '-'; correct it",
        "2: extra: is not known here; known are name, source, sink, transform, predicate,"
        " errors, run",
        "3: source.tables: is required; write tables = …",
        "5: source.url: must be text",
        "6: source.tabels: there is no setting of this name; did you mean tables?",
        "8: errors.tolerance: must be one of none, all, not 'some'",
    ]


def test_variables_and_files_replace_secrets(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SHOP_USER", "alice")
    (tmp_path / "password").write_text("secret\n")
    file = tmp_path / "shop.toml"
    file.write_text(
        '[source]\nconnector = "postgresql"\ntables = ["public.*"]\n'
        'url = "postgresql://${env:SHOP_USER}:${file:password}@h/shop"\n'
    )
    spec = load(file)
    assert spec.name == "shop"
    assert spec.settings.url == "postgresql://alice:secret@h/shop"
    file.write_text(file.read_text().replace("SHOP_USER", "NO_SUCH"))
    with pytest.raises(DocumentInvalid, match="environment variable NO_SUCH is not set"):
        load(file)


def test_registered_values_are_read_as_they_were_written(tmp_path: Path) -> None:
    settings = {"registry.enable": "true", "registry.listener": "127.0.0.1:0"}
    with Broker(settings) as broker:
        registry = f'format = "registry"\nregistry = "http://{broker.registry_address}"\n'
        source = source_file(tmp_path, "avro", 25)
        source.write_text(source.read_text() + registry)
        run_once(source, broker.bootstrap)
        with broker.client() as client:
            url = f"http://{broker.registry_address}"
            rows = client.read_arrow("avro", columns=("key", "value"), decode=url)
            [first] = client.read_arrow("avro", max_records=1).to_pylist()
        assert rows["value"].to_pylist() == [{"n": number} for number in range(1, 26)]
        assert first["value"][:1] == b"\0"
        run_once(sink_file(tmp_path, "avro", registry), broker.bootstrap)
        assert lines(tmp_path) == list(range(1, 26))


def test_next_offsets_are_those_behind_the_last_rows() -> None:
    partitions, offsets = [2, 2, 0, 2, 0], [4, 7, 3, 9, 5]
    rows = pa.table(
        {"partition": pa.chunked_array([partitions[:2], partitions[2:]], pa.int32()),
         "offset": pa.array(offsets, pa.int64())}
    )  # fmt: skip
    assert running._following(rows, {0: 0, 1: 8, 2: 12}) == {0: 6, 1: 8, 2: 12}
    assert running._following(rows, {0: 0, 1: 8, 2: 0}) == {0: 6, 1: 8, 2: 10}
    assert running._following(rows.slice(0, 0), {0: 3}) == {0: 3}
