r"""Output formats of records: kcat's format strings, and kcat's JSON objects.

    %t topic   %p partition   %o offset   %k key   %s value   %h headers   %T timestamp (ms)
    %K key bytes   %S value bytes   %% percent   \n \r \t \0 \xNN escapes

A format is compiled once into literals and fields. A batch is printed by joining whole columns.
Only texts in JSON are converted one by one, because they have to be quoted.

Source: kcat's `format.c`, `json.c` and its manual page.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from json.encoder import encode_basestring as _quoted
from typing import TYPE_CHECKING, Any, Final, Literal

import click

from penstock.base.settings import whole_number
from penstock.records.extents import READ_UNCOMMITTED

if TYPE_CHECKING:
    from penstock.client import Client


DEFAULT_FORMAT: Final = "%s\\n"
_LETTERS: Final = "tpoksKShT"
_ESCAPE = re.compile(r"\\(n|r|t|0|\\|x[0-9a-fA-F]{2})")
_ESCAPES: Final = {"n": b"\n", "r": b"\r", "t": b"\t", "0": b"\0", "\\": b"\\"}
_COLUMNS: Final = {
    "t": (),
    "p": ("partition",),
    "o": ("offset",),
    "k": ("key",),
    "K": ("key",),
    "s": ("value",),
    "S": ("value",),
    "h": ("headers",),
    "T": ("timestamp",),
}


@dataclass(frozen=True, slots=True)
class Format:
    """Compiled format: literal bytes, and the letters of fields."""

    parts: tuple[bytes | str, ...]

    @property
    def columns(self) -> tuple[str, ...]:
        """Columns of a batch that the format needs."""
        names = {name for part in self.parts if isinstance(part, str) for name in _COLUMNS[part]}
        return tuple(sorted(names)) or ("offset",)


def parse_format(text: str) -> Format:
    """Compile a format string.

    Raises:
        click.UsageError: it has an unknown letter, or ends with a percent sign.
    """
    parts: list[bytes | str] = []
    for index, piece in enumerate(re.split(r"(%.|%$)", text, flags=re.DOTALL)):
        if index % 2 == 0:
            if piece:
                parts.append(_unescape(piece))
        elif piece == "%%":
            parts.append(b"%")
        elif len(piece) == 2 and piece[1] in _LETTERS:
            parts.append(piece[1])
        else:
            raise click.UsageError(
                f"format {text!r}: unknown field {piece!r}; a percent sign must be followed by one"
                f" of {_LETTERS}"
            )
    return Format(tuple(parts))


def _unescape(text: str) -> bytes:
    pieces: list[bytes] = []
    for index, piece in enumerate(_ESCAPE.split(text)):
        if index % 2 == 0:
            pieces.append(os.fsencode(piece))
        elif piece[0] == "x":
            pieces.append(bytes([int(piece[1:], 16)]))
        else:
            pieces.append(_ESCAPES[piece])
    return b"".join(pieces)


def render(batch: Any, layout: Format, topic: str) -> memoryview:
    """Return the records of a batch in a format."""
    fields = [
        part if isinstance(part, bytes) else _FIELDS[part](batch, topic) for part in layout.parts
    ]
    return _joined(batch.num_rows, fields)


def _joined(rows: int, fields: Sequence[Any]) -> memoryview:
    """Return the formatted bytes of all records: their fields, one after the other.

    `fields` are columns with a value for each of `rows` records, or constant bytes.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    kind = pa.large_binary()
    columns = [
        pa.scalar(field, kind) if isinstance(field, bytes) else field.cast(kind) for field in fields
    ]
    # If all fields are constants, this column of empty values determines the number of rows.
    columns.append(pa.array([b""], kind).take(pa.repeat(0, rows)))
    joined = pc.binary_join_element_wise(
        *columns, pa.scalar(b"", kind), null_handling="replace", null_replacement=""
    )
    _, offsets, content = joined.buffers()
    bounds = memoryview(offsets).cast("q")
    first, last = bounds[joined.offset], bounds[joined.offset + len(joined)]
    return memoryview(content or b"").cast("B")[first:last]


def _numbers(name: str) -> Callable[[Any, str], Any]:
    return lambda batch, topic: _decimal(batch.column(name))


def _decimal(numbers: Any) -> Any:
    import pyarrow as pa

    return numbers.cast(pa.string()).cast(pa.binary())


def _sizes(name: str) -> Callable[[Any, str], Any]:
    def read(batch: Any, topic: str) -> Any:
        import pyarrow.compute as pc

        return _decimal(pc.binary_length(batch.column(name)).fill_null(-1))

    return read


def _headers(batch: Any, topic: str) -> Any:
    lists = batch.column("headers")
    keys, values = lists.flatten().flatten()
    return _pairs(lists, keys, b"=", values.fill_null(b"NULL"))


def _pairs(lists: Any, keys: Any, between: bytes, values: Any) -> Any:
    """Return the headers of each record as text: pairs of key and value, joined by commas."""
    import pyarrow as pa
    import pyarrow.compute as pc

    kind = pa.binary()
    pairs = pc.binary_join_element_wise(keys.cast(kind), values.cast(kind), between)
    sizes = pc.list_value_length(lists).fill_null(0).to_numpy()
    bounds = pa.array([0, *sizes.cumsum().tolist()], pa.int32())
    return pc.binary_join(pa.ListArray.from_arrays(bounds, pairs), b",")


_FIELDS: Final[dict[str, Callable[[Any, str], Any]]] = {
    "t": lambda batch, topic: topic.encode(),
    "p": _numbers("partition"),
    "o": _numbers("offset"),
    "T": _numbers("timestamp"),
    "k": lambda batch, topic: batch.column("key"),
    "s": lambda batch, topic: batch.column("value"),
    "K": _sizes("key"),
    "S": _sizes("value"),
    "h": _headers,
}

JSON_COLUMNS: Final = (
    "partition",
    "offset",
    "timestamp",
    "timestamp_type",
    "key",
    "value",
    "headers",
)
_TIMESTAMP_TYPES: Final = {0: "create", 1: "logappend"}


def render_json(
    batch: Any, topic: str, leaders: Mapping[int, int], written: Collection[str] = ()
) -> memoryview:
    """Return each record as a JSON object on one line, in kcat's form.

    `broker` is the leader of the record's partition. Bytes that are not UTF-8 become U+FFFD. The
    columns `written` have JSON already.
    """
    key, value = (
        batch.column(name) if name in written else _json_texts(batch.column(name))
        for name in ("key", "value")
    )
    partitions = batch.column("partition")
    fields = [
        f'{{"topic":{_quoted(topic)},"partition":'.encode(),
        _decimal(partitions),
        b',"offset":',
        _decimal(batch.column("offset")),
        b',"tstype":"',
        _named(batch.column("timestamp_type"), lambda kind: _TIMESTAMP_TYPES.get(kind, "unknown")),
        b'","ts":',
        _decimal(batch.column("timestamp")),
        b',"broker":',
        _named(partitions, lambda partition: str(leaders.get(partition, -1))),
        _json_headers(batch.column("headers")),
        b',"key":',
        key,
        b',"payload":',
        value,
        b"}\n",
    ]
    return _joined(batch.num_rows, fields)


def _named(numbers: Any, name: Callable[[int], str]) -> Any:
    import pyarrow as pa

    encoded = numbers.dictionary_encode()
    names = pa.array([name(number) for number in encoded.dictionary.to_pylist()], pa.binary())
    return names.take(encoded.indices)


def _json_texts(column: Any) -> Any:
    """Return keys or values as JSON strings, or null."""
    import pyarrow as pa
    import pyarrow.compute as pc

    quoted = pa.array(map(_quoted, _texts(column.fill_null(b""))), pa.large_string())
    texts = quoted.cast(pa.large_binary())
    return pc.if_else(column.is_valid(), texts, b"null") if column.null_count else texts


def _texts(column: Any) -> list[str]:
    import pyarrow as pa

    try:
        texts: list[str] = column.cast(pa.string()).to_pylist()
    except pa.ArrowInvalid:  # some of it is no UTF-8
        return [value.decode("utf-8", "replace") for value in column.to_pylist()]
    return texts


def _json_headers(lists: Any) -> Any:
    """Return the JSON member `headers`, which has keys and values in turn; empty without
    headers.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    keys, values = lists.flatten().flatten()
    words = _pairs(lists, _json_texts(keys.cast(pa.binary())), b",", _json_texts(values))
    member = pc.binary_join_element_wise(b',"headers":[', words, b"]", b"")
    return pc.if_else(pc.equal(pc.binary_length(words), 0), b"", member)


# Positions in a log, as kcat writes them.
#
# beginning, earliest    the first record
# end, latest            behind the last record
# 1234                   an offset
# -10                    ten offsets before the end
# s@ms, @ms              the first record at or after a timestamp
# e@ms                   the same, as the end of a range


Kind = Literal["beginning", "end", "offset", "before_end", "time", "end_time"]


@dataclass(frozen=True, slots=True)
class At:
    """Position in a partition, as option `-o` gives it.

    By its kind, `value` is an offset, a number of offsets before the end, or a timestamp in ms.
    """

    kind: Kind
    value: int = 0


_WORDS: dict[str, At] = {
    "beginning": At("beginning"),
    "earliest": At("beginning"),
    "end": At("end"),
    "latest": At("end"),
}
_KINDS: dict[str, Kind] = {
    "": "offset", "-": "before_end", "@": "time", "s@": "time", "e@": "end_time",
}  # fmt: skip
_FORM = re.compile(r"(|-|[se]?@)([0-9]+)")


def parse_position(text: str) -> At:
    """Parse a position of option `-o`: `beginning`, `end`, N, `-N`, `s@MS` or `e@MS`.

    Raises:
        click.UsageError: the text is not a position.
    """
    if text in _WORDS:
        return _WORDS[text]
    found = _FORM.fullmatch(text)
    number = whole_number(found[2]) if found else None
    if found and number is not None:
        return At(_KINDS[found[1]], number)
    raise click.UsageError(
        f"offset {text!r}: must be beginning, end, a number, -N, s@milliseconds or e@milliseconds"
    )


def resolve(
    client: Client,
    topic: str,
    position: At,
    partitions: Sequence[int] | None,
    isolation: int = READ_UNCOMMITTED,
) -> dict[int, int]:
    """Return the offset of a position in each partition.

    With the isolation level READ_COMMITTED, the end of a log is before its open transactions.
    """
    latest = client.list_offsets(topic, "latest", partitions=partitions, isolation=isolation)
    if position.kind == "end":
        return latest
    if position.kind in ("time", "end_time"):
        found = client.list_offsets(
            topic, position.value, partitions=partitions, isolation=isolation
        )
        return {p: latest[p] if offset < 0 else offset for p, offset in found.items()}
    earliest = client.list_offsets(topic, "earliest", partitions=partitions)
    if position.kind == "beginning":
        return earliest
    if position.kind == "before_end":
        return {p: max(earliest[p], latest[p] - position.value) for p in latest}
    return dict.fromkeys(latest, position.value)
