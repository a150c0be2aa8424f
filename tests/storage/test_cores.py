"""The pure cores: producers, epochs, rolling, retention, names."""

from __future__ import annotations

import itertools
import struct
from contextlib import nullcontext
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.base.ids import TopicPartition
from penstock.records import BatchHeader, seal, split_batches, validate_batch, verify_crc
from penstock.storage import InvalidProducerEpoch, LogConfig, OutOfOrderSequence
from penstock.storage.files.epochs import EpochHistory
from penstock.storage.files.errors import InvalidTimestamp
from penstock.storage.files.producers import ProducerStates
from penstock.storage.files.values import (
    deleted_directory_name,
    directory_name,
    is_deleted_directory,
    offset_name,
    parse_directory_name,
    parse_offset_name,
)
from penstock.storage.log.state import Facts, expired_count
from penstock.storage.log.validation import _check_timestamps, _plain, validate_batches
from tests.storage.batches import batch

LAST = 2**31 - 1


def header(epoch: int, sequence: int, count: int = 1, producer_id: int = 1) -> BatchHeader:
    return BatchHeader(0, 100, -1, 2, 0, 0, count - 1, 5, 5, producer_id, epoch, sequence, count)


def fed(*batches: tuple[int, int, int]) -> ProducerStates:
    """Producer 1 after batches of (epoch, sequence, count)."""
    states = ProducerStates()
    offset = 0
    for epoch, sequence, count in batches:
        one = header(epoch, sequence, count)
        assert states.check(one) is None
        states.append(one, offset, 0)
        offset += count
    return states


STATES = {
    "unknown": (),
    "one": ((1, 0, 2),),
    "five": tuple((1, n, 1) for n in range(5)),
    "seven": tuple((1, n, 1) for n in range(7)),
    "before the wrap": ((1, LAST - 1, 2),),
    "over the wrap": ((1, LAST, 2),),
    "new epoch": ((1, 7, 1), (2, 0, 1)),
}
BATCHES = {
    "next": (1, 2, 1), "first again": (1, 0, 2), "zero": (1, 0, 1), "gap": (1, 9, 1),
    "five": (1, 5, 1), "seven": (1, 7, 1), "oldest of seven": (1, 2, 1), "older": (0, 5, 1),
    "newer zero": (3, 0, 1), "newer gap": (3, 1, 1), "one": (1, 1, 1), "wrapped": (1, 0, 1),
}  # fmt: skip


def expected(state: tuple[tuple[int, int, int], ...], new: tuple[int, int, int]) -> str:
    """The table of `producers`, said again in the plainest way."""
    if not state:
        return "append"
    epoch, sequence, count = new
    current = state[-1][0]
    if epoch < current:
        return "fenced"
    if epoch > current:
        return "append" if sequence == 0 else "order"
    recent = [batch for batch in state if batch[0] == current][-5:]
    if (sequence, count) in [(first, size) for _, first, size in recent]:
        return "duplicate"
    _, first, size = recent[-1]
    return "append" if sequence == (first + size) % 2**31 else "order"


@pytest.mark.parametrize(
    ("state", "new"), list(itertools.product(STATES, BATCHES)), ids=lambda name: name
)
def test_every_state_meets_every_batch(state: str, new: str) -> None:
    states = fed(*STATES[state])
    want = expected(STATES[state], BATCHES[new])
    before = states.describe()
    try:
        original = states.check(header(*BATCHES[new]))
        got = "append" if original is None else "duplicate"
    except InvalidProducerEpoch:
        got = "fenced"
    except OutOfOrderSequence:
        got = "order"
    assert got == want
    assert states.describe() == before


def test_a_duplicate_has_the_original_offsets() -> None:
    states = fed((1, 0, 3), (1, 3, 2))
    original = states.check(header(1, 0, 3))
    assert original is not None
    assert (original.first_offset, original.last_offset) == (0, 2)


def test_undo_restores_the_state_before() -> None:
    states = fed((1, 0, 1), (1, 1, 1))
    before = states.snapshot()
    first = states.append(header(1, 2), 2, 9)
    second = states.append(header(1, 3), 3, 9)
    other = states.append(header(5, 0, producer_id=2), 4, 9)
    assert states.before([first, second, other]).snapshot() == before
    for undo in (other, second, first):
        states.undo(undo)
    assert states.snapshot() == before


def test_snapshots_keep_five_batches_apart_from_kafkas_one() -> None:
    states = fed(*((1, n, 1) for n in range(9)))
    last, batches = states.snapshot()
    assert [entry.last_sequence for entry in last] == [8]
    assert [entry.last_sequence for entry in batches] == [4, 5, 6, 7, 8]
    restored = ProducerStates()
    restored.load(batches)
    assert restored.snapshot()[1] == batches
    assert restored.check(header(1, 4)) is not None


def test_expiry_counts_from_the_last_append() -> None:
    states = ProducerStates()
    states.append(header(1, 0, producer_id=1), 0, 1000)
    states.append(header(1, 0, producer_id=2), 1, 2000)
    assert states.expire(2500, 1500) == 1
    assert [entry.producer_id for entry in states.describe()] == [2]


def test_an_expired_producer_can_be_undone() -> None:
    """A disk is full for as long as it likes: the group is refused when producers are gone."""
    states = ProducerStates()
    undos = [states.append(header(1, number), number, 1000) for number in range(2)]
    assert states.expire(2500, 1500) == 1
    states.undo(undos[1])
    assert states.last_sequence(1) == 0
    states.undo(undos[0])
    assert len(states) == 0


def test_an_append_of_several_batches_is_all_new_or_all_old() -> None:
    states = fed((1, 0, 1), (1, 1, 1))
    assert states.check_all([header(1, 2), header(1, 3)]) is None
    assert states.check_all([header(1, 0), header(1, 1)]) is not None
    for mixed in ([header(1, 1), header(1, 2)], [header(1, 2), header(1, 2)],
                  [header(1, 2), header(1, 4)]):  # fmt: skip
        with pytest.raises(OutOfOrderSequence):
            states.check_all(mixed)
    assert states.check(header(1, 2)) is None


def test_epoch_history() -> None:
    history = EpochHistory()
    assert history.end_offset_for(0, 0) == (-1, -1)
    assert history.epoch_at(0) == -1
    for epoch, start in (0, 0), (2, 10), (5, 30):
        assert history.assign(epoch, start)
    assert not history.assign(5, 40)
    assert [history.end_offset_for(epoch, 50) for epoch in (-1, 0, 1, 2, 4, 5, 6)] == [
        (-1, -1), (0, 10), (0, 10), (2, 30), (2, 30), (5, 50), (-1, -1),
    ]  # fmt: skip
    assert [history.epoch_at(offset) for offset in (0, 9, 10, 29, 30, 99)] == [0, 0, 2, 2, 5, 5]
    assert history.cut_start(15)
    assert history.entries == [(2, 15), (5, 30)]
    assert history.end_offset_for(1, 50) == (1, 15)
    assert history.cut_end(30)
    assert history.entries == [(2, 15)]
    assert history.assign(7, 15)
    assert history.entries == [(7, 15)]


def expired(
    segments: list[tuple[int, int, int]],
    *,
    policy: tuple[str, ...] = ("delete",),
    asked: list[int] | None = None,
    **changes: int,
) -> int:
    """Return how many of (next offset, size, highest timestamp) expire; `asked` collects the
    timestamps that were read."""
    arguments = {"log_start_offset": 0, "committed_offset": 100, "most": 100} | {
        name: value for name, value in changes.items() if not name.startswith("retention")
    }
    config = LogConfig(
        cleanup_policy=policy,
        retention_ms=changes.get("retention_ms", -1),
        retention_bytes=changes.get("retention_bytes", -1),
    )
    looked = [] if asked is None else asked

    def facts(place: int) -> Facts:
        next_offset, size, newest = segments[place]

        def look() -> int:
            looked.append(place)
            return newest

        return Facts(next_offset, size, look)

    return expired_count(
        map(facts, range(len(segments))),
        size_bytes=sum(size for _, size, _ in segments),
        now_ms=1000,
        config=config,
        **arguments,
    )


def test_retention() -> None:
    segments = [(10, 100, 500), (20, 100, 900), (30, 100, 600)]
    assert expired(segments) == 0
    assert expired(segments, retention_ms=400) == 1
    assert expired(segments, retention_ms=50) == 3
    assert expired(segments, retention_bytes=250) == 0
    assert expired(segments, retention_bytes=200) == 1
    assert expired(segments, retention_bytes=150) == 1
    assert expired(segments, retention_bytes=0) == 3
    assert expired(segments, log_start_offset=20) == 2
    assert expired(segments, retention_bytes=0, committed_offset=20) == 2
    assert expired(segments, retention_ms=50, committed_offset=29) == 2
    assert expired(segments, log_start_offset=20, committed_offset=0) == 2
    assert expired([(10, 100, -1)], retention_ms=1) == 0
    assert expired(segments, retention_ms=50, most=2) == 2


def test_retention_looks_at_no_times_that_decide_nothing() -> None:
    segments = [(10 * place, 100, 500 if place < 4 else 990) for place in range(1, 11)]
    asked: list[int] = []
    assert expired(segments, retention_ms=400, asked=asked) == 3
    assert asked == [0, 1, 2, 3], "the first that stays is the last that is looked at"
    asked.clear()
    assert expired(segments, retention_ms=400, retention_bytes=800, asked=asked) == 3
    assert asked == [2, 3]
    asked.clear()
    assert expired(segments, log_start_offset=20, asked=asked) == 2
    assert expired(segments, retention_ms=-1, retention_bytes=500, asked=asked) == 5
    assert asked == []


def test_compacted_topics_keep_all_but_what_is_below_the_start() -> None:
    segments = [(10, 100, 5), (20, 100, 6)]
    assert expired(segments, policy=("compact",), retention_ms=1, log_start_offset=10) == 1


@given(
    st.lists(
        st.tuples(
            st.integers(0, 60),
            st.one_of(st.integers(0, 255), st.sampled_from([0, 1, 255])),
        ),
        max_size=3,
    ),
    st.booleans(),
    st.integers(0, 3),
    st.sampled_from([0, 500, 2000, 2**40]),
)
def test_the_short_way_of_admission_accepts_nothing_more(
    changes: list[tuple[int, int]], reseal: bool, extra: int, now_ms: int
) -> None:
    config = LogConfig(max_message_bytes=130, message_timestamp_before_max_ms=1500)
    data = bytearray(batch(2, size=40)) + bytes(extra)
    for place, value in changes:
        data[place] = value
    if reseal and int.from_bytes(data[8:12], "big") + 12 == len(data):
        seal(data)
    view = memoryview(data)
    short = _plain(view, config, now_ms)
    if short is not None:
        headers = split_batches(view)
        assert headers == [short]
        validate_batch(short)
        verify_crc(view, short)
        assert len(view) <= 130
        _check_timestamps(short, config, now_ms)
    elif not changes and not extra and now_ms == 2000:
        pytest.fail("a plain batch is refused")


@pytest.mark.parametrize(
    ("times", "before_max_ms", "accepted"),
    [
        ((-5, -5), 2**63 - 1, True),
        ((-5, 0), 2**63 - 1, True),
        ((2000 - 2**63 + 1, -1), 2**63 - 1, True),
        ((2000 - 2**63, -1), 2**63 - 1, False),
        ((500, 500), 1500, True),
        ((499, 500), 1500, False),
        ((-2, -1), 1500, False),
        ((-1, -1), 1500, True),
    ],
)
def test_the_earliest_time_of_a_record_is_apache_kafkas(
    times: tuple[int, int], before_max_ms: int, accepted: bool
) -> None:
    config = LogConfig(message_timestamp_before_max_ms=before_max_ms)
    data = bytearray(batch())
    data[27:43] = struct.pack(">qq", *times)
    seal(data)
    with nullcontext() if accepted else pytest.raises(InvalidTimestamp, match=r"before\.max\.ms"):
        validate_batches(memoryview(data), config, 2000)


def test_names_are_kafkas() -> None:
    assert offset_name(42, ".log") == "00000000000000000042.log"
    assert parse_offset_name("00000000000000000042.timeindex") == (42, ".timeindex")
    assert parse_offset_name("00000000000000000042.log.deleted") == (42, ".log.deleted")
    for wrong in ("42.log", "leader-epoch-checkpoint", "0000000000000000004x.log", "0" * 20):
        assert parse_offset_name(wrong) is None
    where = TopicPartition("a-b.c", 7)
    assert directory_name(where) == "a-b.c-7"
    assert parse_directory_name("a-b.c-7") == where
    for wrong in ("journal", "a-b.c-07", "-1", "a-", "a-99999999999", "a-1-delete"):
        assert parse_directory_name(wrong) is None
    long = TopicPartition("t" * 249, 2)
    name = deleted_directory_name(long, UUID(int=1))
    assert len(name) <= 255
    assert is_deleted_directory(name)
    assert parse_directory_name(name) is None
