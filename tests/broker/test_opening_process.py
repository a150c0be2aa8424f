"""Large requests are opened in a process of their own, with the result of the broker's own way."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator, Sequence

import pytest

from penstock.broker.requests.opening import (
    OPENED_NEARBY_BYTES_MAX,
    OpeningProcess,
    OpenResult,
    Sealed,
    open_batches,
)
from penstock.records import Codec
from penstock.records.columnar.schema_ids import PartIds
from penstock.records.columnar.validation import VALIDATED_BATCH_BYTES_MAX
from penstock.records.compression import Allowance
from penstock.storage.files.settings import LogConfig
from tests.records.nonsense import GOOD, KEYLESS, TIME_MS, framed, sealed
from tests.records.reference import varint

COMPACTED = LogConfig(cleanup_policy=("compact",))
ZSTD = LogConfig(compression_type="zstd")
WITH_IDS = LogConfig(
    compression_type="zstd", schema_validation_key=True, schema_validation_value=True
)
PACKED = sealed(b"".join(GOOD), len(GOOD), codec=Codec.GZIP)
LARGE = sealed(
    framed(b"\0\0\0" + varint(1) + b"k" + varint(OPENED_NEARBY_BYTES_MAX)
    + bytes(OPENED_NEARBY_BYTES_MAX) + b"\0"), 1, codec=Codec.GZIP,
)  # fmt: skip
BOMB = sealed(bytes(VALIDATED_BATCH_BYTES_MAX + 1), 3, codec=Codec.GZIP)


@pytest.fixture
def process() -> Iterator[OpeningProcess]:
    process = OpeningProcess()
    yield process
    process.end()


def batches_of(config: LogConfig, *batches: bytes) -> list[Sealed]:
    return [Sealed(memoryview(bytearray(batch)), config, False) for batch in batches]


def compared(found: Sequence[OpenResult]) -> list[object]:
    return [
        (type(ready), str(ready), vars(ready))
        if isinstance(ready, Exception)
        else (bytes(ready.records), ready.records.readonly, *map(shown, ready.ids))
        for ready in found
    ]


def shown(ids: PartIds) -> tuple[object, ...]:
    return ids.part, ids.ids, ids.absent, ids.numbers.tolist()


@pytest.mark.parametrize(
    "batches",
    [
        pytest.param(batches_of(COMPACTED, PACKED, LARGE), id="stored as sent"),
        pytest.param(batches_of(ZSTD, PACKED, LARGE), id="packed again"),
        pytest.param(
            batches_of(COMPACTED, PACKED, sealed(KEYLESS, 1, codec=Codec.GZIP), BOMB, PACKED),
            id="refused",
        ),
        pytest.param(
            [*batches_of(COMPACTED, LARGE), Sealed(memoryview(bytearray(PACKED)), COMPACTED, True)],
            id="transactional",
        ),
        pytest.param(
            [batch._replace(with_ids=True) for batch in batches_of(WITH_IDS, PACKED, LARGE)],
            id="with schema ids",
        ),
    ],
)
def test_the_process_answers_as_the_broker_itself(
    process: OpeningProcess, batches: list[Sealed]
) -> None:
    found = process.opened(batches, TIME_MS)
    assert process.pid is not None
    assert compared(found) == compared(open_batches(batches, TIME_MS, Allowance()))


def test_a_small_request_starts_no_process(process: OpeningProcess) -> None:
    found = process.opened(batches_of(ZSTD, PACKED, b"no batch"), TIME_MS)
    assert process.pid is None
    assert [isinstance(ready, Exception) for ready in found] == [False, True]


def test_a_process_that_was_killed_is_started_again(process: OpeningProcess) -> None:
    large = batches_of(COMPACTED, LARGE)
    process.opened(large, TIME_MS)
    first = process.pid
    assert first is not None
    os.kill(first, signal.SIGKILL)
    assert compared(process.opened(large, TIME_MS)) == [(LARGE, False)]
    assert process.pid not in (None, first)


def test_an_idle_process_ends_and_another_is_started() -> None:
    idle, large = OpeningProcess(idle_seconds=0.01), batches_of(COMPACTED, LARGE)
    assert compared(idle.opened(large, TIME_MS)) == [(LARGE, False)]
    first = idle.pid
    assert first is not None
    os.waitid(os.P_PID, first, os.WEXITED | os.WNOWAIT)
    assert compared(idle.opened(large, TIME_MS)) == [(LARGE, False)]
    assert idle.pid not in (None, first)
    idle.end()


def test_no_process_is_started_after_the_close(process: OpeningProcess) -> None:
    large = batches_of(COMPACTED, LARGE)
    process.opened(large, TIME_MS)
    process.close()
    with pytest.raises((OSError, EOFError)):
        process.opened(large, TIME_MS)
    assert process.pid is None
