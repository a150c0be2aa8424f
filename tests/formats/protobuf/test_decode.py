"""Every message that Protobuf's own library writes is read as that library reads it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from google.protobuf import message_factory
from google.protobuf.message import DecodeError
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from penstock.formats.protobuf import column_of_message, message_of
from penstock.formats.protobuf_decode import decode
from penstock.formats.values import Values
from tests.formats.drawn import drawn
from tests.formats.protobuf.messages import comparable, damaged, descriptor, expected, values

SLOW = [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.function_scoped_fixture]


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("shop")


def decoded(
    of: Any, content: list[bytes | None], *, exact: bool = False
) -> tuple[pa.Array, list[str | None]]:
    message = message_of(of)
    found, errors = decode(message, Values.of(pa.array(content, pa.binary())), exact=exact)
    found.validate(full=True)
    assert found.type == column_of_message(message).type
    return found, errors.to_pylist()


@settings(max_examples=15, deadline=None, suppress_health_check=SLOW)
@given(data=st.data())
def test_what_is_written_is_read(shop: Path, data: Any) -> None:
    of = descriptor(shop, "shop.All")
    messages = data.draw(st.lists(values(of), max_size=4))
    found, errors = decoded(of, [message.SerializeToString() for message in messages])
    assert errors == [None] * len(messages)
    assert comparable(found) == [expected(message) for message in messages]


@settings(max_examples=15, deadline=None, suppress_health_check=SLOW)
@given(data=st.data())
def test_fields_in_any_order_and_again_the_last_counts(shop: Path, data: Any) -> None:
    """Two messages behind each other are one message, which is how Protobuf merges."""
    of = descriptor(shop, "shop.All")
    first, second = data.draw(values(of)), data.draw(values(of))
    both = second.SerializeToString() + first.SerializeToString()
    read = message_factory.GetMessageClass(of).FromString(both)
    found, errors = decoded(of, [both])
    twice = [
        field.name
        for field in of.fields
        if field.message_type is not None
        and not field.is_repeated
        and first.HasField(field.name)
        and second.HasField(field.name)
    ]
    if twice:
        assert errors[0] is not None
        assert "the message comes more than once" in errors[0]
    else:
        assert errors == [None]
        assert comparable(found) == [expected(read)]


@settings(max_examples=15, deadline=None, suppress_health_check=SLOW)
@given(data=st.data())
def test_fields_that_are_not_in_the_schema_are_skipped(shop: Path, data: Any) -> None:
    whole, some = descriptor(shop, "shop.All"), descriptor(shop, "shop.Some")
    message = data.draw(values(whole))
    content = message.SerializeToString()
    found, errors = decoded(some, [content])
    assert errors == [None]
    read = message_factory.GetMessageClass(some).FromString(content)
    assert comparable(found) == [expected(read)]


# Times that the library itself cannot convert; and maps, of which the library drops the entries
# that have a field too many.
PASSED_OVER = ("at", "took", "mi", "mm", "mc")
STRICTER = ("more than once", "does not fit", "nanoseconds", "group", "more than 64 bits")


def agrees(of: Any, content: bytes, value: Any, error: str | None) -> None:
    try:
        read = message_factory.GetMessageClass(of).FromString(content)
    except DecodeError:
        assert error is not None, content
        assert value is None
        return
    if error is None:
        ours = {name: got for name, got in value.items() if name not in PASSED_OVER}
        theirs = {name: got for name, got in expected_in_part(read).items()}
        assert in_order(ours) == in_order(theirs)
    else:
        # Refused on purpose: merging, times that no column can hold, and numbers whose tenth byte
        # has bits to spare, which the library drops.
        assert any(words in error for words in STRICTER), error


def in_order(value: Any) -> str:
    """Return a value as text, in which NaN equals itself, and maps have an order."""
    if isinstance(value, dict):
        return repr(sorted((repr(key), in_order(item)) for key, item in value.items()))
    return repr([in_order(item) for item in value]) if isinstance(value, list) else repr(value)


def expected_in_part(message: Any) -> dict[str, Any]:
    for name in PASSED_OVER:
        message.ClearField(name)
    found = expected(message)
    for name in PASSED_OVER:
        del found[name]
    return found


@settings(max_examples=15, deadline=None, suppress_health_check=SLOW)
@given(data=st.data())
def test_cut_anywhere_it_agrees_with_the_library(shop: Path, data: Any) -> None:
    of = descriptor(shop, "shop.All")
    good = data.draw(values(of))
    cut = data.draw(values(of)).SerializeToString()[:120]
    pieces = [cut[:size] for size in range(len(cut) + 1)]
    content = [part for piece in pieces for part in (good.SerializeToString(), piece)]
    found, errors = decoded(of, content)
    assert not any(errors[0::2])
    rows = comparable(found)
    assert rows[0::2] == [expected(good)] * len(pieces)
    for number, piece in enumerate(pieces):
        agrees(of, piece, rows[2 * number + 1], errors[2 * number + 1])


@settings(max_examples=15, deadline=None, suppress_health_check=SLOW)
@given(data=st.data())
def test_damaged_it_agrees_with_the_library(shop: Path, data: Any) -> None:
    of = descriptor(shop, "shop.All")
    good = data.draw(values(of))
    content = data.draw(values(of)).SerializeToString()
    pieces = damaged(content, data.draw(st.integers(0, 10_000)), 25)
    whole = good.SerializeToString()
    found, errors = decoded(of, [part for piece in pieces for part in (whole, piece)])
    assert not any(errors[0::2])
    rows = comparable(found)
    assert rows[0::2] == [expected(good)] * len(pieces)
    for number, piece in enumerate(pieces):
        agrees(of, piece, rows[2 * number + 1], errors[2 * number + 1])


def test_columns_grow_as_long_as_there_is_more(shop: Path) -> None:
    of = descriptor(shop, "shop.All")
    made: Any = message_factory.GetMessageClass(of)
    messages = []
    for size in (1, 3, 0, 2):
        message = made(rs=["x" * n for n in range(100 * size)], ri=range(500 * size))
        for number in range(100 * size):
            message.rm.add(a=number, b="y" * number).deep.names.extend(["z"] * (number % 5))
        messages.append(message)
    content = [message.SerializeToString() for message in messages]
    found, errors = decoded(of, [*content, content[1][:-1]])
    assert errors == [None] * len(messages) + ["ends too early"]
    assert comparable(found) == [*(expected(message) for message in messages), None]


NANOS = st.integers(0, 999_999).map(lambda micros: micros * 1000) | st.integers(-(2**31), 2**31 - 1)
SECONDS = st.integers(-(10**11), 10**11) | st.integers(-(2**63), 2**63 - 1)


def nanoseconds(message: Any) -> int | None:
    """Return all nanoseconds of a time; None where its own library rejects it.

    The library has fewer years than a column: seconds beyond them are counted here.
    """
    seconds, more = message.seconds, 0
    if abs(seconds) > 10**9:
        more = seconds - (10**9 if seconds > 0 else -(10**9))
    made = type(message)(seconds=seconds - more, nanos=message.nanos)
    try:
        made.ToJsonString()
    except ValueError:
        return None
    return int(made.ToNanoseconds()) + more * 10**9


def test_times_are_exact_or_rejected(shop: Path) -> None:
    of = descriptor(shop, "shop.All")
    made: Any = message_factory.GetMessageClass(of)
    times = drawn(st.tuples(SECONDS, NANOS | st.integers(0, 999_999_999)))
    for name, kind in (("at", "timestamp"), ("took", "duration")):
        messages = [made(**{name: {"seconds": sec, "nanos": nano}}) for sec, nano in times]
        content: list[bytes | None] = [message.SerializeToString() for message in messages]
        (exact, said), (cut, others) = (decoded(of, content, exact=both) for both in (True, False))
        rows = zip(messages, comparable(exact), said, comparable(cut), others, strict=True)
        for message, ours, words, shorter, other in rows:
            time = getattr(message, name)
            whole = nanoseconds(time)
            if abs(time.seconds) > (2**63 - 1) // 1_000_000 - 1:
                assert words == other == f"field {name}: does not fit a {kind}"
            elif whole is None:
                where = f"field {name}: has nanoseconds beyond one second, or with the wrong sign"
                assert words == other == where
            else:
                assert other is None
                assert 0 <= abs(whole - shorter[name] * 1000) < 1000
                assert (words is None) == (time.nanos % 1000 == 0)
                if words is None:
                    assert ours[name] * 1000 == whole
                else:
                    assert "has a finer fraction of a second than microseconds" in words
