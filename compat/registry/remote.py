"""Clients of other languages: programs that take one JSON call a line (`go/`, `javascript/`)."""

from __future__ import annotations

import base64
from abc import abstractmethod
from typing import Any

from compat.drivers.port import KafkaProblem
from compat.drivers.remote import HERE, Program
from compat.parts import registry_go, registry_javascript
from compat.registry.port import READ_SECONDS, Link, RegistryClient, RegistryProblem

COMMON = frozenset({
    "subjects", "register", "by_id", "by_guid", "lookup", "versions", "version", "latest",
    "delete_version", "delete_subject", "compatible", "compatibility", "set_compatibility",
    "config", "set_config", "serialize", "deserialize", "write", "read",
})  # fmt: skip


class RemoteClient(RegistryClient):
    """A client behind a program."""

    def __init__(self, link: Link) -> None:
        self._program = self._start()
        self.call(
            "open",
            bootstrap=link.bootstrap,
            registry=link.registry,
            descriptors=base64.b64encode(link.descriptors).decode(),
        )

    @abstractmethod
    def _start(self) -> Program:
        """Start the program."""

    @property
    def version(self) -> str:
        return str(self.call("name"))

    def call(self, operation: str, **arguments: Any) -> Any:
        try:
            return self._program.call(operation, **arguments)
        except KafkaProblem as problem:
            message = str(problem).removeprefix(f"{problem.code}: ")
            if not problem.code:
                raise RuntimeError(f"{self.name}: {operation}: {message}") from None
            raise RegistryProblem(int(problem.code), message) from None

    def close(self) -> None:
        self._program.close()


class ConfluentGo(RemoteClient):
    """confluent-kafka-go."""

    name = "confluent-go"
    able = COMMON | {
        "contexts", "versions_of_id", "latest_with_metadata", "headers", "strategies", "auto",
        "metadata",
    }  # fmt: skip

    def _start(self) -> Program:
        return Program([str(registry_go()), "confluent"], {}, answer_seconds=READ_SECONDS + 10)


class Franz(RemoteClient):
    """franz-go's pkg/sr. It has no serializers that register schemas, and no ids in headers."""

    name = "franz-go-sr"
    able = COMMON | {
        "types", "contexts", "delete_context", "text_by_id", "ids_by_guid", "subjects_of_id",
        "versions_of_id", "text_of_version", "all_schemas", "schemas", "referenced_by", "usages",
        "compatible_with_all", "explain", "delete_config", "mode", "set_mode", "delete_mode",
        "metadata", "in_context",
    }  # fmt: skip

    def _start(self) -> Program:
        return Program([str(registry_go()), "franz"], {}, answer_seconds=READ_SECONDS + 10)


class ConfluentJavaScript(RemoteClient):
    """Confluent's client for JavaScript, with KafkaJS as producer and consumer."""

    name = "confluent-javascript"
    able = COMMON | {
        "latest_with_metadata", "associations", "associate", "dissociate", "headers", "strategies",
        "auto", "metadata",
    }  # fmt: skip

    def _start(self) -> Program:
        modules = str(registry_javascript() / "node_modules")
        program = str(HERE / "registry" / "javascript" / "driver.js")
        own = {"NODE_PATH": modules}
        return Program(["node", program], own, answer_seconds=READ_SECONDS + 10)
