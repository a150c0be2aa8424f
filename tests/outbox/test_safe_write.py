"""Safe write over scripted file calls: every call, every error."""

from __future__ import annotations

import array
import errno
import itertools
import random
from collections.abc import Callable, Sequence
from typing import cast

import numpy as np
import pyarrow as pa
import pytest

from penstock.base.crc import crc32c
from penstock.base.errors import PenstockError
from penstock.base.files import Buffer, Files, Name
from penstock.outbox.errors import BatchConflict, InvalidPayload, OutboxBug
from penstock.outbox.layout import hour_directory, temporary_name
from penstock.outbox.writer import safe_write
from penstock.outbox.writer.safe_write import (
    MISSING_MAX,
    NO_HANDLE,
    SafeWrite,
    WritePlan,
    Written,
    as_buffers,
    checksum,
)

ERRNOS = [
    errno.EIO, errno.EEXIST, errno.ENOENT, errno.ESTALE, errno.EINVAL, errno.ENOSYS, errno.EPERM,
    errno.ENOSPC, errno.ELOOP, errno.ENOTDIR,
]  # fmt: skip
ROOT, HOUR = 7, 50
CALLS_MAX = 300
PAYLOAD = b"x" * 1500 + b"y" * 1500
OTHER = b"z" * 3000
BATCH, TEMPORARY = "batch-b", temporary_name("t", 1)
Failing = Callable[[int, str], int]
"""With which errno a call fails, 0 for none, by its number and name."""


def never(at: int, call: str) -> int:
    return 0


def failing_at(failed: int, number: int, first: Failing = never) -> Failing:
    return lambda at, call: number if at == failed else first(at, call)


class Calls:
    """Scripted file calls, which check the use of their handles."""

    def __init__(
        self,
        failing: Failing = never,
        *,
        there: bytes = PAYLOAD,
        recorded: bool = True,
        durable: bool = True,
        hour: int = NO_HANDLE,
    ) -> None:
        self.failing = failing
        self.there = there  # what data.bin has, if anybody looks
        self.recorded = recorded
        self.position = 0
        self.held: set[int] = set()
        self.temporary = False
        self.handles = itertools.count(100)
        self.seen: list[str] = []
        self.published = False
        buffers, size_bytes = as_buffers([b"x" * 1500, b"y" * 1500])
        plan = WritePlan(
            hour_directory=hour_directory("p", 0),
            batch_name=BATCH,
            temporary_name=TEMPORARY,
            buffers=buffers,
            size_bytes=size_bytes,
            durable=durable,
        )
        self.attempt = SafeWrite(
            plan, cast(Files, self), root=ROOT, hour=hour, hour_durable=hour != NO_HANDLE
        )
        self.outcome: Written | PenstockError = OutboxBug("it was not run")

    def run(self) -> Calls:
        try:
            self.outcome = self.attempt.run()
        except PenstockError as error:
            self.outcome = error
        kept = {self.attempt.opened_hour} - {NO_HANDLE}
        assert self.held == kept, "all is closed but the hour's directory, which is the caller's"
        assert not isinstance(self.outcome, OutboxBug)
        if isinstance(self.outcome, Written):
            assert (self.outcome.size_bytes, self.outcome.crc32c) == (3000, crc32c(PAYLOAD))
            assert self.there == PAYLOAD or not self.outcome.existing
            assert self.published or self.outcome.existing
        return self

    def begin(self, call: str, handle: int | None) -> None:
        at = len(self.seen)
        assert at < CALLS_MAX, f"no end: {self.seen[-20:]}"
        assert handle in self.held | {ROOT, HOUR}, f"{call} on a handle that is not open"
        self.seen.append(call)
        if call == "close":
            self.held.remove(handle)
        if number := self.failing(at, call):
            raise OSError(number, "as told")

    def opened(self) -> int:
        self.held.add(handle := next(self.handles))
        return handle

    def open_directory(self, name: Name, /, below: int | None = None) -> int:
        self.begin("open_directory", below)
        return self.opened()

    def make_directory(self, name: Name, /, below: int | None = None, mode: int = 0) -> None:
        self.begin("make_batch" if name == BATCH else "make_directory", below)

    def size_of(self, name: Name, /, below: int | None = None) -> int:
        self.begin("size_of", below)
        self.position = 0
        return len(self.there)

    def open_file(self, name: Name, /, below: int | None = None) -> int:
        self.begin("open_file", below)
        return self.opened()

    def attribute(self, file: int, name: str, /) -> bytes:
        self.begin("attribute", file)
        if not self.recorded:
            raise OSError(errno.ENODATA, "none was recorded")
        return b"%08x" % crc32c(self.there)

    def read(self, file: int, buffers: Sequence[memoryview], /) -> int:
        self.begin("read", file)
        piece = self.there[self.position : self.position + min(buffers[0].nbytes, 1000)]
        buffers[0][: len(piece)] = piece
        self.position += len(piece)
        return len(piece)

    def create(self, name: Name, /, below: int | None = None, mode: int = 0) -> int:
        self.begin("create", below)
        self.temporary = True
        return self.opened()

    def write(self, file: int, buffers: Sequence[Buffer], /) -> int:
        self.begin("write", file)
        return sum(map(len, buffers))

    def start_write_back(self, file: int, /) -> None:
        self.begin("start_write_back", file)

    def set_attribute(self, file: int, name: str, value: bytes, /) -> None:
        self.begin("set_attribute", file)

    def sync_file(self, file: int, /) -> None:
        self.begin("sync_file", file)

    def sync_directory(self, directory: int, /) -> None:
        self.begin("sync_directory", directory)

    def rename_new(self, name: Name, target: Name, /, below: int) -> None:
        self.begin("rename_new", below)
        self.temporary, self.published = False, True

    def link(
        self, name: Name, target: Name, /, below: int | None = None, target_below: int | None = None
    ) -> None:
        self.begin("link", below)
        self.published = True

    def remove(self, name: Name, /, below: int | None = None) -> None:
        self.begin("remove", below)
        self.temporary = False

    def close(self, handle: int, /) -> None:
        self.begin("close", handle)


@pytest.mark.parametrize("durable", [True, False])
@pytest.mark.parametrize("hour", [NO_HANDLE, HOUR])
def test_every_call_and_every_errno(durable: bool, hour: int) -> None:
    """From each call of a successful run, each errno leads to an end with all handles closed."""
    straight = Calls(durable=durable, hour=hour).run()
    assert isinstance(straight.outcome, Written)
    for at in range(len(straight.seen)):
        for number in ERRNOS:
            calls = Calls(failing_at(at, number), durable=durable, hour=hour).run()
            assert not calls.temporary, "the temporary file is gone"


@pytest.mark.parametrize("seed", range(300))
def test_any_failures_in_any_order(seed: int) -> None:
    dice = random.Random(seed)
    chance = dice.choice([0.05, 0.2, 0.6, 1.0])
    Calls(
        lambda at, call: dice.choice(ERRNOS) if dice.random() < chance else 0,
        there=dice.choice([PAYLOAD, OTHER, b"", PAYLOAD + b"y"]),
        recorded=dice.random() < 0.5,
        durable=dice.random() < 0.5,
        hour=dice.choice([NO_HANDLE, HOUR]),
    ).run()


@pytest.mark.parametrize("durable", [True, False])
@pytest.mark.parametrize("recorded", [True, False])
@pytest.mark.parametrize("loses", [True, False])
@pytest.mark.parametrize("there", [PAYLOAD, OTHER, b"", PAYLOAD[:-1], PAYLOAD + b"y"])
def test_what_is_there_counts_by_its_content(
    durable: bool, recorded: bool, loses: bool, there: bytes
) -> None:
    """The file is found at the first check, or after another writer's rename; then every call
    fails."""
    last = "rename_new" if loses else "make_batch"

    def taken(at: int, call: str) -> int:
        return errno.EEXIST if call == last else 0

    def meet(failing: Failing) -> Calls:
        return Calls(failing, there=there, recorded=recorded, durable=durable).run()

    straight = meet(taken)
    assert ("read" in straight.seen) is not recorded
    met = straight.seen.index(last) + 1
    if there == PAYLOAD:
        assert isinstance(straight.outcome, Written)
        assert straight.outcome.existing
        assert ("sync_file" in straight.seen[met:]) is durable
    else:
        found = straight.outcome
        assert isinstance(found, BatchConflict)
        assert found.found == (len(there), crc32c(there))
        assert found.expected == (3000, crc32c(PAYLOAD))
        for named in ("batch b:", "batch-b/data.bin", f"{crc32c(there):08x}", f"{len(there)} "):
            assert named in str(found)
    for at in range(met, len(straight.seen)):
        for number in ERRNOS:
            calls = meet(failing_at(at, number, taken))
            assert not calls.temporary or straight.seen[at] == "remove"


def test_syncs_come_before_success_and_after_the_rename() -> None:
    order = Calls().run().seen
    first = ["create", "write", "set_attribute", "sync_file", "close", "rename_new"]
    start = order.index("create")
    assert order[start : start + 13] == first + ["sync_directory"] * 7


def test_a_directory_that_vanishes_for_ever_ends_the_attempt() -> None:
    calls = Calls(lambda at, call: errno.ENOENT if call == "make_batch" else 0).run()
    assert isinstance(calls.outcome, PenstockError)
    assert calls.seen.count("make_batch") == MISSING_MAX + 1


@pytest.mark.parametrize(
    "payload",
    [
        b"bytes",
        bytearray(b"bytes"),
        memoryview(b"bytes"),
        [b"by", memoryview(b"tes")],
        (b"", b"bytes", b""),
        array.array("B", b"bytes"),
        np.frombuffer(b"bytes", np.uint8),
        pa.py_buffer(b"bytes"),
        [pa.py_buffer(b"byte"), np.array([115], np.uint8)],
    ],
    ids=lambda payload: type(payload).__name__,
)
def test_payloads_of_all_kinds(payload: bytes) -> None:
    buffers, size_bytes = as_buffers(payload)
    assert (b"".join(buffers), size_bytes) == (b"bytes", 5)
    assert checksum(buffers) == crc32c(b"bytes")


def test_wider_items_are_seen_as_bytes() -> None:
    numbers = np.arange(6, dtype=np.int64).reshape(2, 3)
    buffers, size_bytes = as_buffers([memoryview(numbers)])  # type: ignore[arg-type]
    assert (size_bytes, bytes(buffers[0])) == (48, numbers.tobytes())


@pytest.mark.parametrize("payload", ["text", None, 7, [b"x", "y"], np.arange(10)[::2], [[b"x"]]])
def test_what_is_no_payload(payload: bytes) -> None:
    with pytest.raises(InvalidPayload, match="not contiguous bytes"):
        as_buffers(payload)


def test_buffers_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(safe_write, "PAYLOAD_BUFFERS_MAX", 3)
    as_buffers([b"x"] * 3)
    with pytest.raises(InvalidPayload, match="4 buffers; the limit is 3"):
        as_buffers([b"x"] * 4)


def test_checksums_of_small_and_large_buffers_agree() -> None:
    dice = random.Random(1)
    for sizes in ([1] * 2000, [0, 5, 0], [5000] * 3, [1, 100_000, 1], []):
        parts = [dice.randbytes(size) for size in sizes]
        views = [memoryview(part) for part in parts]
        assert checksum(views, 7) == crc32c(b"".join(parts), 7)
