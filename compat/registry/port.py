"""Port of a foreign client of the schema registry, through which each scenario is written once.

A client is called with the name of an operation and JSON values, and returns JSON values in the
form of Confluent's API. The operations of a client are in its `able`, and also what it can do
with values: put ids in `headers`, register schemas itself (`auto`), name subjects by `strategies`;
and whether it has `metadata` and selects a context by the path (`in_context`).

Operations on the registry: `types`, `contexts`, `delete_context`, `subjects`, `register`,
`by_id`, `text_by_id`, `by_guid`, `ids_by_guid`, `subjects_of_id`, `versions_of_id`, `lookup`,
`versions`, `version`, `text_of_version`, `latest`, `latest_with_metadata`, `all_schemas`,
`schemas`, `referenced_by`, `usages`, `delete_version`, `delete_subject`, `compatible`,
`compatible_with_all`, `explain`, `compatibility`, `set_compatibility`, `config`, `set_config`,
`delete_config`, `mode`, `set_mode`, `delete_mode`, `associations`, `associate` and `dissociate`.

Operations on values: `serialize`, `deserialize`, `write` and `read`. Values of Avro are JSON
values, with bytes in base64 and timestamps in milliseconds. Those of Protobuf are in Protobuf's
JSON form. The options of a serializer are `strategy`, `header`, `auto`, `latest`, `latest_with`,
`use_id`, `normalize`, `schema` and `message`, which is the name of a Protobuf message.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar, Final

READ_SECONDS: Final = 20
"""Time in which a client must read all records of a topic."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """Addresses of the server, and the Protobuf messages of the test as a set of descriptors."""

    bootstrap: str
    registry: str
    descriptors: bytes


class RegistryProblem(Exception):
    """Error of the registry: Confluent's error code and the message."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(f"{code}: {message}")
        self.code = code
        self.message = message


class RegistryClient(ABC):
    """A foreign client."""

    name: ClassVar[str]
    able: ClassVar[frozenset[str]]

    @abstractmethod
    def __init__(self, link: Link) -> None:
        """Connect to the registry and the broker of `link`."""

    @property
    @abstractmethod
    def version(self) -> str:
        """Name and version of the library."""

    @abstractmethod
    def call(self, operation: str, **arguments: Any) -> Any:
        """Perform an operation and return its result.

        Raises:
            RegistryProblem: the registry responded with an error.
        """

    @abstractmethod
    def close(self) -> None:
        """Release the client's connections and processes."""
