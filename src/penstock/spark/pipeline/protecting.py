"""Protected columns of views: masked, tokenised and encrypted ones, and those that are decrypted.

Masks are expressions of Spark's own SQL. Tokens and encryption need keys, and keys stay out of
Spark's plans, logs and pages: they are computed in Python workers, by Arrow's columns, from
functions that know where the keyring is and nothing more. A worker opens the ring for itself, once.

A source's columns are decrypted before its rules judge them; what does not decrypt counts as a
value that cannot be read. All else is protected behind a view's rules, which see clear values.

Why Spark's own `aes_encrypt` is not used: decision 0051.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, cast

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.pandas.functions import arrow_udf
from pyspark.sql.types import (
    BinaryType,
    ByteType,
    DataType,
    IntegerType,
    LongType,
    ShortType,
    StringType,
    StructField,
    StructType,
)

from penstock.security.data.columns import decrypt_column, encrypt_column, tokenize_column
from penstock.security.data.key_location import KeyPlace, ring_at
from penstock.security.data.tokens import TokenForm
from penstock.spark.pipeline.spec import ERROR, Protection, Source, Step
from penstock.spark.schema import quoted

_WHOLE: Final = (ByteType, ShortType, IntegerType, LongType)
TYPES: Final[dict[str, tuple[type[DataType], ...]]] = {
    "mask": (StringType,),
    "tokenize": (StringType, BinaryType, *_WHOLE),
    "encrypt": (StringType, BinaryType),
    "decrypt": (BinaryType,),
}
"""The types of columns that can be protected so."""
SUBJECT_TYPES: Final = (StringType, BinaryType, *_WHOLE)


SHREDDED: Final = "_penstock_shredded"
"""How many values of a row are null because their subject's key is gone."""


def decrypted(frame: DataFrame, source: Source, keys: KeyPlace | None) -> DataFrame:
    """Opened values with their encrypted columns decrypted, and `_error` where one is not.

    Where there are such columns, there is `SHREDDED` too.
    """
    chosen = {one.column: one for one in source.protections if one.by == "decrypt"}
    if not chosen:
        return frame
    places = {column: f"_penstock_decrypted_{number}" for number, column in enumerate(chosen)}
    opened = frame.withColumns(
        {
            places[column]: _decrypting(_given(keys), text=one.gives == "text")(
                F.col(quoted(column)), _subject(one)
            )
            for column, one in chosen.items()
        }
    )
    reasons = [
        F.concat(F.lit(f"{column}: "), F.col(place)["error"]) for column, place in places.items()
    ]
    found = {column: F.col(place)["value"] for column, place in places.items()}
    found[ERROR] = F.coalesce(ERROR, *reasons)
    gone = [
        f"int({quoted(column)} is not null and {place}.value is null and {place}.error is null)"
        for column, place in places.items()
    ]
    return opened.select(
        *(found.get(name, F.col(quoted(name))).alias(name) for name in frame.columns),
        F.expr(" + ".join(gone)).alias(SHREDDED),
    )


def protected(frame: DataFrame, part: Source | Step, keys: KeyPlace | None) -> DataFrame:
    """A view's rows with their columns masked, tokenised and encrypted, all from clear ones."""
    made = {one.column: _column(one, keys) for one in part.protections if one.by != "decrypt"}
    return frame.withColumns(made) if made else frame


def _column(one: Protection, keys: KeyPlace | None) -> Any:
    column = quoted(one.column)
    if one.by == "mask":
        return F.expr(one.mask.in_sql(column))
    if one.by == "tokenize":
        return _tokenizing(_given(keys), one.field or one.column, one.token_form)(F.col(column))
    return _encrypting(_given(keys))(F.col(column), _subject(one))


def _subject(one: Protection) -> Any:
    return F.expr(f"cast(({one.subject}\n) as string)")  # it may end with a comment


def _given(keys: KeyPlace | None) -> KeyPlace:
    # Without one the file is refused; its other steps are looked at all the same.
    return KeyPlace(ring=Path()) if keys is None else keys


def _udf(function: Callable[..., Any], gives: DataType) -> Any:
    return cast("Any", arrow_udf)(function, gives)  # its stubs want the type that hints give


def _tokenizing(keys: KeyPlace, field: str, form: TokenForm) -> Any:
    def penstock_tokenize(values: pa.Array) -> pa.Array:
        return tokenize_column(values, ring_at(keys), field, form)

    return _udf(penstock_tokenize, StringType())


def _encrypting(keys: KeyPlace) -> Any:
    def penstock_encrypt(values: pa.Array, subjects: pa.Array) -> pa.Array:
        return encrypt_column(values, subjects, ring_at(keys))

    return _udf(penstock_encrypt, BinaryType())


def _decrypting(keys: KeyPlace, *, text: bool) -> Any:
    def penstock_decrypt(values: pa.Array, subjects: pa.Array) -> pa.Array:
        found, reasons = decrypt_column(values, subjects, ring_at(keys))
        if text:
            found = _as_text(found, reasons)
        errors = pa.array([reasons.get(at) for at in range(len(found))], pa.string())
        return pa.StructArray.from_arrays([found, errors], names=["value", "error"])

    fields = [
        StructField("value", StringType() if text else BinaryType()),
        StructField("error", StringType()),
    ]
    return _udf(penstock_decrypt, StructType(fields))


def _as_text(column: Any, reasons: dict[int, str]) -> Any:
    """A column of bytes as text; a reason for each value that is none."""
    try:
        return column.cast(pa.string())
    except pa.ArrowInvalid:
        values = column.to_pylist()
    for at, value in enumerate(values):
        try:
            values[at] = None if value is None else value.decode()
        except UnicodeDecodeError:
            values[at], reasons[at] = None, 'it is not UTF-8: say gives = "bytes"'
    return pa.array(values, pa.string())
