r"""Repair of strings that are not valid UTF-8, before they are written to a table.

Spark keeps the bytes of `cast(key as string)` unchanged and writes them into Parquet files, which
other readers then cannot open. Invalid bytes are therefore replaced by U+FFFD, as by Spark's
`make_valid_utf8`. Two different keys must stay different, so an invalid key becomes `\x` and its
bytes in hexadecimal, as PostgreSQL writes bytes.
"""

from __future__ import annotations

from collections.abc import Collection

from pyspark.sql import DataFrame
from pyspark.sql.types import ArrayType, DataType, MapType, StringType, StructType

from penstock.spark.schema import quoted


def valid_text(batch: DataFrame, keys: Collection[str] = ()) -> DataFrame:
    """Return the batch with valid UTF-8 in all strings, at any depth; valid strings do not change.

    Args:
        batch: batch to repair.
        keys: columns in which different strings must stay different, including nested strings.
    """
    columns: list[str] = []
    for field in batch.schema:
        name = quoted(field.name)
        mended = _mended(field.dataType, name, key=field.name in keys)
        columns.append(name if mended is None else f"{mended} as {name}")
    if columns == [quoted(name) for name in batch.columns]:
        return batch
    return batch.selectExpr(*columns)


def _mended(kind: DataType, value: str, *, key: bool, depth: int = 0) -> str | None:
    """Return the SQL expression that repairs a value's strings; None for a type without strings."""
    item = f"_item{depth}"
    inner = depth + 1
    if isinstance(kind, StringType):
        if not key:
            return f"make_valid_utf8({value})"
        shown = f"concat('\\\\x', hex(cast({value} as binary)))"
        return f"if(is_valid_utf8({value}), {value}, {shown})"
    if isinstance(kind, ArrayType):
        element = _mended(kind.elementType, item, key=key, depth=inner)
        return element and f"transform({value}, {item} -> {element})"
    if isinstance(kind, MapType):
        name = _mended(kind.keyType, item, key=True, depth=inner)
        held = _mended(kind.valueType, f"{item}_value", key=key, depth=inner)
        both = f"({item}, {item}_value)"
        mended = f"transform_keys({value}, {both} -> {name})" if name else value
        return f"transform_values({mended}, {both} -> {held})" if held else name and mended
    if isinstance(kind, StructType):
        parts = [
            (
                field.name,
                _mended(field.dataType, f"{value}.{quoted(field.name)}", key=key, depth=depth),
            )
            for field in kind
        ]
        if not any(part for _, part in parts):
            return None
        fields = ", ".join(
            f"{part or f'{value}.{quoted(name)}'} as {quoted(name)}" for name, part in parts
        )
        return f"if({value} is null, null, struct({fields}))"
    return None
