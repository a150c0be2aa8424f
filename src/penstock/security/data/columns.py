"""Protection of whole columns: functions from Arrow arrays to Arrow arrays; nulls stay null.

Masks and tokens are computed once for each distinct value, and keys are looked up once for each
distinct subject. Encryption is separate for every value, because equal ciphertexts would reveal
equal values.
"""

from __future__ import annotations

from typing import Any, ClassVar, Final

import pyarrow as pa
import pyarrow.compute as pc

from penstock.base.errors import InvalidError
from penstock.base.system import SYSTEM_RANDOMNESS, Randomness
from penstock.records.columnar.inputs import plain
from penstock.security.data.key_ring import KeyRing, SubjectKey
from penstock.security.data.masks import DEFAULT_FORM, PATTERNS, STAR, Mask, TokenForm, tokens
from penstock.security.data.sealing import seal, unseal_all

_TEXT: Final = frozenset({pa.string(), pa.large_string(), pa.string_view()})
_BYTES: Final = frozenset({pa.binary(), pa.large_binary(), pa.binary_view()})
_ROWS_MAX: Final = 65_536
"""Rows that are encrypted at a time, to limit the additional memory."""


class UnfitColumn(InvalidError):
    """Column whose type does not support the requested protection."""

    code: ClassVar[str] = "invalid_record"


def mask_column(column: Any, mask: Mask) -> Any:
    """Return a text column with masked values.

    Raises:
        UnfitColumn: the column is not text.
    """
    column = plain(column)
    if column.type not in _TEXT:
        raise UnfitColumn(f"a column of type {column.type} cannot be masked. Cast it to text")
    encoded = _encoded(column.cast(pa.string()))
    return pc.take(_masked(encoded.dictionary, mask), encoded.indices)


def tokenize_column(column: Any, ring: KeyRing, field: str, form: TokenForm = DEFAULT_FORM) -> Any:
    """Return a column with the tokens, as text, of texts, bytes or whole numbers.

    A text and its UTF-8 bytes have the same token, and so do a number and its decimal digits.

    Raises:
        UnfitColumn: the column has another type.
    """
    encoded = _encoded(as_bytes(column))
    found = tokens(ring, field, encoded.dictionary.to_pylist(), form)
    return pc.take(pa.array(found, pa.string()), encoded.indices)


def encrypt_column(
    column: Any, subjects: Any, ring: KeyRing, *, randomness: Randomness = SYSTEM_RANDOMNESS
) -> Any:
    """Encrypt a column of text or bytes, each value with the key of its row's subject.

    Returns:
        A column of bytes. A value is null if the subject is null or was shredded.

    Raises:
        UnfitColumn: the column is not text or bytes, or the subjects are not text, UTF-8 bytes or
            whole numbers.
    """
    if pa.types.is_integer(column.type):
        raise UnfitColumn(f"a column of type {column.type} cannot be encrypted. Cast it to text")
    values, encoded = as_bytes(column), _subjects(subjects)
    keys = ring.for_encryption(encoded.dictionary.to_pylist())
    parts = []
    for first in range(0, len(values), _ROWS_MAX):
        part = values.slice(first, _ROWS_MAX).to_pylist()
        beside = _by_row(encoded.indices.slice(first, _ROWS_MAX), keys)
        parts.append(pa.array(seal(part, beside, randomness), pa.binary()))
    return pa.concat_arrays(parts) if parts else pa.array([], pa.binary())


def decrypt_column(column: Any, subjects: Any, ring: KeyRing) -> tuple[Any, dict[int, str]]:
    """Decrypt a column with the keys of its rows' subjects.

    Returns:
        A column of bytes, and the reason for each row that could not be decrypted. A value is null
            if it was null, if its subject's key was deleted, or if it could not be decrypted.

    Raises:
        UnfitColumn: the column is not bytes, or the subjects are not text, UTF-8 bytes or whole
            numbers.
    """
    column = plain(column)
    if column.type not in _BYTES and not pa.types.is_null(column.type):
        raise UnfitColumn(
            f"a column of type {column.type} cannot be decrypted: encrypted values are bytes"
        )
    encoded = _subjects(subjects)
    keys = _by_row(encoded.indices, ring.for_decryption(encoded.dictionary.to_pylist()))
    found, reasons = unseal_all(column.cast(pa.binary()).to_pylist(), keys, ring)
    return pa.array(found, pa.binary()), reasons


def as_bytes(column: Any) -> Any:
    """Return a column of text, bytes or whole numbers (as decimal digits) as bytes.

    Raises:
        UnfitColumn: the column has another type.
    """
    column = plain(column)
    kind = column.type
    if pa.types.is_integer(kind):
        return column.cast(pa.string()).cast(pa.binary())
    if kind in _TEXT:
        return column.cast(pa.string()).cast(pa.binary())
    if kind in _BYTES or pa.types.is_null(kind) or pa.types.is_fixed_size_binary(kind):
        return column.cast(pa.binary())
    raise UnfitColumn(f"a column of type {kind} cannot be protected. Cast it to text")


def _masked(column: Any, mask: Mask) -> Any:
    if mask.kind == "keep":
        return _kept(column, mask)
    fixed = pa.array([mask.text] * len(column), pa.string())
    if mask.kind == "all":
        return fixed
    pattern, shown = PATTERNS[mask.kind]
    template = "".join(f"\\{part}" if isinstance(part, int) else part for part in shown)
    fits = pc.match_substring_regex(column, pattern)
    return pc.if_else(fits, pc.replace_substring_regex(column, pattern, template), fixed)


def _kept(column: Any, mask: Mask) -> Any:
    length = pc.utf8_length(column)
    hidden = pc.subtract(length, mask.first + mask.last)
    short = pc.less_equal(hidden, 0)
    stars = pc.binary_repeat(STAR, pc.if_else(short, length, hidden).cast(pa.int64()))
    front = pc.utf8_slice_codeunits(column, 0, mask.first)
    back = pc.utf8_slice_codeunits(column, -mask.last) if mask.last else ""
    return pc.if_else(short, stars, pc.binary_join_element_wise(front, stars, back, ""))


def _subjects(column: Any) -> Any:
    """Return the distinct subjects as text, with each row's index of its subject."""
    try:
        return _encoded(as_bytes(column).cast(pa.string()))
    except pa.ArrowInvalid:
        raise UnfitColumn("the column of subjects has bytes that are not UTF-8") from None


def _encoded(column: Any) -> Any:
    encoded = column.dictionary_encode()
    return encoded.combine_chunks() if isinstance(encoded, pa.ChunkedArray) else encoded


def _by_row(indices: Any, keys: list[SubjectKey | None]) -> list[SubjectKey | None]:
    beside = [*keys, None]  # the last item is for rows without a subject
    return [beside[at] for at in pc.fill_null(indices, len(keys)).to_pylist()]
