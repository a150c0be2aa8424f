"""References in option values to files and environment variables, and parsing of option files.

`parse_properties` reads Java's properties format: `:` or a blank in place of `=`, continued lines,
escapes. `${file:PATH:KEY}` is the value of a key in such a file, as for Kafka's clients.
`${file:PATH}` is the text of a whole file. It is the usual form for a password file, but Apache
Kafka does not support it. `${env:NAME}` is an environment variable. A relative path starts at the
working directory, as in other options.

Source: `java.util.Properties.load`; Kafka's `FileConfigProvider` (KIP-297) and
`EnvVarConfigProvider` (KIP-887).
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from typing import Final

from penstock.base.errors import InvalidSetting
from penstock.security.files import UnusableFile, read_file

REFERENCE_BYTES_MAX: Final = 1 << 20
_REFERENCE: Final = re.compile(r"\$\{(?P<kind>file|env):(?P<name>[^:}]+)(?::(?P<key>[^}]+))?\}")
_FORMS: Final = (
    "may refer to a file as ${file:PATH}, to a key of a properties file as"
    " ${file:PATH:KEY}, and to an environment variable as ${env:NAME}; if the value itself"
    " contains ${, write it to a file"
)
_BLANKS: Final = " \t\f"
_PROPERTY: Final = re.compile(
    rf"((?:[^\\=:{_BLANKS}]|\\.)*)[{_BLANKS}]*[=:]?[{_BLANKS}]*(.*)", re.DOTALL
)
_ESCAPE: Final = re.compile(r"\\(?:u([0-9A-Fa-f]{4})|(.))", re.DOTALL)
_ESCAPES: Final = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}


def resolve(name: str, value: str) -> str:
    """Return an option's value with its references resolved.

    Args:
        name: the option's name, for messages.
        value: the option's text; without `${` it is returned unchanged.

    Raises:
        InvalidSetting: a reference is invalid, or a key or variable does not exist. The message
            never contains the value.
        UnusableFile: a file cannot be read.
    """
    if "${" not in value:
        return value
    if "${" in _REFERENCE.sub("", value):
        raise InvalidSetting(name, "[hidden]", _FORMS)
    return _REFERENCE.sub(lambda found: _named(name, found), value)


def referenced_files(value: str) -> list[str]:
    return [found["name"] for found in _REFERENCE.finditer(value) if found["kind"] == "file"]


def _named(option: str, found: re.Match[str]) -> str:
    name, key = found["name"], found["key"]
    if found["kind"] == "env":
        if key is not None or name not in os.environ:
            raise InvalidSetting(option, found[0], f"the environment has no variable {name}")
        return os.environ[name]
    data = read_file(name, REFERENCE_BYTES_MAX)
    if key is None:
        return data.decode(errors="surrogateescape").removesuffix("\n").removesuffix("\r")
    properties = parse_properties(name, data)
    if key not in properties:
        raise InvalidSetting(option, found[0], f"{name} has no key {key}")
    return properties[key]


def parse_properties(path: str, data: bytes) -> dict[str, str]:
    r"""Decode a properties file to names and values; the last value of a repeated name counts.

    Args:
        path: the file's name, for messages.
        data: the file's bytes; bytes that are not UTF-8 are decoded as Latin-1, as in Java.

    Raises:
        UnusableFile: a `\u` is not followed by four hexadecimal digits.
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
