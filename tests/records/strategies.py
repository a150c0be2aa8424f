"""Batches as Hypothesis draws them: small and odd, or many records alike."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import strategies as st

from tests.records.reference import Batch, Record

TIMESTAMPS = st.one_of(
    st.integers(-1, 2**41), st.integers(0, 300), st.sampled_from([-1, 0, 2**61, -(2**61)])
)
BLOBS = st.one_of(
    st.none(),
    st.binary(max_size=12),
    st.sampled_from([b"", bytes(5), bytes(70), b"x" * 63, b"x" * 64, bytes(9_000), b"\0x\0\0\0y"]),
    st.builds(lambda size, byte: bytes([byte]) * size, st.integers(0, 200), st.integers(0, 255)),
)
HEADERS = st.lists(
    st.tuples(st.text(max_size=5), st.one_of(st.none(), st.binary(max_size=6))), max_size=3
).map(tuple)


@st.composite
def records(draw: st.DrawFn, base_offset: int, *, gaps: bool = True) -> tuple[Record, ...]:
    """Consecutive records, with offset gaps as compaction leaves them if `gaps`."""
    kind = draw(st.sampled_from(["odd", "alike", "plain"]))
    if kind == "odd":
        count = draw(st.integers(1, 12))
        parts = draw(
            st.lists(st.tuples(TIMESTAMPS, BLOBS, BLOBS, HEADERS), min_size=count, max_size=count)
        )
    else:
        count = draw(st.integers(1, 700))
        pattern: list[tuple[int, bytes | None, bytes | None, tuple[()]]] = draw(
            st.lists(
                st.tuples(st.integers(0, 200), BLOBS, BLOBS, st.just(())),
                min_size=1,
                max_size=1 if kind == "alike" else 4,
            )
        )
        parts = [pattern[index % len(pattern)] for index in range(count)]
    offset = base_offset
    result = []
    for timestamp, key, value, headers in parts:
        if gaps and kind == "odd":
            offset += draw(st.sampled_from([0, 0, 0, 1, 70, 9_000]))
        result.append(Record(offset, timestamp, key, value, headers))
        offset += 1
    return tuple(result)


@st.composite
def batches(draw: st.DrawFn) -> list[Batch]:
    """Batches with ascending offsets: every codec, control, empty and append-time ones."""
    result: list[Batch] = []
    base_offset = draw(st.sampled_from([0, 1, 2**40, 2**62]))
    for _ in range(draw(st.integers(0, 5))):
        base_offset += draw(st.sampled_from([0, 0, 3]))
        empty = draw(st.integers(0, 9)) == 0
        content = () if empty else draw(records(base_offset))
        last = content[-1].offset - base_offset if content else 4
        batch = Batch(
            base_offset=base_offset,
            records=content,
            codec=draw(st.sampled_from([0, 0, 0, 1, 2, 3, 4])),
            append_time=draw(st.sampled_from([None, None, 77])),
            control=draw(st.integers(0, 5)) == 0,
            transactional=draw(st.booleans()),
            producer=draw(st.sampled_from([(-1, -1, -1), (5, 0, 9)])),
            last_offset_delta=last + draw(st.sampled_from([0, 0, 2])),
            leader_epoch=draw(st.sampled_from([-1, 3])),
        )
        result.append(batch)
        base_offset += (batch.last_offset_delta or 0) + 1
    return result


def visible(drawn: Sequence[Batch], *, control: bool = False) -> list[Record]:
    """Return the records of the batches, in order."""
    return [r for batch in drawn if control or not batch.control for r in batch.visible()]
