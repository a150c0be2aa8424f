"""The file that says up to where logs are clean: its format, and that it never says too much."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.base.ids import TopicPartition
from penstock.storage.compaction.offsets import decode_clean_offsets, encode_clean_offsets
from penstock.storage.files.errors import CorruptFile
from tests.storage.compaction.keyed import Keyed

OFFSETS = {
    TopicPartition("orders", 0): 117,
    TopicPartition("orders", 12): 0,
    TopicPartition("a.b_c-d", 3): 2**63 - 1,
}


def test_is_kafkas_text() -> None:
    data = encode_clean_offsets(OFFSETS)
    assert data == b"0\n3\na.b_c-d 3 9223372036854775807\norders 0 117\norders 12 0\n"
    assert decode_clean_offsets(data) == OFFSETS
    assert decode_clean_offsets(encode_clean_offsets({})) == {}


def test_truncated_or_damaged_files_are_rejected() -> None:
    data = encode_clean_offsets(OFFSETS)
    for size in range(len(data)):
        with pytest.raises(CorruptFile):
            decode_clean_offsets(data[:size])
    for wrong in (b"1\n0\n", b"0\n1\norders 0\n", b"0\n1\norders -1 5\n", b"0\n1\n../x 0 5\n"):
        with pytest.raises(CorruptFile):
            decode_clean_offsets(wrong)


def test_entries_go_with_their_logs_and_are_lowered_by_cuts(tmp_path: Path) -> None:
    place = Keyed(tmp_path)
    for number in range(20):
        place.send([(b"key %d" % (number % 3), b"value")] * 3)
    place.compact()
    path = tmp_path / "cleaner-offset-checkpoint"
    where = place.log.topic_partition
    clean = decode_clean_offsets(path.read_bytes())[where]
    assert clean == 60
    cut = place.log.replica.truncate(place.log.log_end_offset - 1, floor=0)
    assert decode_clean_offsets(path.read_bytes())[where] == cut < clean
    assert place.harness.commit() is None
    place.harness.store.delete(where)
    place.sent = []
    assert decode_clean_offsets(path.read_bytes()) == {}
    place.send([(b"key 1", b"value")])
    path.write_bytes(b"not what it was")
    place.harness.crash()
    place.compact()
    assert len(place.check()) == 1
