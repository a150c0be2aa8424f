"""References of options to files and environment variables: `${file:PATH}`, `${env:NAME}`.

`${file:PATH:KEY}` is a key of a properties file, as for Kafka's clients. `${file:PATH}` is the text
of a whole file, the usual form of a password, which Apache Kafka does not support. A relative path
begins at the working directory, like the paths of the other options.

Source: Kafka's `FileConfigProvider` (KIP-297) and `EnvVarConfigProvider` (KIP-887).
"""

from __future__ import annotations

import os
import re
from typing import Final

from penstock.base.errors import InvalidSetting
from penstock.client.properties import parse_properties
from penstock.security.files import read_file

REFERENCE_BYTES_MAX: Final = 1 << 20
_REFERENCE: Final = re.compile(r"\$\{(?P<kind>file|env):(?P<name>[^:}]+)(?::(?P<key>[^}]+))?\}")
_FORMS: Final = (
    "may refer to a file as ${file:PATH}, to a key of a properties file as ${file:PATH:KEY} and to"
    " a variable of the environment as ${env:NAME}; write a value that has ${ itself to a file"
)


def resolve(name: str, value: str) -> str:
    """Return an option's value with its references resolved.

    Args:
        name: the option, for messages.
        value: its text; without `${` it is returned unchanged.

    Raises:
        InvalidSetting: an invalid reference, or a missing key or variable. The message never has
            the value.
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
