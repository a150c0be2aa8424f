"""The columnar codec against the record code of aiokafka and kafka-python, both ways."""

from __future__ import annotations

import random
import warnings
from typing import Any

import pyarrow as pa
import pytest
from aiokafka.record.default_records import DefaultRecordBatchBuilder as AioBuilder
from aiokafka.record.memory_records import MemoryRecords as AioRecords

from penstock.records import Codec
from penstock.records.columnar import decode_batches, encode_batches
from tests.records.reference import Record
from tests.records.test_decode import rows
from tests.records.test_encode import table

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)  # kafka-python reads its schemas so
    from kafka.record.default_records import DefaultRecordBatchBuilder as KafkaPythonBuilder
    from kafka.record.memory_records import MemoryRecords as KafkaPythonRecords

pytestmark = pytest.mark.interop


def some_records(count: int) -> tuple[Record, ...]:
    dice = random.Random(count)
    tags: tuple[tuple[str, bytes | None], ...] = (("trace", b"0123"), ("none", None))
    return tuple(
        Record(
            index,
            1_000 + dice.randint(0, 9_000),
            dice.choice([None, b"", b"key"]),
            dice.choice([None, b"", dice.randbytes(dice.randint(1, 300))]),
            tags[: dice.randint(0, 2)],
        )
        for index in range(count)
    )


@pytest.mark.parametrize("codec", list(Codec))
@pytest.mark.parametrize("reader", [AioRecords, KafkaPythonRecords])
@pytest.mark.parametrize("count", [1, 300])
def test_others_read_what_we_write(reader: Any, codec: Codec, count: int) -> None:
    content = some_records(count)
    encoded = encode_batches(table(content), now_ms=1, codec=codec, records_per_batch=128)
    read = []
    batches = reader(b"".join(batch.data for batch in encoded))
    while batches.has_next():
        batch = batches.next_batch()
        assert batch.validate_crc()
        read += [
            Record(
                record.offset,
                record.timestamp,
                record.key,
                record.value,
                tuple((name, value) for name, value in record.headers),
            )
            for record in batch
        ]
    assert read == list(content)


@pytest.mark.parametrize("codec", list(Codec))
@pytest.mark.parametrize("builder", [AioBuilder, KafkaPythonBuilder])
@pytest.mark.parametrize("count", [1, 300])
def test_we_read_what_others_write(builder: Any, codec: Codec, count: int) -> None:
    content = some_records(count)
    writer = builder(
        magic=2,
        compression_type=int(codec),
        is_transactional=0,
        producer_id=-1,
        producer_epoch=-1,
        base_sequence=-1,
        batch_size=1 << 20,
    )
    for record in content:
        written = writer.append(
            record.offset, record.timestamp, record.key, record.value, list(record.headers)
        )
        assert written is not None
    assert rows(decode_batches(bytes(writer.build()))) == list(content)


def test_uncompressed_bytes_are_the_same() -> None:
    content = some_records(200)
    writer = KafkaPythonBuilder(2, 0, 0, -1, -1, -1, 1 << 20)
    for record in content:
        writer.append(
            record.offset, record.timestamp, record.key, record.value, list(record.headers)
        )
    ours = encode_batches(table(content), now_ms=1)[0].data
    assert bytes(writer.build())[61:] == ours[61:]
    assert pa.Table.from_batches([decode_batches(ours)]).num_rows == 200
