"""Protection of tables before they are sent, and of those that were read.

    encoder = FieldEncoder(ring, {"email": Mask(kind="email"), "value": Encrypt(subject="key")})
    client.write_arrow("orders", encoder.encode(table))
    table = encoder.decode(client.read_arrow("orders"))

`ProtectedClient` does both around a client. For serialisers of other Kafka clients there are
functions of one value: `seal_value`, `open_value`, `token`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, ClassVar, Protocol

import pyarrow as pa
import pyarrow.compute as pc
from msgspec import Struct

from penstock.base.errors import CorruptError, InvalidError
from penstock.security.data.columns import (
    decrypt_column,
    encrypt_column,
    mask_column,
    tokenize_column,
)
from penstock.security.data.key_ring import KeyRing
from penstock.security.data.masks import Mask
from penstock.security.data.tokens import DEFAULT_FORM, TokenForm


class NoSuchColumn(InvalidError):
    """A column to protect, or the subject's column, is missing."""


class NoSubject(InvalidError):
    """Rows to encrypt have a null subject."""

    code: ClassVar[str] = "invalid_record"


class FieldsUnreadable(CorruptError):
    """Values that cannot be decrypted: their count, their column and the first reason.

    Attributes:
        column: its name.
        rows: their positions in the batch.
    """

    def __init__(self, column: str, reasons: Mapping[int, str]) -> None:
        first = min(reasons)
        super().__init__(
            f"{len(reasons)} values of column {column} cannot be decrypted; "
            f"the first, in row {first}: {reasons[first]}"
        )
        self.column = column
        self.rows = sorted(reasons)


class Tokenize(Struct, frozen=True, kw_only=True):
    """Protection by tokens.

    Attributes:
        field: the field whose key is used; None for the column's name. Columns to be joined name
            the same field.
    """

    field: str | None = None
    form: TokenForm = DEFAULT_FORM


class Encrypt(Struct, frozen=True, kw_only=True):
    """Protection by encryption, for the subject in another column of the row.

    Attributes:
        subject: that column; in clear, and there when it is read again.
        text: whether decrypted values are text; otherwise they are bytes.
    """

    subject: str
    text: bool = False


class FieldEncoder:
    """Encoder that protects the named columns of tables and decrypts the encrypted ones.

    Attributes:
        unreadable: how many values could not be decrypted so far, of any column.
    """

    def __init__(self, ring: KeyRing, fields: Mapping[str, Mask | Tokenize | Encrypt]) -> None:
        self._ring = ring
        self._fields = dict(fields)
        self.unreadable = 0

    def encode(self, data: Any) -> Any:
        """Return a stream of record batches with the columns protected; `data` has Arrow's C
        stream.

        Raises:
            NoSuchColumn: `data` lacks a column.
            NoSubject, UnfitColumn, KeyRingUnusable: while the stream is read.
        """
        reader = _reader(data)
        self._check(reader.schema)
        return pa.RecordBatchReader.from_batches(
            self._encoded_schema(reader.schema), (self._encode(batch) for batch in reader)
        )

    def decode(self, data: Any, *, unreadable: str = "raise") -> Any:
        """Decrypt the encrypted columns of a table or batch.

        Args:
            data: a PyArrow table or record batch; columns that it lacks are left out.
            unreadable: `raise`, or `null` to count values that cannot be decrypted and continue.

        Raises:
            FieldsUnreadable: values are damaged or another subject's.
        """
        found = data
        for name, one in self._fields.items():
            if isinstance(one, Encrypt) and name in data.schema.names:
                self._check_subject(data.schema, one)
                column = self._decrypt(data, name, one, unreadable)
                at = data.schema.get_field_index(name)
                found = found.set_column(at, pa.field(name, column.type), column)
        return found

    def decode_stream(self, batches: Iterable[Any], *, unreadable: str = "raise") -> Iterator[Any]:
        return (self.decode(batch, unreadable=unreadable) for batch in batches)

    def _check(self, schema: Any) -> None:
        for name, one in self._fields.items():
            if name not in schema.names:
                raise NoSuchColumn(f"there is no column {name!r} to protect; {_there(schema)}")
            if isinstance(one, Encrypt):
                self._check_subject(schema, one)

    def _check_subject(self, schema: Any, one: Encrypt) -> None:
        if one.subject not in schema.names:
            raise NoSuchColumn(f"there is no column {one.subject!r} of subjects; {_there(schema)}")

    def _encoded_schema(self, schema: Any) -> Any:
        for name, one in self._fields.items():
            kind = pa.binary() if isinstance(one, Encrypt) else pa.string()
            schema = schema.set(schema.get_field_index(name), pa.field(name, kind))
        return schema

    def _encode(self, batch: Any) -> Any:
        columns = {name: batch.column(name) for name in batch.schema.names}
        found = columns | {
            name: self._protected(name, one, columns) for name, one in self._fields.items()
        }
        return pa.RecordBatch.from_arrays(
            list(found.values()), schema=self._encoded_schema(batch.schema)
        )

    def _protected(
        self, name: str, one: Mask | Tokenize | Encrypt, columns: Mapping[str, Any]
    ) -> Any:
        column = columns[name]
        if isinstance(one, Mask):
            return mask_column(column, one)
        if isinstance(one, Tokenize):
            return tokenize_column(column, self._ring, one.field or name, one.form)
        subjects = columns[one.subject]
        without = pc.sum(pc.and_(pc.is_valid(column), pc.is_null(subjects))).as_py()
        if without:
            raise NoSubject(
                f"{without} values of column {name} have no subject: {one.subject} is null"
            )
        return encrypt_column(column, subjects, self._ring)

    def _decrypt(self, data: Any, name: str, one: Encrypt, unreadable: str) -> Any:
        column, reasons = decrypt_column(
            _whole(data.column(name)), _whole(data.column(one.subject)), self._ring
        )
        self.unreadable += len(reasons)
        if reasons and unreadable == "raise":
            raise FieldsUnreadable(name, reasons)
        return column.cast(pa.string()) if one.text else column


def _reader(data: Any) -> Any:
    if isinstance(data, pa.RecordBatch):
        return pa.RecordBatchReader.from_batches(data.schema, [data])
    return pa.RecordBatchReader.from_stream(data)


def _whole(column: Any) -> Any:
    return column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column


def _there(schema: Any) -> str:
    return "the columns are " + (", ".join(schema.names) or "none")


class ColumnarClient(Protocol):
    """The part of `penstock.client.Client` that is used."""

    @property
    def write_arrow(self) -> Callable[..., Any]: ...

    @property
    def read_arrow(self) -> Callable[..., Any]: ...

    @property
    def iter_arrow(self) -> Callable[..., Iterator[Any]]: ...


class ProtectedClient:
    """The columnar calls of a client, through an encoder.

    Args:
        client: a `penstock.client.Client`; it stays its owner's to close.
        unreadable: as in `FieldEncoder.decode`.
    """

    def __init__(
        self, client: ColumnarClient, encoder: FieldEncoder, *, unreadable: str = "raise"
    ) -> None:
        self._client = client
        self._encoder = encoder
        self._unreadable = unreadable

    def write_arrow(self, topic: str, data: Any, **options: Any) -> Any:
        """Write a table as `Client.write_arrow`, with the columns protected.

        Raises:
            NoSuchColumn, NoSubject, UnfitColumn, KeyRingUnusable: nothing of the batch is sent.
        """
        return self._client.write_arrow(topic, self._encoder.encode(data), **options)

    def read_arrow(self, topic: str, **options: Any) -> Any:
        """Read a table as `Client.read_arrow`, with the columns decrypted.

        Raises:
            FieldsUnreadable: values are damaged or another subject's.
        """
        read = self._client.read_arrow(topic, **options)
        return self._encoder.decode(read, unreadable=self._unreadable)

    def iter_arrow(self, topic: str, **options: Any) -> Iterator[Any]:
        """Iterate as `Client.iter_arrow`, with the columns decrypted.

        Raises:
            FieldsUnreadable: values are damaged or another subject's.
        """
        batches = self._client.iter_arrow(topic, **options)
        return self._encoder.decode_stream(batches, unreadable=self._unreadable)
