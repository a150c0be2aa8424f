"""Decoding of values while a task reads records, as two more columns.

A reader of `penstock.formats` makes a struct of each value, or an error, while the record's columns
are still in Arrow in the worker. Spark gets only the selected fields; every value is checked as a
whole all the same.
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
    """Reader and selected fields of a value; may be pickled."""

    reader: Reader
    value: StructType

    @property
    def schema(self) -> tuple[StructField, StructField]:
        """The two columns: the struct, and the error of a value that has none."""
        return StructField(VALUE, self.value), StructField(ERROR, StringType())

    def only(self, names: Iterable[str]) -> Opening:
        """Return the opening with some of the fields.

        Raises:
            InvalidOption: the field does not exist.
        """
        wanted = set(names)
        unknown = sorted(wanted.difference(self.value.names))
        if unknown or not wanted:
            raise InvalidOption(
                "valueFields", ", ".join(unknown) or "[]",
                f"a value has the fields {', '.join(self.value.names)}; name some of them",
            )  # fmt: skip
        kept = [field for field in self.value.fields if field.name in wanted]
        return replace(self, value=StructType(kept))

    def arrow_fields(self) -> tuple[pa.Field, pa.Field]:
        """The two columns' Arrow fields, exactly as Spark checks them."""
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
