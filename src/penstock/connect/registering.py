"""Converters of a connector's keys and values, by the options of its file."""

from __future__ import annotations

from penstock.connect.connector_file import ValueOptions
from penstock.connect.converting import Converter, JsonConverter


def converters(options: ValueOptions) -> tuple[Converter, Converter]:
    """Return the converters of keys and of values."""
    return JsonConverter(), JsonConverter()
