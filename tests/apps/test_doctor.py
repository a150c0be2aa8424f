"""`penstock doctor` against real brokers, databases, stores and agents, some of them away."""

from __future__ import annotations

import json
import os
import signal
import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path

import pyarrow as pa
import pytest
from compat.servers import PenstockProcess

from penstock.apps.doctor import Check, Finding, look
from penstock.base.errors import PenstockError
from penstock.base.system import SYSTEM_CLOCK
from penstock.testing import Agent, Broker
from tests.apps.conftest import Run
from tests.apps.test_host import until
from tests.ports import free_port
from tests.postgres import PostgresServer, postgres_server
from tests.s3 import S3Server, s3_server

Found = dict[str, tuple[str, str, str]]


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresServer]:
    """A PostgreSQL server of these tests' own, which they stop, freeze, and leave running."""
    with postgres_server() as server:
        yield server


@pytest.fixture(scope="module")
def store() -> Iterator[S3Server]:
    """An S3 server of these tests' own."""
    with s3_server() as store:
        yield store


def examined(run: Run, *words: str) -> tuple[int, Found]:
    """The status of a visit, and its findings: status, cause and fix by check."""
    ran = run(*words[:2], "doctor", *words[2:], "--output", "json")
    rows = json.loads(ran.out)
    assert len({row["check"] for row in rows}) == len(rows)
    return ran.status, {row["check"]: (row["status"], row["cause"], row["fix"]) for row in rows}


def unready(run: Run, *words: str) -> tuple[int, Found]:
    """Return `examined` once a broker is not ready: its last answer is kept for a second."""
    for _ in range(20):
        status, found = examined(run, *words)
        if found["readiness of broker 1"][0] == "fail":
            break
    return status, found


def admin_of(broker: Broker) -> str:
    return broker.admin_url.removeprefix("http://")


def test_every_advertised_address_is_tried(
    bare: Run, server: PostgresServer, tmp_path: Path
) -> None:
    url, gone = server.schema(), f"127.0.0.1:{free_port()}"
    advertised = {1: "", 2: gone, 3: "broker-3.invalid:9092", 4: gone}
    with ExitStack() as stack:
        brokers = []
        for node, address in advertised.items():
            settings = {
                "node.id": node,
                "control.url": url,
                "diskless.storage.url": tmp_path.as_uri(),
                "broker.session.timeout.ms": 60_000,
            }
            if address:
                settings["advertised.listeners"] = f"PLAINTEXT://{address}"
            brokers.append(stack.enter_context(Broker(settings, admin=False)))
        first = brokers[0].bootstrap
        with brokers[0].client() as client:
            until(lambda: len(client.metadata([]).nodes) == len(advertised))
        status, found = examined(bare, "-b", first, "--data-dir", str(tmp_path))
    assert status == 1
    assert found[f"broker 1 at {first}"][0] == "ok"
    state, cause, fix = found[f"broker 2 at {gone}"]
    assert (state, fix.startswith("start broker 2")) == ("fail", True)
    assert f"{gone} refused the connection: no broker is running there" in cause
    assert "advertised.listeners" not in fix
    state, cause, fix = found["broker 3 at broker-3.invalid:9092"]
    assert (state, "advertised.listeners of broker 3" in fix) == ("fail", True)
    assert "broker-3.invalid cannot be resolved on this machine" in cause
    state, cause, _ = found["advertised addresses"]
    assert (state, cause) == ("fail", f"brokers 2 and 4 advertise the same address, {gone}")
    assert found["readiness of broker 1"][0] == "ok"
    assert found["readiness of broker 2"][0] == "skip", "it cannot be asked where it is"
    assert found["readiness of broker 2"][1].startswith("not checked: ")


def test_a_broker_that_advertises_another_address_is_not_said_to_be_down(bare: Run) -> None:
    gone = f"127.0.0.1:{free_port()}"
    with Broker({"advertised.listeners": f"PLAINTEXT://{gone}"}, admin=False) as broker:
        _, found = examined(bare, "-b", broker.bootstrap)
    state, cause, fix = found[f"broker 1 at {gone}"]
    assert (state, fix.startswith("set advertised.listeners of broker 1")) == ("fail", True)
    assert cause.startswith("it answers at a bootstrap address, but not at its advertised address")
    assert "loopback" in fix


def test_brokers_that_are_down_or_stopped_are_named(bare: Run) -> None:
    unused = f"127.0.0.1:{free_port()}"
    status, found = examined(bare, "-b", unused)
    state, cause, fix = found["broker"]
    assert (status, state, fix.startswith("start a broker")) == (1, "fail", True)
    assert f"{unused} refused the connection: no broker is running there" in cause
    with Broker(process=True, admin=False) as broker:
        assert broker.pid is not None
        os.kill(broker.pid, signal.SIGSTOP)
        try:
            _, found = examined(bare, "-b", broker.bootstrap)
        finally:
            os.kill(broker.pid, signal.SIGCONT)
    _, cause, fix = found["broker"]
    assert f"{broker.bootstrap} did not answer ApiVersions" in cause
    assert "stopped or busy" in fix


def test_without_a_configuration_nothing_is_said_of_one(
    bare: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with Broker() as broker:
        _, found = examined(bare, "-b", broker.bootstrap)
        checks = (
            "database", "object store", "files with secrets", "listeners", "ACLs",
            "admin interface", "disk space", "disk sync",
        )  # fmt: skip
        for check in checks:
            state, cause, fix = found[check]
            assert (state, fix) == ("skip", "give the broker's TOML file with --config"), check
            assert cause == "not checked: no broker's configuration is given"
        shown = bare("-b", broker.bootstrap, "doctor").out
        [line] = [line for line in shown.splitlines() if cause in line]
        assert all(check in line for check in checks), "they share a line"
        named = examined(bare, "-b", broker.bootstrap, "--data-dir", str(broker.directory))[1]
    assert (named["database"][0], named["ACLs"][1]) == ("ok", cause)


@pytest.mark.long
def test_brokers_report_that_their_database_is_unreachable(
    bare: Run, server: PostgresServer, tmp_path: Path
) -> None:
    """Without a configuration, and whatever the command."""
    places = {"control.url": server.schema(), "diskless.storage.url": tmp_path.as_uri()}
    with Broker(places, process=True, admin=False) as broker:
        server.stop()
        try:
            begun = SYSTEM_CLOCK.monotonic()
            status, found = examined(bare, "-b", broker.bootstrap)
            seconds = SYSTEM_CLOCK.monotonic() - begun
            shown = bare("-b", broker.bootstrap, "cluster", "status")
            listed = bare("-b", broker.bootstrap, "topic", "list")
            made = bare("-b", broker.bootstrap, "topic", "create", "t")
        finally:
            server.start()
        state, cause, _ = found["readiness of broker 1"]
        assert (status, state, seconds < 5) == (1, "fail", True)
        assert "database: " in cause
        assert f"PostgreSQL database postgres on 127.0.0.1:{server.port}" in cause
        assert (shown.status, "not ready" in shown.out) == (1, True)
        assert "penstock: broker 1: database: " in shown.err
        assert listed.status == 0
        assert made.status == 1
        waits, cause, *_ = made.err.splitlines()
        assert waits.startswith(f"% waiting for 2 s: {broker.bootstrap} does not answer")
        assert cause.startswith("% broker 1: database: ")


@pytest.mark.parametrize(
    "frozen", [False, pytest.param(True, marks=pytest.mark.long)], ids=["stopped", "frozen"]
)
def test_a_database_that_is_away_is_named_by_broker_and_doctor(
    bare: Run, server: PostgresServer, tmp_path: Path, frozen: bool
) -> None:
    file = tmp_path / "penstock.toml"
    url = server.schema()
    store = (tmp_path / "objects").as_uri()
    (tmp_path / "objects").mkdir()
    file.write_text(f'control.url = "{url}"\ndiskless.storage.url = "{store}"\n')
    with Broker({"control.url": url, "diskless.storage.url": store}) as broker:
        words = ("-b", broker.bootstrap, "--admin", admin_of(broker), "--config", str(file))
        status, found = examined(bare, *words)
        assert (status, found["database"][0], found["readiness of broker 1"][0]) == (
            0,
            "warn",
            "ok",
        )
        assert "fsync is off" in found["database"][1]
        server.freeze() if frozen else server.stop()
        try:
            status, found = unready(bare, *words)
        finally:
            server.freeze(thaw=True) if frozen else server.start()
        assert status == 1
        state, cause, fix = found["readiness of broker 1"]
        assert (state, cause.startswith("database: ")) == ("fail", True)
        assert "no restart" in fix
        state, cause, fix = found["database"]
        assert (state, "control.url" in fix) == ("fail", True)
        assert cause
        assert found["disk sync"][0] in ("ok", "warn"), "the others are looked at all the same"


def test_an_object_store_that_is_frozen_is_named(
    bare: Run, store: S3Server, tmp_path: Path
) -> None:
    file = tmp_path / "penstock.toml"
    options = json.dumps([f"{name}={value}" for name, value in store.options().items()])
    url = store.fresh_url()
    file.write_text(f'diskless.storage.url = "{url}"\ndiskless.storage.options = {options}\n')
    settings = {
        "diskless.storage.url": url,
        "diskless.storage.options": ",".join(json.loads(options)),
    }
    with Broker(settings) as broker:
        words = ("-b", broker.bootstrap, "--admin", admin_of(broker), "--config", str(file))
        other = tmp_path / "other.toml"
        other.write_text(file.read_text().replace(url, store.fresh_url()))
        _, found = examined(bare, *words[:-1], str(other))
        state, cause, _ = found["object store"]
        assert (state, "does not have the object that identifies it" in cause) == ("warn", True)
        status, found = examined(bare, *words)
        assert (status, found["object store"][0]) == (0, "ok")
        store.freeze()
        try:
            status, found = unready(bare, *words)
        finally:
            store.freeze(thaw=True)
        assert status == 1
        assert found["object store"][0] == "fail"
        assert found["readiness of broker 1"][:2] == ("fail", "object store: no answer within 2 s")


def test_an_admin_interface_at_a_port_of_chance_is_found(bare: Run, tmp_path: Path) -> None:
    server = PenstockProcess(tmp_path, listener=f"127.0.0.1:{free_port()}").start()
    try:
        _, found = examined(bare, "-b", server.bootstrap, "--data-dir", str(tmp_path / "data"))
    finally:
        server.kill()
    assert found["readiness of broker 1"][0] == "ok"
    assert [check for check in found if check.startswith("clock of 127.0.0.1:")]
    assert found["stored records"][0] == "ok"


def test_readiness_is_asked_where_the_broker_says(bare: Run) -> None:
    with Broker() as broker:
        words = ("-b", broker.bootstrap, "--data-dir", str(broker.directory))
        status, found = examined(bare, *words)
        assert (status, found["readiness of broker 1"][0]) == (0, "ok")
        assert found[f"clock of {admin_of(broker)}"][0] == "ok"
        assert found["database"][0] == "ok"
        assert found["object store"][0] == "skip"
        broker.create_topic("orders", configs={"diskless.enable": "true"})
        assert examined(bare, *words)[1]["object store"][0] == "ok"
        (broker.directory / "control.sqlite").write_bytes(b"")
        status, found = examined(bare, *words)
        assert (status, found["database"][0]) == (1, "fail")


def test_a_dead_letter_topic_that_cannot_be_written_is_named(bare: Run) -> None:
    def found(status: str) -> tuple[str, str, str]:
        for _ in range(200):
            one = examined(bare, *words)[1]["dead letters"]
            if one[0] == status:
                break
        return one

    enable = "errors.deadletterqueue.group.enable"
    with Broker() as broker, broker.client() as client:
        words = ("-b", broker.bootstrap, "--data-dir", str(broker.directory))
        client.create_topic("t")
        client.write_arrow("t", pa.table({"value": [b"a"]}))
        client.alter_configs("group", "g", {
            "share.auto.offset.reset": "earliest", "errors.deadletterqueue.topic.name": "dlq.t",
        })  # fmt: skip
        with client.queue("g", "t") as queue:
            while not len(taken := queue.take()):
                pass
            taken.reject()
            status, cause, fix = found("fail")
            assert (status, fix) == ("fail", f"penstock topic create dlq.t -c {enable}=true")
            assert "group 'g'" in cause
            assert "t-0, because its dead letters cannot be written to topic 'dlq.t'" in cause
            client.create_topic("dlq.t", configs={enable: "true"})
            assert found("ok")[0] == "ok"
        assert client.read_arrow("dlq.t")["value"].to_pylist() == [b"a"]


def test_an_admin_interface_that_is_away_is_a_failure(bare: Run, tmp_path: Path) -> None:
    address = f"127.0.0.1:{free_port()}"
    with Broker(admin=False) as broker:
        words = ("-b", broker.bootstrap, "--data-dir", str(tmp_path), "--admin", address)
        status, found = examined(bare, *words)
    assert (status, found[f"readiness of {address}"][0]) == (1, "fail")


def test_an_agent_and_an_outbox(bare: Run, tmp_path: Path) -> None:
    words = ("--output", "json", "--local", "--data-dir", str(tmp_path))
    status, found = examined(bare, *words)
    assert (status, found["host agent"][0], found["outbox"][0]) == (0, "skip", "skip")
    assert found["listeners"][0] == "skip"
    assert not any(check.startswith(("broker", "database", "object")) for check in found)
    with Agent() as one:
        named = (*words, "--agent", str(one.socket), "--outbox", str(tmp_path))
        status, found = examined(bare, *named)
        assert (status, found["host agent"][0]) == (0, "ok")
        assert found[f"outbox {tmp_path}"][0] == "ok"
        assert found[f"outbox {tmp_path}, sync"][0] in ("ok", "warn")
    gone = tmp_path / "gone"
    named = (*words, "--agent", str(one.socket), "--outbox", str(gone))
    status, found = examined(bare, *named)
    assert (status, found["host agent"][0], found[f"outbox {gone}"][0]) == (1, "fail", "fail")
    assert "penstock host serve" in found["host agent"][2]
    assert "No such file" in found[f"outbox {gone}"][1]


def test_a_configuration_that_cannot_be_is_a_finding(bare: Run, tmp_path: Path) -> None:
    file = tmp_path / "penstock.toml"
    file.write_text("num.partition = 3\n")
    words = ("--output", "json", "--local", "--config", str(file), "--data-dir", str(tmp_path))
    status, found = examined(bare, *words)
    assert (status, found["configuration"][0]) == (1, "fail")
    assert "num.partition" in found["configuration"][1]
    assert found["disk space"][0] in ("ok", "warn")


def test_checks_that_hang_or_fail_do_not_delay_others() -> None:
    ended = threading.Event()

    def hangs() -> Sequence[Finding]:
        ended.wait()
        return []

    def fails() -> Sequence[Finding]:
        raise ZeroDivisionError("of ours")

    good = Finding(check="good", status="ok", cause="it is")
    checks = [Check("hangs", hangs), Check("fails", fails), Check("good", lambda: [good])]
    try:
        found = look(checks, seconds=1.0)
    finally:
        ended.set()
    assert [(entry.check, entry.status) for entry in found] == [
        ("hangs", "fail"),
        ("fails", "fail"),
        ("good", "ok"),
    ]
    assert found[0].cause == "no answer within 1 s"
    assert "of ours" in found[1].cause


def test_what_was_damaged_at_a_start_is_named(bare: Run, tmp_path: Path) -> None:
    with Broker(directory=tmp_path, process=True) as broker:
        words = ("-b", broker.bootstrap, "--admin", broker.admin_url.removeprefix("http://"))
        broker.create_topic("t", 1)
        with broker.client() as client:
            for number in range(10):
                client.write_arrow("t", pa.table({"value": [b"%d" % number * 200]}))
        assert examined(bare, *words)[1]["stored records"][0] == "ok"
        broker.kill()
        (journal,) = broker.directory.glob("log/journal/*.journal")
        data = bytearray(journal.read_bytes())
        data[data.index(b"5" * 200) + 7] ^= 1
        journal.write_bytes(data)
        broker.start()
        words = ("-b", broker.bootstrap, "--admin", broker.admin_url.removeprefix("http://"))
        found = examined(bare, *words)[1]["stored records of broker 1"]
        assert found[0] == "warn"
        assert "1 file set aside" in found[1]
        with broker.client(delivery_timeout_ms=500) as client:
            with pytest.raises(PenstockError, match="CORRUPT_MESSAGE"):
                client.read_arrow("t", start={0: 5}, end={0: 6})
            rest = [client.read_arrow("t", start={0: at}, end={0: at + 1}) for at in (4, 6, 9)]
        assert [table["value"][0].as_py()[:1] for table in rest] == [b"4", b"6", b"9"]
