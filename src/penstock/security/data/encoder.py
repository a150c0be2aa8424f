"""Protection of the columns of tables before they are sent, and decryption after they are read.

    encoder = FieldEncoder(ring, {"email": Mask(kind="email"), "value": Encrypt(subject="key")})
    client.write_arrow("orders", encoder.encode(table))
    table = encoder.decode(client.read_arrow("orders"))

`ProtectedClient` wraps a client: it encodes the tables that it writes and decodes those that it
reads. For serialisers of other Kafka clients, there are functions for single values: `seal_value`,
`open_value` and `token`.
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
from penstock.security.data.masks import DEFAULT_FORM, Mask, TokenForm


class NoSuchColumn(InvalidError):
    """Missing column: one to protect, or the one with the subjects."""


class NoSubject(InvalidError):
    """Rows with a value to encrypt, but without a subject."""

    code: ClassVar[str] = "invalid_record"


class FieldsUnreadable(CorruptError):
    """Values that cannot be decrypted; the message has their count, column and first reason.

    Attributes:
        column: name of the column.
        rows: indexes of the rows in the batch.
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
    """Protection of a column by tokens.

    Attributes:
        field: name of the field whose key is used; None for the column's name. Columns to be joined
            must use the same field.
        form: form of the tokens.
    """

    field: str | None = None
    form: TokenForm = DEFAULT_FORM


class Encrypt(Struct, frozen=True, kw_only=True):
    """Protection of a column by encryption, with the key of the row's subject.

    Attributes:
        subject: name of the column with the subjects. It is not encrypted and must be present when
            the rows are decrypted.
        text: whether decrypted values are returned as text instead of bytes.
    """

    subject: str
    text: bool = False


class FieldEncoder:
    """Encoder that protects the named columns of tables, and decrypts the encrypted ones.

    Attributes:
        unreadable: number of values, in all columns, that could not be decrypted so far.
    """

    def __init__(self, ring: KeyRing, fields: Mapping[str, Mask | Tokenize | Encrypt]) -> None:
        self._ring = ring
        self._fields = dict(fields)
        self.unreadable = 0

    def encode(self, data: Any) -> Any:
        """Return a stream of record batches with protected columns.

        `data` is a table, a record batch, or another object with Arrow's C stream interface.

        Raises:
            NoSuchColumn: `data` lacks a column.
            NoSubject, UnfitColumn, KeyRingUnusable: raised while the stream is read.
        """
        reader = _reader(data)
        self._check(reader.schema)
        return pa.RecordBatchReader.from_batches(
            self._encoded_schema(reader.schema), (self._encode(batch) for batch in reader)
        )

    def decode(self, data: Any, *, unreadable: str = "raise") -> Any:
        """Return a table or record batch with the encrypted columns decrypted.

        Args:
            data: PyArrow table or record batch; encrypted columns that it lacks are ignored.
            unreadable: `raise` fails if a value cannot be decrypted; `null` makes it null and
                counts it.

        Raises:
            NoSuchColumn: `data` lacks the column with the subjects.
            FieldsUnreadable: values are damaged, or were encrypted for another subject.
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
                raise NoSuchColumn(f"the column to protect, {name!r}, is missing. {_there(schema)}")
            if isinstance(one, Encrypt):
                self._check_subject(schema, one)

    def _check_subject(self, schema: Any, one: Encrypt) -> None:
        if one.subject not in schema.names:
            raise NoSuchColumn(
                f"the column with the subjects, {one.subject!r}, is missing. {_there(schema)}"
            )

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
                f"{without} values of column {name} have no subject: column {one.subject} is null"
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
    return "The columns are " + (", ".join(schema.names) or "none")


class ColumnarClient(Protocol):
    """Port with those methods of `penstock.client.Client` that `ProtectedClient` calls."""

    @property
    def write_arrow(self) -> Callable[..., Any]: ...

    @property
    def read_arrow(self) -> Callable[..., Any]: ...

    @property
    def iter_arrow(self) -> Callable[..., Iterator[Any]]: ...


class ProtectedClient:
    """Client whose columnar methods protect columns before writing and decrypt them after reading.

    Args:
        client: a `penstock.client.Client`, which the caller must close.
        encoder: encoder of the columns.
        unreadable: as in `FieldEncoder.decode`.
    """

    def __init__(
        self, client: ColumnarClient, encoder: FieldEncoder, *, unreadable: str = "raise"
    ) -> None:
        self._client = client
        self._encoder = encoder
        self._unreadable = unreadable

    def write_arrow(self, topic: str, data: Any, **options: Any) -> Any:
        """Write a table as `Client.write_arrow` does, with protected columns.

        Raises:
            NoSuchColumn, NoSubject, UnfitColumn, KeyRingUnusable: a batch cannot be protected; it
                is not sent.
        """
        return self._client.write_arrow(topic, self._encoder.encode(data), **options)

    def read_arrow(self, topic: str, **options: Any) -> Any:
        """Read a table as `Client.read_arrow` does, with decrypted columns.

        Raises:
            FieldsUnreadable: values are damaged, or were encrypted for another subject.
        """
        read = self._client.read_arrow(topic, **options)
        return self._encoder.decode(read, unreadable=self._unreadable)

    def iter_arrow(self, topic: str, **options: Any) -> Iterator[Any]:
        """Yield record batches as `Client.iter_arrow` does, with decrypted columns.

        Raises:
            FieldsUnreadable: values are damaged, or were encrypted for another subject.
        """
        batches = self._client.iter_arrow(topic, **options)
        return self._encoder.decode_stream(batches, unreadable=self._unreadable)
