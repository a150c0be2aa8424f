"""Reader of staged sections in bounded pieces of whole batches, stamped with their producer.

A reader runs on worker threads, one call at a time. No file stays open between calls, so that an
abandoned reader leaves none open. A piece is read into its own buffer, checked by headers and
checksums, and stamped in place. Its records are read only before a commit begins, as far as the
configuration of their topic demands.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from penstock.base.errors import PenstockError
from penstock.base.files import MACHINE_FILES, sync_directory
from penstock.broker.batch_commits.manifest import (
    Blob,
    CorruptBlob,
    InvalidCommit,
    TopicIdPartition,
)
from penstock.broker.requests.opening import Opened, reader_of
from penstock.control.values.topics import SEQUENCES
from penstock.records import (
    HEADER_BYTES,
    BatchHeader,
    CorruptBatch,
    InvalidRecord,
    decode_header,
    stamp_identity,
    validate_batch,
)
from penstock.records.header import LENGTH_OVERHEAD_BYTES, NO_PRODUCER_ID
from penstock.storage.log.validation import validate_batches

if TYPE_CHECKING:
    from collections.abc import Iterator

    from penstock.broker.batch_commits.commit import Run
    from penstock.storage import LogConfig

PIECE_BYTES_MAX: Final = 4 << 20
"""Maximum bytes that are read, stamped and appended together; a single batch may be larger."""
PIECES_PER_TURN_MAX: Final = 64
"""Maximum number of pieces that are appended in one turn of the event loop."""
STAGED_BATCH_BYTES_MAX: Final = 128 << 20
"""Maximum bytes of a record batch in a staged blob; the limit of the topic also applies."""

_PRODUCER_EPOCH: Final = 0


class Piece(NamedTuple):
    run: Run
    data: memoryview
    records: int
    first_sequence: int


class PieceReader:
    def __init__(
        self,
        directory: Path,
        runs: Sequence[Run],
        configs: Mapping[TopicIdPartition, LogConfig],
        *,
        transaction_epoch: int | None = None,
    ) -> None:
        """Create a reader of the sections `runs`; `configs` are the configs of their partitions.

        A piece has at most `segment.bytes`. With `transaction_epoch`, the batches are stamped as
        part of a transaction, with that producer epoch.
        """
        self._directory = directory
        self._runs = runs
        self._configs = configs
        self._transaction_epoch = transaction_epoch
        self._index = 0
        self._position = -1
        self._counted = 0

    def verify(self, now_ms: int) -> list[tuple[TopicIdPartition, Opened]] | None:
        """Validate the next pieces as their logs would; return None at the end.

        The result has the pieces for topics that demand schema ids, with these ids.

        Raises:
            CorruptBlob: a section is missing or not made of whole batches.
            PenstockError: as `PartitionLog.append`, for batches that cannot be stored.
        """
        pieces = self._next(stamp=False)
        with_ids = []
        for piece in pieces:
            config = self._configs[piece.run.target]
            ids = reader_of(config)
            validate_batches(piece.data, config, now_ms, ids=ids)
            if ids is not None:
                with_ids.append((piece.run.target, Opened(piece.data, ids.found)))
        return with_ids if pieces else None

    def read(self) -> list[Piece]:
        """Return the next stamped pieces, of about `PIECE_BYTES_MAX`; none at the end.

        Raises:
            CorruptBlob: a blob has changed since its verification.
        """
        return self._next(stamp=True)

    def _next(self, *, stamp: bool) -> list[Piece]:
        pieces: list[Piece] = []
        size_bytes = 0
        opened = ""
        descriptor = -1
        try:
            while (
                self._index < len(self._runs)
                and size_bytes < PIECE_BYTES_MAX
                and len(pieces) < PIECES_PER_TURN_MAX
            ):
                run = self._runs[self._index]
                if run.blob != opened:
                    if descriptor >= 0:
                        os.close(descriptor)
                        descriptor = -1
                    descriptor = _open(self._directory / run.blob)
                    opened = run.blob
                piece = self._piece(descriptor, run, stamp=stamp)
                if piece is not None:
                    pieces.append(piece)
                    size_bytes += len(piece.data)
        finally:
            if descriptor >= 0:
                os.close(descriptor)
        return pieces

    def _piece(self, descriptor: int, run: Run, *, stamp: bool) -> Piece | None:
        if self._position < 0:
            self._position, self._counted = run.position, 0
        limit = min(PIECE_BYTES_MAX, self._configs[run.target].segment_bytes)
        data = _read(descriptor, run, self._position, limit)
        headers, end = _whole_batches(data, run, self._position)
        if not headers:
            data = _read(descriptor, run, self._position, end)
            headers, end = _whole_batches(data, run, self._position)
        skipped, start = self._skip(headers, run)
        headers = headers[skipped:]
        first = self._counted
        sequence = (run.base_sequence + first) % SEQUENCES
        view = memoryview(data)[start:end]
        if stamp and run.producer_id != NO_PRODUCER_ID:
            self._stamp(view, headers, run.producer_id, sequence)
        records = sum([header.record_count for header in headers])
        self._counted += records
        self._advance(run, self._position + end)
        return Piece(run, view, records, sequence) if headers else None

    def _stamp(
        self, view: memoryview, headers: list[BatchHeader], producer_id: int, sequence: int
    ) -> None:
        epoch, at = self._transaction_epoch, 0
        for header in headers:
            batch = view[at : at + header.size_bytes]
            batch[:HEADER_BYTES] = stamp_identity(
                batch,
                header,
                producer_id=producer_id,
                epoch=_PRODUCER_EPOCH if epoch is None else epoch,
                base_sequence=sequence,
                transactional=epoch is not None,
            )
            sequence = (sequence + header.record_count) % SEQUENCES
            at += header.size_bytes

    def _skip(self, headers: list[BatchHeader], run: Run) -> tuple[int, int]:
        size_bytes = 0
        for index, header in enumerate(headers):
            if self._counted >= run.skip:
                return index, size_bytes
            self._counted += header.record_count
            size_bytes += header.size_bytes
            if self._counted > run.skip:
                raise CorruptBlob(
                    f"blob {run.blob!r}: the log has {run.skip} records of the section at byte"
                    f" {run.position}, but no batch ends there"
                )
        return len(headers), size_bytes

    def _advance(self, run: Run, position: int) -> None:
        self._position = position
        if position < run.end:
            return
        if self._counted != run.records:
            raise CorruptBlob(
                f"blob {run.blob!r}: the section at byte {run.position} has"
                f" {self._counted} records, {run.records} were declared"
            )
        self._index += 1
        self._position = -1


def check_blobs(directory: Path, blobs: Sequence[Blob]) -> None:
    """Check that blobs exist with the given sizes, and sync them.

    Raises:
        InvalidCommit: a blob is missing, not a plain file, or has another size.
        OSError: a sync failed.
    """
    for blob in blobs:
        with _opened(directory / blob.name) as descriptor:
            size_bytes = os.fstat(descriptor).st_size
            if size_bytes != blob.size_bytes:
                raise InvalidCommit(
                    f"blob {blob.name!r} has {size_bytes} bytes, {blob.size_bytes} were declared"
                )
            MACHINE_FILES.sync_file(descriptor)
    if blobs:
        sync_directory(MACHINE_FILES, directory)


def remove_blobs(directory: Path, names: Sequence[str]) -> None:
    for name in names:
        with suppress(FileNotFoundError):
            (directory / name).unlink()


@contextmanager
def _opened(path: Path) -> Iterator[int]:
    try:
        descriptor = _open(path)
    except CorruptBlob as error:
        raise InvalidCommit(str(error)) from None
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _open(path: Path) -> int:
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
    except FileNotFoundError:
        raise CorruptBlob(f"blob {path.name!r} is not staged") from None
    except OSError as error:
        if error.errno != errno.ELOOP:
            raise
        raise CorruptBlob(f"blob {path.name!r} is a symbolic link") from None
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise CorruptBlob(f"blob {path.name!r} is not a plain file")
    return descriptor


def _read(descriptor: int, run: Run, position: int, limit: int) -> bytearray:
    data = bytearray(min(limit, run.end - position))
    view = memoryview(data)
    done = 0
    while done < len(data):
        count = os.preadv(descriptor, [view[done:]], position + done)
        if count == 0:
            raise CorruptBlob(
                f"blob {run.blob!r} ends at byte {position + done}, inside the section that begins"
                f" at byte {run.position}"
            )
        done += count
    return data


def _whole_batches(data: bytearray, run: Run, position: int) -> tuple[list[BatchHeader], int]:
    """Return the headers of the whole batches with which `data` begins, and their total size.

    If the first batch is incomplete, returns no headers and the size of this batch.
    """
    headers: list[BatchHeader] = []
    at = 0
    try:
        while at < len(data):
            if len(data) - at < HEADER_BYTES and position + len(data) < run.end:
                break
            header = decode_header(data, at)
            size_bytes = header.batch_length + LENGTH_OVERHEAD_BYTES
            if size_bytes > min(run.end - position - at, STAGED_BATCH_BYTES_MAX):
                raise CorruptBatch(
                    f"a batch declares {size_bytes} bytes, but {run.end - position - at} are left"
                    f" in its section, and at most {STAGED_BATCH_BYTES_MAX} are allowed"
                )
            if size_bytes > len(data) - at:
                if not headers:
                    return [], size_bytes
                break
            _check(header)
            headers.append(header)
            at += size_bytes
    except PenstockError as error:
        raise CorruptBlob(f"blob {run.blob!r}, byte {position + at}: {error}") from None
    return headers, at


def _check(header: BatchHeader) -> None:
    validate_batch(header)
    if header.producer_id != NO_PRODUCER_ID:
        raise InvalidRecord(f"a staged batch has producer {header.producer_id}; it must have none")
