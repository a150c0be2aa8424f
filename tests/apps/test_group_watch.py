"""`penstock group watch`: from the admin interfaces, from the protocol alone, once and live."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from penstock.apps.client.session import State
from penstock.apps.log.lag import LagWatch, write_groups
from penstock.base.system import SystemClock
from penstock.client import Client
from penstock.testing import Broker
from tests.apps.conftest import Run

RECORDS = 10


def fill(client: Client, topic: str, groups: dict[str, list[int]]) -> None:
    client.create_topic(topic, partitions=1)
    client.write_arrow(topic, pa.table({"value": [b"value"] * RECORDS}))
    for group, offsets in groups.items():
        for offset in offsets:
            client.commit_offsets(group, {(topic, 0): offset})


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker() as broker, broker.client() as client:
        fill(client, "orders", {"behind": [4, 2], "current": [RECORDS]})
        yield broker


def test_once(broker: Broker, bare: Run) -> None:
    ran = bare("-b", broker.bootstrap, "group", "watch", "--once")
    assert ran.status == 0, ran.err
    heading, _, worst, other, *rest = [line for line in ran.out.splitlines() if line.strip()]
    assert heading.split() == ["group", "state", "lag", "behind", "read/s", "written/s", "forecast"]
    assert worst.split()[:3] == ["behind", "REWIND", "8"]
    assert other.split() == ["current", "OK", "0", "0", "s", "-", "-", "caught", "up"]
    assert rest == [
        "behind REWIND: orders-0: The group went back from offset 4 to 2; 8 records wait."
    ]


def test_once_as_json_with_names(broker: Broker, bare: Run) -> None:
    words = ("group", "watch", "--once", "current", "missing", "--output", "json")
    ran = bare("-b", broker.bootstrap, *words)
    assert ran.status == 1
    assert "no group is named 'missing'; list groups with `penstock group list`" in ran.err
    rows = json.loads(ran.out)
    assert [(row["group_id"], row["state"]) for row in rows] == [
        ("missing", "NOTFOUND"), ("current", "OK"),
    ]  # fmt: skip
    assert rows[0].keys() == rows[1].keys()


def test_no_groups(bare: Run) -> None:
    with Broker() as empty:
        ran = bare("-b", empty.bootstrap, "group", "watch", "--once")
    assert (ran.status, ran.out.strip()) == (0, "no groups")


def test_a_group_that_all_members_left_has_a_line(
    broker: Broker, capsys: pytest.CaptureFixture[str]
) -> None:
    with broker.client() as client:
        rows = LagWatch(State(bootstrap=broker.bootstrap), client).look()
    write_groups([{**row, "abandoned": True} for row in rows])
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[:2] for line in lines if ":" in line] == [["behind", "REWIND:"]]
    write_groups([{**rows[0], "state": "OK", "abandoned": True}])
    assert "behind OK: orders-0: The group went back" in capsys.readouterr().out


class MovedClock(SystemClock):
    ahead_ms = 0

    def now_ms(self) -> int:
        return super().now_ms() + self.ahead_ms


def test_groups_without_an_admin_interface_are_evaluated_from_the_protocol() -> None:
    clock = MovedClock()
    with Broker(admin=False) as broker, broker.client() as client:
        fill(client, "orders", {"slow": [0], "gone": [1], "current": [RECORDS]})
        watch = LagWatch(State(bootstrap=broker.bootstrap), client, clock=clock)

        def states() -> dict[str, tuple[str, int]]:
            return {row["group_id"]: (row["state"], row["lag_records"]) for row in watch.look()}

        assert states() == {"slow": ("OK", 10), "gone": ("OK", 9), "current": ("OK", 0)}
        for offset in range(1, RECORDS):
            clock.ahead_ms += 10_000
            client.write_arrow("orders", pa.table({"value": [b"value"] * 2}))
            client.commit_offsets("slow", {("orders", 0): offset})
            found = states()
        assert found["slow"] == ("WARN", RECORDS + 2 * 9 - 9)
        client.commit_offsets("slow", {("orders", 0): 0})
        assert states()["slow"][0] == "REWIND"
        clock.ahead_ms += 3_600_001
        assert states()["gone"][0] == "STOP"
        [row] = [row for row in watch.look() if row["group_id"] == "gone"]
        assert row["seconds_behind"] > 3_600
        assert row["explanation"].startswith("orders-0: No commit for 62 min, while 27 records")


def command(broker: Broker, *words: str) -> list[str]:
    return [
        "env", "--default-signal=INT",  # background jobs of shells ignore it
        sys.executable, "-m", "penstock", "-b", broker.bootstrap, "group", "watch",
        "--interval", "0.1", *words,
    ]  # fmt: skip


def test_live_as_json_until_a_signal(broker: Broker) -> None:
    with subprocess.Popen(
        command(broker, "--output", "json"), stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        try:
            rows: list[Any] = [json.loads(process.stdout.readline()) for _ in range(4)]
            process.send_signal(signal.SIGINT)
            process.stdout.read()
            assert process.stderr.read() == b""
            assert process.wait() == 0
        finally:
            process.kill()
    assert [row["group_id"] for row in rows] == ["behind", "current"] * 2
    assert rows[2]["time_ms"] > rows[0]["time_ms"]


def test_live_on_a_terminal_until_a_signal(broker: Broker, tmp_path: Path) -> None:
    ours, theirs = pty.openpty()
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": "120", "LINES": "40"}
    errors = tmp_path / "errors"
    with (
        errors.open("wb") as log,
        subprocess.Popen(command(broker), stdout=theirs, stderr=log, env=environment) as process,
    ):
        os.close(theirs)
        shown = b""
        try:
            while shown.count(b"went back") < 2:
                shown += os.read(ours, 65_536)
            process.send_signal(signal.SIGINT)
            with suppress(OSError):  # the terminal has no writer any more
                while part := os.read(ours, 65_536):
                    shown += part
            assert process.wait() == 0
        finally:
            process.kill()
    os.close(ours)
    assert errors.read_bytes() == b""
    assert b"\x1b[?25l" in shown, "the cursor is hidden while the table is live"
    assert shown.rstrip().endswith(b"\x1b[?25h")
