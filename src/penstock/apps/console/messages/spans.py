"""Positions of fields in JSON texts, found by columns, and replacement of the texts there.

All documents are read together. Tokens are the brackets, commas and colons outside of strings,
ordered by depth and then by position. So the tokens of an object or array follow one another, and a
value is between a token and the next one:

    {"a": 1, "b": [2, 3]}      depth 1   {  :  ,  :  }        depth 2   [  ,  ]

Documents are valid: `columns.json_texts` has read them. A name that occurs more than once in an
object is found at each place.

Source: Langdale and Lemire, "Parsing Gigabytes of JSON per Second" (2019), section 3.1.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from penstock.apps.console.messages.columns import unquoted

Longs: TypeAlias = npt.NDArray[np.int64]
Flags: TypeAlias = npt.NDArray[np.bool_]

SPACES: Final = " \t\r\n"
"""Characters around the tokens of JSON."""
_QUOTE: Final = ord('"')
_BACKSLASH: Final = ord("\\")
_OBJECT, _ARRAY, _CLOSE, _COMMA, _COLON = range(1, 6)
_KINDS: Final = np.zeros(256, np.uint8)
_KINDS[list(b"{[}],:")] = (_OBJECT, _ARRAY, _CLOSE, _CLOSE, _COMMA, _COLON)
_CHANGES: Final = np.array([0, 1, 1, -1, 0, 0], np.int64)
"""Change of the depth by each kind of token."""


class Spans(NamedTuple):
    """Positions of values in the bytes of all documents, with the space around them."""

    starts: Longs
    ends: Longs


class _Level(NamedTuple):
    """Tokens of one depth, by position; `owners` are the indexes of their opening brackets."""

    kinds: npt.NDArray[np.uint8]
    places: Longs
    owners: Longs


class Documents:
    """JSON objects and arrays, given as a column of texts; empty where it is null."""

    def __init__(self, texts: Any) -> None:
        filled = pc.fill_null(texts.cast(pa.binary()), b"")
        _, offsets, data = filled.buffers()
        bounds = np.frombuffer(offsets, np.int32)[filled.offset : filled.offset + len(filled) + 1]
        whole = np.frombuffer(data or b"", np.uint8)
        self._data = whole[bounds[0] : bounds[-1]]
        self._bounds = bounds.astype(np.int64) - bounds[0]
        quotes = self._data == _QUOTE
        slashes = self._data == _BACKSLASH
        self._has_escapes = bool(slashes.any())
        if self._has_escapes:
            quotes &= ~_escaped(slashes)
        inside = np.cumsum(quotes.view(np.uint8), dtype=np.uint8) & 1
        self._names_begin = np.flatnonzero(quotes & (inside == 1))
        self._names_end = np.flatnonzero(quotes & (inside == 0))
        self._levels = list(_levels(_KINDS[self._data] * (inside == 0)))

    def find(self, names: Sequence[str]) -> Spans:
        """Return the values to which names lead, in ascending order.

        Arrays on the way are entered. A value on the way that is neither an object nor an array is
        returned too, because it may have the fields in a form that cannot be entered.
        """
        starts, ends = [], []
        entered = np.zeros(len(self._levels[0].places) if self._levels else 0, np.int64)
        for level, below in zip(self._levels, [*self._levels[1:], None], strict=False):
            # `entered` has the number of names that lead to each object or array; -1 for others.
            # `following` has the number that leads to each value.
            steps = entered[level.owners]
            in_object = level.kinds[level.owners] == _OBJECT
            items = ~in_object & (level.kinds != _CLOSE)
            following = np.where(items, steps, -1)
            for step, name in enumerate(names):
                members = np.flatnonzero((level.kinds == _COLON) & in_object & (steps == step))
                following[members[self._named(level.places[members], name)]] = step + 1
            ending = following >= 0
            if below is not None:
                opens = (below.kinds == _OBJECT) | (below.kinds == _ARRAY)
                outer = np.searchsorted(level.places, below.places) - 1
                entered = np.where(opens & (following[outer] < len(names)), following[outer], -1)
                ending[outer[entered >= 0]] = False
            found = np.flatnonzero(ending)
            starts.append(level.places[found] + 1)
            ends.append(level.places[found + 1])
            if below is None or not (entered >= 0).any():
                break
        return self._filled(starts, ends)

    def _filled(self, starts: Sequence[Longs], ends: Sequence[Longs]) -> Spans:
        """Return spans in ascending order, without that of an empty array."""
        none = np.zeros(0, np.int64)
        spans = Spans(np.concatenate([none, *starts]), np.concatenate([none, *ends]))
        order = np.argsort(spans.starts)
        spans = Spans(spans.starts[order], spans.ends[order])
        texts = pc.utf8_trim(self.texts(spans).cast(pa.string()), SPACES)
        full = pc.not_equal(texts, "").to_numpy(zero_copy_only=False)
        return Spans(spans.starts[full], spans.ends[full])

    def _named(self, colons: Longs, name: str) -> Flags:
        """Return whether the name before each colon is this one."""
        which = np.searchsorted(self._names_end, colons) - 1
        quoted = Spans(self._names_begin[which], self._names_end[which] + 1)
        sizes, least = quoted.ends - quoted.starts, len(name.encode()) + 2
        likely = sizes >= least if self._has_escapes else sizes == least
        texts = self.texts(Spans(quoted.starts[likely], quoted.ends[likely])).cast(pa.string())
        likely[likely] = pc.equal(unquoted(texts), name).fill_null(False)
        return likely

    def texts(self, spans: Spans) -> Any:
        """Return the texts at positions that ascend and do not overlap."""
        return _pieces(self._data, spans).take(pa.array(np.arange(len(spans.starts)) * 2 + 1))

    def replaced(self, spans: Spans, texts: Any) -> Any:
        """Return the documents with other texts at these positions, as bytes."""
        pieces = _pieces(self._data, spans)
        count = len(spans.starts)
        order = np.arange(2 * count + 1)
        order[1::2] = len(order) + np.arange(count)
        made = pa.concat_arrays([pieces, texts.cast(pa.binary())]).take(pa.array(order))
        data = made.buffers()[2]
        sizes = pc.binary_length(texts).to_numpy(zero_copy_only=False)
        grown = np.concatenate(([0], np.cumsum(sizes - (spans.ends - spans.starts))))
        bounds = self._bounds + grown[np.searchsorted(spans.ends, self._bounds, "right")]
        buffers = [None, pa.py_buffer(bounds.astype(np.int32)), data or pa.py_buffer(b"")]
        return pa.Array.from_buffers(pa.binary(), len(bounds) - 1, buffers, 0)


def outermost(spans: Spans) -> Longs:
    """Return the indexes of spans in ascending order, without those inside of others.

    Of equal spans, the first is returned.
    """
    order = np.lexsort((-spans.ends, spans.starts))
    if not order.size:
        return order
    reach = np.maximum.accumulate(spans.ends[order])
    free = np.concatenate(([True], spans.starts[order][1:] >= reach[:-1]))
    return order[free]


def _pieces(data: npt.NDArray[np.uint8], spans: Spans) -> Any:
    """Return the bytes before, at, between and after spans, in turns."""
    offsets = np.zeros(2 * len(spans.starts) + 2, np.int32)
    offsets[1:-1:2], offsets[2:-1:2] = spans.starts, spans.ends
    offsets[-1] = len(data)
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(np.ascontiguousarray(data))]
    return pa.Array.from_buffers(pa.binary(), len(offsets) - 1, buffers, 0)


def _escaped(slashes: Flags) -> Flags:
    """Return whether an odd number of backslashes is before each byte."""
    flags = np.zeros(len(slashes), np.bool_)
    places = np.arange(len(slashes))
    others = np.maximum.accumulate(np.where(slashes, -1, places))
    flags[1:] = (places - others)[:-1] & 1
    return flags


def _levels(kinds: npt.NDArray[np.uint8]) -> list[_Level]:
    """Return the tokens of each depth; `kinds` has the kind of each byte."""
    places = np.flatnonzero(kinds != 0)
    kinds = kinds[places]
    depths = np.cumsum(_CHANGES[kinds]) + (kinds == _CLOSE)
    order = np.argsort(depths, kind="stable")
    deepest = int(depths[order[-1]]) if order.size else 0
    cuts = np.searchsorted(depths[order], np.arange(2, deepest + 1))
    levels = []
    for part in np.split(order, cuts) if order.size else ():
        opens = (kinds[part] == _OBJECT) | (kinds[part] == _ARRAY)
        owners = np.maximum.accumulate(np.where(opens, np.arange(part.size), 0))
        levels.append(_Level(kinds[part], places[part], owners))
    return levels
