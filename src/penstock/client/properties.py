"""Parser of Java's properties files: `:` or a blank instead of `=`, continued lines, escapes.

Source: `java.util.Properties.load`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from penstock.security.files import UnusableFile

_BLANKS: Final = " \t\f"
_PROPERTY: Final = re.compile(
    rf"((?:[^\\=:{_BLANKS}]|\\.)*)[{_BLANKS}]*[=:]?[{_BLANKS}]*(.*)", re.DOTALL
)
_ESCAPE: Final = re.compile(r"\\(?:u([0-9A-Fa-f]{4})|(.))", re.DOTALL)
_ESCAPES: Final = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}


def parse_properties(path: str, data: bytes) -> dict[str, str]:
    """Return names and values; the last value of a repeated name.

    Args:
        path: the file's name, for messages.
        data: its bytes. Text that is not UTF-8 is Latin-1, as for Java.

    Raises:
        UnusableFile: a `\\u` is not followed by four hexadecimal digits.
    """
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError:
        text = data.decode("latin-1")
    try:
        return dict(map(_property, _logical_lines(text)))
    except ValueError:
        raise UnusableFile(
            f"{path} has a \\u without four hexadecimal digits: write \\u00fc for ü"
        ) from None


def _logical_lines(text: str) -> Iterator[str]:
    line = ""
    for part in re.split(r"\r\n|\r|\n", text):
        natural = part.lstrip(_BLANKS)
        if not line and natural[:1] in ("", "#", "!"):
            continue
        continues = (len(natural) - len(natural.rstrip("\\"))) % 2
        line += natural[: len(natural) - continues]
        if not continues:
            yield line
            line = ""
    if line:
        yield line


def _property(line: str) -> tuple[str, str]:
    """Split a line into name and value; raise ValueError for an invalid escape."""
    name, value = re.fullmatch(_PROPERTY, line).groups()  # type: ignore[union-attr]
    return _unescaped(name), _unescaped(value)


def _unescaped(text: str) -> str:
    def replaced(found: re.Match[str]) -> str:
        if found[1]:
            return chr(int(found[1], 16))
        if found[2] == "u":
            raise ValueError(text)
        return _ESCAPES.get(found[2], found[2])

    units = _ESCAPE.sub(replaced, text)
    return units.encode("utf-16-le", "surrogatepass").decode("utf-16-le")
