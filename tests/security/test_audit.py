"""Lines of the audit log: what is in them, and where they go."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path

import pytest

from penstock.base.errors import InvalidSetting
from penstock.base.settings import load
from penstock.security.audit import (
    RESOURCES_MAX,
    TEXT_CHARS_MAX,
    AuditEvent,
    AuditFile,
    AuditFileUnusable,
    AuditLog,
    AuditSettings,
    Line,
    line_of,
)


class Clock:
    """A moment."""

    def now_ms(self) -> int:
        return 1_769_860_800_123

    def monotonic(self) -> float:
        return 0.0


DENIAL = AuditEvent(
    event="denial",
    outcome="denied",
    principal="User:alice",
    address="10.0.0.7",
    listener="SASL_SSL",
    operation="Produce",
    resource_type="topic",
    resources=["orders"],
    reason="User:alice may not write topic orders",
)


def audit_file(path: Path, *, bytes_max: int = 1 << 20, files: int = 3) -> AuditFile:
    return AuditFile(str(path), bytes_max=bytes_max, files_max=files, queue_max=10_000)


def lined(text: bytes) -> Line:
    return Line(text, 0, b"")


def test_a_line_has_the_facts_in_order() -> None:
    line = line_of(DENIAL, now_ms=1_769_860_800_123, origin={"broker": 1})
    assert line == (
        b'{"time":"2026-01-31T12:00:00.123Z","broker":1,"event":"denial","outcome":"denied",'
        b'"principal":"User:alice","mechanism":"","address":"10.0.0.7","listener":"SASL_SSL",'
        b'"operation":"Produce","resource_type":"topic","resources":["orders"],'
        b'"resource_count":1,"reason":"User:alice may not write topic orders"}\n'
    )


@pytest.mark.parametrize("text", ["a\nb", 'a","event":"change', "\ud800", "\0\x1b[2J", "x" * 5000])
def test_no_name_makes_a_second_line(text: str) -> None:
    event = AuditEvent(
        event="authentication", outcome="failure", principal=text, resources=[text] * 100
    )
    line = line_of(event, now_ms=0, origin={})
    assert line.count(b"\n") == 1
    assert line.isascii() or line.decode()
    assert not any(byte < 32 for byte in line[:-1])
    read = json.loads(line)
    assert read["event"] == "authentication"
    assert len(read["principal"]) <= TEXT_CHARS_MAX
    assert (len(read["resources"]), read["resource_count"]) == (RESOURCES_MAX, 100)


def test_lines_go_to_a_file_of_its_owner(tmp_path: Path) -> None:
    path = tmp_path / "audit.log"
    old = os.umask(0)
    try:
        log = AuditLog([audit_file(path)], clock=Clock(), origin={"broker": 7})
    finally:
        os.umask(old)
    for _ in range(3):
        log.record(DENIAL)
    log.close()
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert [(line["broker"], line["time"]) for line in lines] == [
        (7, "2026-01-31T12:00:00.123Z")
    ] * 3
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    values = {(sample.metric.name, *sample.labels): sample.value for sample in log.samples()}
    assert values["penstock_audit_events_total", "denial"] == 3
    assert values["penstock_audit_dropped_total", "file"] == 0


@pytest.mark.parametrize("name", ["..", "an audit", "a" * 250])
def test_a_topic_that_cannot_be_is_refused(name: str) -> None:
    with pytest.raises(InvalidSetting, match=r"audit\.topic = .*: a topic name"):
        load(AuditSettings, {"audit.topic": name})


def test_files_rotate_and_the_oldest_go(tmp_path: Path) -> None:
    path = tmp_path / "audit.log"
    file = audit_file(path, bytes_max=100, files=3)
    lines = [b"%03d %s\n" % (number, b"x" * 45) for number in range(11)]
    for line in lines:
        file.offer(lined(line))
    file.close()
    assert sorted(item.name for item in tmp_path.iterdir()) == [
        "audit.log", "audit.log.1", "audit.log.2",
    ]  # fmt: skip
    # 100 bytes are two lines; the last is alone in the newest file.
    names = ["audit.log.2", "audit.log.1", "audit.log"]
    assert [(tmp_path / name).read_bytes() for name in names] == [
        b"".join(lines[6:8]), b"".join(lines[8:10]), lines[10],
    ]  # fmt: skip


def test_a_file_is_gone_on_with(tmp_path: Path) -> None:
    path = tmp_path / "audit.log"
    for line in (b"a\n", b"b\n"):
        file = audit_file(path)
        file.offer(lined(line))
        file.close()
    assert path.read_bytes() == b"a\nb\n"


def test_one_file_alone_is_kept(tmp_path: Path) -> None:
    file = audit_file(tmp_path / "audit.log", bytes_max=10, files=1)
    for _ in range(5):
        file.offer(lined(b"x" * 19 + b"\n"))
    file.close()
    assert [item.name for item in tmp_path.iterdir()] == ["audit.log"]


def test_what_cannot_wait_is_counted(tmp_path: Path) -> None:
    path = tmp_path / "audit.log"
    os.mkfifo(tmp_path / "held")
    file = AuditFile(str(path), bytes_max=1 << 20, files_max=2, queue_max=5)
    file.close()  # nobody takes lines out any more
    for _ in range(8):
        file.offer(lined(b"x\n"))
    assert file.dropped == 3


def test_a_full_disk_is_counted_and_said_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = audit_file(tmp_path / "audit.log")
    full = os.open("/dev/full", os.O_WRONLY)
    os.dup2(full, file._file)
    os.close(full)
    for _ in range(4):
        file.offer(lined(b"x\n"))
    file.close()
    assert file.dropped == 4
    assert caplog.text.count("No space left on device") == 1


@pytest.mark.parametrize("kind", ["link", "directory", "fifo", "missing directory", "second"])
def test_a_path_that_is_not_ours_is_refused(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "audit.log"
    first = None
    if kind == "link":
        path.symlink_to(tmp_path / "elsewhere")
    elif kind == "directory":
        path.mkdir()
    elif kind == "fifo":
        os.mkfifo(path)
        reader = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    elif kind == "missing directory":
        path = tmp_path / "none" / "audit.log"
    else:
        first = audit_file(path)
    with pytest.raises(AuditFileUnusable, match=r"audit\.log\.file .*audit\.log: "):
        audit_file(path)
    if kind == "fifo":
        os.close(reader)
    if first is not None:
        first.close()
    assert not (tmp_path / "elsewhere").exists()
