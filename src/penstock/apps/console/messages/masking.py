"""Masking of records by rules: whole columns, before anything is filtered, shown or exported.

A key or value becomes JSON with masked fields, or a masked text if a rule names it as a whole. It
does not depend on the formats that a request chooses. A key or value that cannot be decoded as a
JSON object or array is replaced as a whole, because its fields cannot be found.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.apps.console.messages.columns import NUMBER, as_texts, json_texts, unquoted
from penstock.apps.console.messages.expressions import SIDES
from penstock.apps.console.messages.spans import SPACES, Documents, Spans, outermost
from penstock.formats.json.writing import json_rows
from penstock.security.data.columns import mask_column
from penstock.security.data.masks import FIXED

if TYPE_CHECKING:
    from penstock.apps.console.messages.decoding import Decoder
    from penstock.apps.console.messages.rules import Rule

_DAMAGED: Final = "\ufffd"
"""Character in place of bytes that are not UTF-8."""


class RecordMasks:
    """Masks of a topic's records for one caller; for one thread at a time."""

    def __init__(self, rules: Sequence[Rule], decoders: Mapping[str, Decoder | None]) -> None:
        """`decoders` has the decoder of each part with masked fields; None if it has no format."""
        self._rules = rules
        self._decoders = decoders
        self.sides = sides_of(rules)

    def applied(self, batch: Any) -> Any:
        """Return records with masked columns. Blocks; call it in a thread.

        Raises:
            PenstockError: the registry does not answer.
        """
        headers = batch.column("headers")
        columns = {side: self._side(side, batch.column(side), headers) for side in self.sides}
        columns["headers"] = self._headers(headers)
        for name, column in columns.items():
            batch = batch.set_column(batch.schema.get_field_index(name), name, column)
        return batch

    def _side(self, side: str, values: Any, headers: Any) -> Any:
        for rule in self._rules:
            if any(not path.steps for path in rule.paths(side)):
                return _masked(values, rule)
        decoder = self._decoders[side]
        hidden = pc.if_else(values.is_valid(), FIXED.encode(), pa.scalar(None, pa.binary()))
        if decoder is None:
            return hidden
        texts = json_texts(decoder.objects(side, values, headers))
        return pc.if_else(texts.is_valid(), self._fields(side, Documents(texts)), hidden)

    def _fields(self, side: str, documents: Documents) -> Any:
        """Return documents with masked fields, as bytes."""
        found, replaced = [], []
        for rule in self._rules:
            for path in rule.paths(side):
                found.append(documents.find([str(step) for step in path.steps]))
                replaced.append(_masked_json(documents.texts(found[-1]), rule))
        spans = Spans(*(np.concatenate(parts) for parts in zip(*found, strict=True)))
        chosen = outermost(spans)
        texts = pa.concat_arrays(replaced).take(pa.array(chosen))
        return documents.replaced(Spans(spans.starts[chosen], spans.ends[chosen]), texts)

    def _headers(self, headers: Any) -> Any:
        names, values = headers.values.flatten()
        masked = values
        for rule in reversed(self._rules):
            for path in rule.paths("headers"):
                chosen = pc.equal(names, str(path.steps[0])).fill_null(False)
                masked = pc.if_else(chosen, _masked(values, rule), masked)
        if masked is values:
            return headers
        item = headers.type.value_type
        entries = pa.StructArray.from_arrays([names, masked], fields=list(item))
        return pa.Array.from_buffers(
            headers.type,
            len(headers),
            headers.buffers()[:2],
            headers.null_count,
            headers.offset,
            children=[entries],
        )


def sides_of(rules: Sequence[Rule]) -> tuple[str, ...]:
    """Return the parts with masked fields, of key and value."""
    return tuple(side for side in SIDES if any(rule.paths(side) for rule in rules))


def _masked(values: Any, rule: Rule) -> Any:
    """Return whole keys, values or headers with the mask of a rule, as bytes."""
    texts = as_texts(values)
    damaged = pc.match_substring(texts, _DAMAGED).fill_null(False)
    return pc.if_else(damaged, FIXED, _mask(texts, rule)).cast(pa.binary())


def _masked_json(texts: Any, rule: Rule) -> Any:
    """Return JSON texts with the mask of a rule. Objects, arrays and constants are hidden."""
    texts = pc.utf8_trim(texts.cast(pa.string()), SPACES)
    is_number = pc.match_substring_regex(texts, NUMBER)
    shown = pc.coalesce(unquoted(texts), pc.if_else(is_number, texts, pa.scalar(None, pa.string())))
    masked = _mask(shown, rule).fill_null(FIXED)
    rows = json_rows(pa.StructArray.from_arrays([masked], ["_"]))
    quoted = pc.utf8_slice_codeunits(rows, len('{"_":'), -1)
    if rule.mask is None:
        return quoted
    return pc.if_else(pc.equal(texts, "null"), "null", quoted)


def _mask(texts: Any, rule: Rule) -> Any:
    if rule.mask is None:
        return pa.array([FIXED] * len(texts), pa.string())
    return mask_column(texts, rule.mask)
