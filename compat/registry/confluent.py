"""confluent-kafka's client of the schema registry, under Python."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import confluent_kafka
from confluent_kafka.schema_registry import (
    AssociationCreateOrUpdateRequest,
    Schema,
    SchemaRegistryClient,
    SchemaRegistryError,
    ServerConfig,
)

from compat.registry.confluent_values import ConfluentValues
from compat.registry.port import Link, RegistryClient, RegistryProblem

Operation = Callable[..., Any]


class ConfluentPython(RegistryClient):
    """confluent-kafka."""

    name = "confluent-python"
    able = frozenset({
        "types", "contexts", "subjects", "register", "by_id", "by_guid", "subjects_of_id",
        "versions_of_id", "lookup", "versions", "version", "latest", "latest_with_metadata",
        "referenced_by", "delete_version", "delete_subject", "compatible", "compatible_with_all",
        "compatibility", "set_compatibility", "config", "set_config", "delete_config", "mode",
        "set_mode", "delete_mode", "associations", "associate", "dissociate", "serialize",
        "deserialize", "write", "read", "headers", "strategies", "auto", "metadata",
    })  # fmt: skip

    def __init__(self, link: Link) -> None:
        self._client = SchemaRegistryClient({"url": link.registry, "max.retries": 0})
        self._values = ConfluentValues(link, self._client)
        self._operations: Mapping[str, Operation] = {
            **_schemas(self._client),
            **_subjects(self._client),
            **_settings(self._client),
            **self._values.operations,
        }

    @property
    def version(self) -> str:
        return f"confluent-kafka {confluent_kafka.version()}"

    def call(self, operation: str, **arguments: Any) -> Any:
        self._client.clear_caches()
        try:
            return self._operations[operation](**arguments)
        except SchemaRegistryError as error:
            raise RegistryProblem(error.error_code, error.error_message) from error

    def close(self) -> None:
        self._client.close()


def _schemas(client: SchemaRegistryClient) -> dict[str, Operation]:
    def register(subject: str, schema: dict[str, Any], normalize: bool = False) -> Any:
        made = Schema.from_dict(schema)
        return client.register_schema_full_response(subject, made, normalize).to_dict()

    def lookup(
        subject: str, schema: dict[str, Any], normalize: bool = False, deleted: bool = False
    ) -> Any:
        made = Schema.from_dict(schema)
        return client.lookup_schema(subject, made, normalize, deleted=deleted).to_dict()

    def versions_of_id(schema_id: int) -> Any:
        return [[found.subject, found.version] for found in client.get_schema_versions(schema_id)]

    return {
        "types": client.get_schema_types,
        "register": register,
        "lookup": lookup,
        "by_id": lambda schema_id, subject=None, output=None: client.get_schema(
            schema_id, subject, output
        ).to_dict(),
        "by_guid": lambda guid: client.get_schema_by_guid(guid).to_dict(),
        "subjects_of_id": lambda schema_id: client.get_subjects_by_schema_id(schema_id),
        "versions_of_id": versions_of_id,
        "version": lambda subject, version, deleted=False: client.get_version(
            subject, version, deleted
        ).to_dict(),
        "latest": lambda subject: client.get_latest_version(subject).to_dict(),
        "latest_with_metadata": lambda subject, metadata: client.get_latest_with_metadata(
            subject, metadata
        ).to_dict(),
        "referenced_by": lambda subject, version: client.get_referenced_by(subject, version),
    }


def _subjects(client: SchemaRegistryClient) -> dict[str, Operation]:
    return {
        "contexts": client.get_contexts,
        "subjects": lambda prefix=None, deleted=False: client.get_subjects(prefix, deleted),
        "versions": lambda subject, deleted=False: client.get_versions(subject, deleted),
        "delete_version": lambda subject, version, permanent=False: client.delete_version(
            subject, version, permanent
        ),
        "delete_subject": lambda subject, permanent=False: client.delete_subject(
            subject, permanent
        ),
        "compatible": lambda subject, version, schema: client.test_compatibility(
            subject, Schema.from_dict(schema), version
        ),
        "compatible_with_all": lambda subject, schema: client.test_compatibility_all_versions(
            subject, Schema.from_dict(schema)
        ),
    }


def _settings(client: SchemaRegistryClient) -> dict[str, Operation]:
    def set_compatibility(level: str, subject: str | None = None) -> Any:
        return client.set_compatibility(subject, level)["compatibility"]

    def associations(name: str, namespace: str) -> Any:
        found = client.get_associations_by_resource_name(name, namespace, "topic", [], 0, -1)
        return [association.to_dict() for association in found]

    def associate(request: dict[str, Any]) -> Any:
        made = AssociationCreateOrUpdateRequest.from_dict(request)
        return client.create_association(made).to_dict()

    return {
        "compatibility": lambda subject=None: client.get_compatibility(subject),
        "set_compatibility": set_compatibility,
        "config": lambda subject=None: client.get_config(subject).to_dict(),
        "set_config": lambda config, subject=None: client.set_config(
            subject, ServerConfig.from_dict(config)
        ),
        "delete_config": lambda subject=None: client.delete_config(subject).to_dict(),
        "mode": lambda subject=None: (
            client.get_mode(subject) if subject else client.get_global_mode()
        ),
        "set_mode": lambda mode, subject=None, force=False: (
            client.update_mode(subject, mode, force)
            if subject
            else client.update_global_mode(mode, force)
        ),
        "delete_mode": lambda subject: client.delete_mode(subject),
        "associations": associations,
        "associate": associate,
        "dissociate": lambda resource_id: client.delete_associations(
            resource_id, "topic", None, cascade_lifecycle=True
        ),
    }
