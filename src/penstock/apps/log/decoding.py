"""Decoded keys and values for `penstock consume --decode`.

A value that cannot be decoded is shown with the reason and its bytes in base64:

    !{"error": "schema id 9 is not in the schema registry …", "base64": "AAAAAAk="}

In the form of JSON lines, `payload` (or `key`) is null, and `payload_error` and `payload_base64`
follow it.
"""

from __future__ import annotations

import base64
import json
from typing import TYPE_CHECKING, Any, Final

from penstock.client.value_texts import ValueTexts
from penstock.formats.framing import KEY_HEADER, VALUE_HEADER

if TYPE_CHECKING:
    from penstock.client.schemas import SchemaClient

_NAMES: Final = {"key": "key", "value": "payload"}
"""Names of columns in the form of JSON lines."""


class Decoder:
    """Decoder of the columns that a command shows.

    Args:
        key: whether keys are decoded too.
        as_json: whether records are shown as JSON lines.
    """

    def __init__(self, client: SchemaClient, *, key: bool, as_json: bool) -> None:
        self._as_json = as_json
        self._columns = {"value": ValueTexts(client, VALUE_HEADER)}
        if key:
            self._columns["key"] = ValueTexts(client, KEY_HEADER)

    @property
    def columns(self) -> frozenset[str]:
        return frozenset(self._columns)

    def decoded(self, batch: Any) -> Any:
        """Return a batch with JSON texts in the decoded columns.

        Raises:
            AdminUnavailable: the registry does not answer.
            RegistryRefused: the registry rejects the request.
        """
        for name, texts in self._columns.items():
            place = batch.schema.get_field_index(name)
            if place >= 0:
                shown = self._shown(name, batch.column(place), batch.column("headers"), texts)
                batch = batch.set_column(place, name, shown)
        return batch

    def _shown(self, name: str, column: Any, headers: Any, texts: ValueTexts) -> Any:
        import pyarrow as pa

        found, errors = texts.read(column, headers)
        shown = found.to_pylist()
        if errors.null_count < len(errors):
            for row, error in enumerate(errors.to_pylist()):
                if error is not None:
                    shown[row] = self._problem(name, error, column[row].as_py())
        if self._as_json:
            shown = ["null" if text is None else text for text in shown]
        encoded = [None if text is None else text.encode() for text in shown]
        return pa.array(encoded, pa.binary())

    def _problem(self, name: str, error: str, content: bytes) -> str:
        text, octets = json.dumps(error, ensure_ascii=False), base64.b64encode(content).decode()
        if not self._as_json:
            return f'!{{"error": {text}, "base64": "{octets}"}}'
        shown = _NAMES[name]
        return f'null,"{shown}_error":{text},"{shown}_base64":"{octets}"'
