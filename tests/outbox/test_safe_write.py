"""The safe write as a table: every state, every event, and no state that is never left."""

from __future__ import annotations

import array
import errno
import itertools
import random

import numpy as np
import pyarrow as pa
import pytest

from penstock.base.crc import crc32c
from penstock.outbox import limits
from penstock.outbox.errors import BatchConflict, InvalidPayload, OutboxBug
from penstock.outbox.layout import hour_directory, temporary_name
from penstock.outbox.writer.files import CALLS
from penstock.outbox.writer.payload import as_buffers, checksum
from penstock.outbox.writer.safe_write import SafeWrite, WritePlan
from penstock.outbox.writer.table import NO_HANDLE, TRANSITIONS, Action, Event, Step

ERRNOS = [
    errno.EIO, errno.EEXIST, errno.ENOENT, errno.ESTALE, errno.EINVAL, errno.ENOSYS, errno.EPERM,
    errno.ENOSPC, errno.ELOOP, errno.ENOTDIR,
]  # fmt: skip
OPENS = {Action.OPEN_LEVEL, Action.OPEN_BATCH, Action.OPEN_DATA, Action.CREATE}
CLOSES = {
    Action.CLOSE, Action.CLOSE_DATA, Action.CLOSE_FAILED, Action.CLOSE_STALE,
    Action.CLOSE_DIRECTORY,
}  # fmt: skip
STEPS_MAX = 300
PAYLOAD = b"x" * 1500 + b"y" * 1500
OTHER = b"z" * 3000


def machine(*, durable: bool = True, size: int = 3000, hour: int = NO_HANDLE) -> SafeWrite:
    buffers, size_bytes = as_buffers([b"x" * (size // 2), b"y" * (size - size // 2)])
    plan = WritePlan(
        hour_directory=hour_directory("p", 0),
        batch_name="batch-b",
        temporary_name=temporary_name("t", 1),
        buffers=buffers,
        size_bytes=size_bytes,
        durable=durable,
    )
    return SafeWrite(plan, root=7, hour=hour, hour_settled=hour != NO_HANDLE)


class Shell:
    """Answers a machine's steps as told, and holds what must hold of its handles."""

    def __init__(self, write: SafeWrite, *, there: bytes = PAYLOAD, recorded: bool = True) -> None:
        self.write = write
        self.there = there  # what data.bin has, if anybody looks
        self.recorded = recorded
        self.position = 0
        self.open: set[int] = set()
        self.made: set[str] = set()
        self.handles = itertools.count(100)
        self.seen: list[Action] = []
        self.published = False

    def answer(self, number: int) -> None:
        """Make the step: 0 succeeds, else it fails with that errno."""
        step = self.write.step
        assert step is not None
        self.seen.append(step.action)
        assert step.handle in self.open | {7, 50}, f"{step.action} on a handle that is not open"
        if step.action in CLOSES:
            self.open.remove(step.handle)
        if step.action is Action.RECALL and not self.recorded:
            number = number or errno.ENODATA
        if number:
            self.write.failed(number)
            return
        value = self.value_of(step)
        if step.action is Action.CREATE:
            self.made.add(step.name)
        elif step.name in self.made and step.action not in {Action.LINK}:
            self.made.discard(step.name)
        self.published = self.published or step.action in {Action.RENAME, Action.LINK}
        self.write.done(value)

    def value_of(self, step: Step) -> int:
        if step.action in OPENS:
            self.open.add(handle := next(self.handles))
            return handle
        if step.action is Action.LOOK:
            self.position = 0
            return len(self.there)
        if step.action is Action.RECALL:
            return crc32c(self.there)
        if step.action is Action.READ:
            piece = self.there[self.position : self.position + min(step.buffers[0].nbytes, 1000)]
            step.buffers[0][: len(piece)] = piece
            self.position += len(piece)
            return len(piece)
        return sum(view.nbytes for view in step.buffers)

    def finish(self, dice: random.Random | None = None, chance: float = 0.0) -> None:
        for _ in range(STEPS_MAX):
            if self.write.step is None:
                return
            failing = dice is not None and dice.random() < chance
            self.answer(dice.choice(ERRNOS) if dice is not None and failing else 0)
        raise AssertionError(f"no end after {STEPS_MAX} steps: {self.seen[-20:]}")


def test_the_table_is_whole() -> None:
    assert set(TRANSITIONS) == set(Action)
    assert set(CALLS) == set(Action) - {Action.END}
    targets = {action for row in TRANSITIONS.values() for action in row.values()}
    assert targets | {Action.OPEN_LEVEL, Action.CLOSE_FAILED} == set(Action)
    for action, row in TRANSITIONS.items():
        assert action is Action.END or Event.DONE in row


@pytest.mark.parametrize("durable", [True, False])
@pytest.mark.parametrize("hour", [NO_HANDLE, 50])
def test_every_state_and_every_errno(durable: bool, hour: int) -> None:
    """From each state of a run that goes well, each errno leads to an end with all closed."""
    straight = Shell(machine(durable=durable, hour=hour))
    straight.finish()
    assert straight.write.outcome().size_bytes == 3000
    for at in range(len(straight.seen)):
        for number in ERRNOS:
            shell = Shell(machine(durable=durable, hour=hour))
            for _ in range(at):
                shell.answer(0)
            shell.answer(number)
            shell.finish()
            check_end(shell)
            assert not shell.made, "the temporary file is gone"


def check_end(shell: Shell) -> None:
    kept = {shell.write.opened_hour} - {NO_HANDLE}
    assert shell.open == kept, "all is closed but the hour's directory, which is the shell's"
    failed = shell.write.error
    if failed is not None:
        with pytest.raises(type(failed)):
            shell.write.outcome()
        assert not isinstance(failed, OutboxBug)
        return
    written = shell.write.outcome()
    assert (written.size_bytes, written.crc32c) == (3000, crc32c(PAYLOAD))
    assert shell.there == PAYLOAD or not written.existing
    assert shell.published or written.existing


@pytest.mark.parametrize("seed", range(300))
def test_any_failures_in_any_order(seed: int) -> None:
    dice = random.Random(seed)
    durable, hour = dice.random() < 0.5, dice.choice([NO_HANDLE, 50])
    there = dice.choice([PAYLOAD, OTHER, b"", PAYLOAD + b"y"])
    shell = Shell(machine(durable=durable, hour=hour), there=there, recorded=dice.random() < 0.5)
    shell.finish(dice, chance=dice.choice([0.05, 0.2, 0.6, 1.0]))
    check_end(shell)


@pytest.mark.parametrize("durable", [True, False])
@pytest.mark.parametrize("recorded", [True, False])
@pytest.mark.parametrize("loses", [True, False])
@pytest.mark.parametrize("there", [PAYLOAD, OTHER, b"", PAYLOAD[:-1], PAYLOAD + b"y"])
def test_what_is_there_counts_by_its_content(
    durable: bool, recorded: bool, loses: bool, there: bytes
) -> None:
    """Found at the first look, or after another writer's rename; then with every call failing."""

    def meet() -> Shell:
        shell = Shell(machine(durable=durable), there=there, recorded=recorded)
        last = Action.RENAME if loses else Action.MAKE_BATCH
        while shell.write.step is not None and shell.write.step.action is not last:
            shell.answer(0)
        shell.answer(errno.EEXIST)
        return shell

    straight = meet()
    met = len(straight.seen)
    straight.finish()
    check_end(straight)
    assert (Action.READ in straight.seen) is not recorded
    if there == PAYLOAD:
        assert straight.write.outcome().existing
        assert (Action.SYNC_DATA in straight.seen) is durable
    else:
        with pytest.raises(BatchConflict) as caught:
            straight.write.outcome()
        assert caught.value.found == (len(there), crc32c(there))
        assert caught.value.expected == (3000, crc32c(PAYLOAD))
        for named in ("batch b:", "batch-b/data.bin", f"{crc32c(there):08x}", f"{len(there)} "):
            assert named in str(caught.value)
    for at in range(met, len(straight.seen)):
        for number in ERRNOS:
            shell = meet()
            for _ in range(at - met):
                shell.answer(0)
            shell.answer(number)
            shell.finish()
            check_end(shell)
            assert not shell.made or straight.seen[at] is Action.REMOVE_LOSER


def test_syncs_come_before_success_and_after_the_rename() -> None:
    shell = Shell(machine())
    shell.finish()
    order = [action for action in shell.seen if action in {
        Action.CREATE, Action.WRITE, Action.RECORD, Action.SYNC, Action.CLOSE, Action.RENAME,
        Action.SYNC_DIRECTORY,
    }]  # fmt: skip
    first = [
        Action.CREATE, Action.WRITE, Action.RECORD, Action.SYNC, Action.CLOSE, Action.RENAME,
    ]  # fmt: skip
    assert order == first + [Action.SYNC_DIRECTORY] * 7


def test_the_outcome_is_not_known_before_the_end() -> None:
    with pytest.raises(OutboxBug, match="asked for its outcome"):
        machine().outcome()


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
    with pytest.raises(InvalidPayload, match="not bytes in one piece"):
        as_buffers(payload)


def test_buffers_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "PAYLOAD_BUFFERS_MAX", 3)
    as_buffers([b"x"] * 3)
    with pytest.raises(InvalidPayload, match="4 buffers, of at most 3"):
        as_buffers([b"x"] * 4)


def test_checksums_of_small_and_large_buffers_agree() -> None:
    dice = random.Random(1)
    for sizes in ([1] * 2000, [0, 5, 0], [5000] * 3, [1, 100_000, 1], []):
        parts = [dice.randbytes(size) for size in sizes]
        views = [memoryview(part) for part in parts]
        assert checksum(views, 7) == crc32c(b"".join(parts), 7)
