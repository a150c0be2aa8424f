"""Decoding of values while a task reads records, into two more columns.

A reader of `penstock.formats` converts each value to a struct, or reports an error, while the
worker still has the records in Arrow. Spark receives only the selected fields, but every value is
checked as a whole.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import pyarrow as pa
from pyspark.sql.pandas.types import to_arrow_type
from pyspark.sql.types import StringType, StructField, StructType

from penstock.spark.errors import InvalidOption
from penstock.spark.schema import ERROR, VALUE

if TYPE_CHECKING:  # its modules are loaded where a value is opened, and nowhere else
    from penstock.formats.readers import Reader


@dataclass(frozen=True, slots=True, kw_only=True)
class Opening:
    """Decoder of values: a reader of one format, and the selected fields; it can be pickled."""

    reader: Reader
    value: StructType

    @property
    def schema(self) -> tuple[StructField, StructField]:
        """The two columns that the decoder adds: the value as a struct, and the error of an invalid
        value.
        """
        return StructField(VALUE, self.value), StructField(ERROR, StringType())

    def only(self, names: Iterable[str]) -> Opening:
        """Return a decoder for some of the fields.

        Raises:
            InvalidOption: no field is named, or a field does not exist.
        """
        wanted = set(names)
        unknown = sorted(wanted.difference(self.value.names))
        if unknown or not wanted:
            raise InvalidOption(
                "valueFields", ", ".join(unknown) or "[]",
                f"must name at least one of the fields {', '.join(self.value.names)}",
            )  # fmt: skip
        kept = [field for field in self.value.fields if field.name in wanted]
        return replace(self, value=StructType(kept))

    def arrow_fields(self) -> tuple[pa.Field, pa.Field]:
        """Return the Arrow fields of the two columns, with exactly the types that Spark expects."""
        return (
            pa.field(VALUE, to_arrow_type(self.value, timezone="UTC")),
            pa.field(ERROR, pa.string()),
        )

    def columns(self, values: pa.BinaryArray) -> tuple[pa.StructArray, pa.StringArray]:
        opened, errors = self.reader.read(values)
        names = self.value.names
        if opened.type.num_fields != len(names):
            parts = [opened.field(name) for name in names]
            opened = pa.StructArray.from_arrays(parts, names=names, mask=opened.is_null())
        return opened.cast(self.arrow_fields()[0].type), errors
