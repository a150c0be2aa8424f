"""Value formats: from the bytes of a record's value to columns.

`decoder(value_format)` loads and checks what a format names, and the decoder it gives adds two
columns to a frame: `_value`, a struct of the value's fields, and `_error`, which says what is
wrong with a value that could not be decoded. No value ever fails the query.

Names are imported on first use: workers import this package for its pure decoders.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any, Final

from penstock.spark.formats.errors import InvalidFormat
from penstock.spark.formats.value_format import ValueFormat

if TYPE_CHECKING:
    from penstock.spark.formats.decoders import Decoder, decoder
    from penstock.spark.formats.json.infer import infer_json

__all__ = ["Decoder", "InvalidFormat", "ValueFormat", "decoder", "infer_json"]

_HOMES: Final = {"Decoder": "decoders", "decoder": "decoders", "infer_json": "json.infer"}


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{home}"), name)
