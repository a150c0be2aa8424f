"""Protection of columns: masks, tokens, encryption, and decryption of a source's columns.

Masks are expressions of Spark's SQL. Tokens and encryption need keys, which must not be in Spark's
plans, logs and pages. So Python workers compute them on Arrow columns, with functions that contain
only the keyring's location. A source's columns are decrypted before its rules; a value that cannot
be decrypted is undecodable. The other protections are applied after a view's rules, which read
clear values. Decision 0051 explains why Spark's `aes_encrypt` is not used.
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
from penstock.security.data.file_ring import KeyPlace, ring_at
from penstock.security.data.masks import TokenForm
from penstock.spark.pipeline.spec import ERROR, Protection, Source, Step
from penstock.spark.schema import quoted

_WHOLE: Final = (ByteType, ShortType, IntegerType, LongType)
TYPES: Final[dict[str, tuple[type[DataType], ...]]] = {
    "mask": (StringType,),
    "tokenize": (StringType, BinaryType, *_WHOLE),
    "encrypt": (StringType, BinaryType),
    "decrypt": (BinaryType,),
}
"""Column types that each protection accepts."""
SUBJECT_TYPES: Final = (StringType, BinaryType, *_WHOLE)


SHREDDED: Final = "_penstock_shredded"
"""Column with the number of a row's values whose subject's key was deleted; they are null."""


def decrypted(frame: DataFrame, source: Source, keys: KeyPlace | None) -> DataFrame:
    """Return decoded values with the source's encrypted columns decrypted.

    The column `ERROR` has the reason if a value cannot be decrypted. The column `SHREDDED` is added
    if the source decrypts any column.
    """
    chosen = {
        protection.column: protection
        for protection in source.protections
        if protection.by == "decrypt"
    }
    if not chosen:
        return frame
    decrypted = {column: f"_penstock_decrypted_{number}" for number, column in enumerate(chosen)}
    opened = frame.withColumns(
        {
            decrypted[column]: _decrypting(_given(keys), text=protection.gives == "text")(
                F.col(quoted(column)), _subject(protection)
            )
            for column, protection in chosen.items()
        }
    )
    reasons = [
        F.concat(F.lit(f"{column}: "), F.col(result)["error"])
        for column, result in decrypted.items()
    ]
    found = {column: F.col(result)["value"] for column, result in decrypted.items()}
    found[ERROR] = F.coalesce(ERROR, *reasons)
    gone = [
        f"int({quoted(column)} is not null and {result}.value is null and {result}.error is null)"
        for column, result in decrypted.items()
    ]
    return opened.select(
        *(found.get(name, F.col(quoted(name))).alias(name) for name in frame.columns),
        F.expr(" + ".join(gone)).alias(SHREDDED),
    )


def protected(frame: DataFrame, part: Source | Step, keys: KeyPlace | None) -> DataFrame:
    """Return a view's rows with masked, tokenised and encrypted columns, made from clear values."""
    made = {
        protection.column: _column(protection, keys)
        for protection in part.protections
        if protection.by != "decrypt"
    }
    return frame.withColumns(made) if made else frame


def _column(one: Protection, keys: KeyPlace | None) -> Any:
    column = quoted(one.column)
    if one.by == "mask":
        return F.expr(one.mask.in_sql(column))
    if one.by == "tokenize":
        return _tokenizing(_given(keys), one.field or one.column, one.token_form)(F.col(column))
    return _encrypting(_given(keys))(F.col(column), _subject(one))


def _subject(one: Protection) -> Any:
    return F.expr(f"cast(({one.subject}\n) as string)")  # the subject may end with a comment


def _given(keys: KeyPlace | None) -> KeyPlace:
    # A file without a keyring is rejected later; this allows the analysis of its other steps.
    return KeyPlace(ring=Path()) if keys is None else keys


def _udf(function: Callable[..., Any], gives: DataType) -> Any:
    return cast("Any", arrow_udf)(function, gives)  # its stubs require a type from annotations


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
    """Return a column of bytes as text, and a reason for each value that is not UTF-8."""
    try:
        return column.cast(pa.string())
    except pa.ArrowInvalid:
        values = column.to_pylist()
    for at, value in enumerate(values):
        try:
            values[at] = None if value is None else value.decode()
        except UnicodeDecodeError:
            values[at], reasons[at] = None, 'it is not UTF-8: set gives = "bytes"'
    return pa.array(values, pa.string())
