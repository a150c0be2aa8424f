"""Errors of the schema registry, each with its HTTP status and Confluent's error code.

Source: the error codes of Confluent's Schema Registry API reference.
"""

from __future__ import annotations

from typing import ClassVar

from penstock.base.errors import InvalidError


class RegistryError(InvalidError):
    """Request that the registry rejects. `status` is the HTTP status."""

    code: ClassVar[str] = "invalid_request"
    status: ClassVar[int] = 422
    error_code: ClassVar[int] = 422


class SubjectNotFound(RegistryError):
    code: ClassVar[str] = "resource_not_found"
    status: ClassVar[int] = 404
    error_code: ClassVar[int] = 40401

    def __init__(self, subject: str) -> None:
        super().__init__(f"Subject '{subject}' not found.")


class VersionNotFound(RegistryError):
    code: ClassVar[str] = "resource_not_found"
    status: ClassVar[int] = 404
    error_code: ClassVar[int] = 40402

    def __init__(self, version: object) -> None:
        super().__init__(f"Version {version} not found.")


class SchemaNotFound(RegistryError):
    code: ClassVar[str] = "resource_not_found"
    status: ClassVar[int] = 404
    error_code: ClassVar[int] = 40403

    def __init__(self, name: object = None) -> None:
        super().__init__("Schema not found" if name is None else f"Schema {name} not found")


class SubjectSoftDeleted(RegistryError):
    status: ClassVar[int] = 404
    error_code: ClassVar[int] = 40404

    def __init__(self, subject: str) -> None:
        super().__init__(
            f"Subject '{subject}' was soft deleted. Set permanent=true to delete permanently"
        )


class SubjectNotSoftDeleted(RegistryError):
    status: ClassVar[int] = 404
    error_code: ClassVar[int] = 40405

    def __init__(self, subject: str) -> None:
        super().__init__(
            f"Subject '{subject}' was not deleted first before being permanently deleted"
        )


class VersionSoftDeleted(RegistryError):
    status: ClassVar[int] = 404
    error_code: ClassVar[int] = 40406

    def __init__(self, subject: str, version: int) -> None:
        super().__init__(
            f"Subject '{subject}' Version {version} was soft deleted."
            " Set permanent=true to delete permanently"
        )


class VersionNotSoftDeleted(RegistryError):
    status: ClassVar[int] = 404
    error_code: ClassVar[int] = 40407

    def __init__(self, subject: str, version: int) -> None:
        super().__init__(
            f"Subject '{subject}' Version {version} was not deleted first before being permanently"
            " deleted"
        )


class NoSubjectConfig(RegistryError):
    status: ClassVar[int] = 404
    error_code: ClassVar[int] = 40408

    def __init__(self, subject: str) -> None:
        super().__init__(
            f"Subject '{subject}' does not have subject-level compatibility configured"
        )


class NoSubjectMode(RegistryError):
    status: ClassVar[int] = 404
    error_code: ClassVar[int] = 40409

    def __init__(self, subject: str) -> None:
        super().__init__(f"Subject '{subject}' does not have subject-level mode configured")


class AssociationNotFound(RegistryError):
    status: ClassVar[int] = 404
    error_code: ClassVar[int] = 40471


class AssociationConflict(RegistryError):
    status: ClassVar[int] = 409
    error_code: ClassVar[int] = 40971


class IncompatibleSchema(RegistryError):
    """Schema that is incompatible with an earlier version; the message has paths and rules."""

    status: ClassVar[int] = 409
    error_code: ClassVar[int] = 409


class RejectedSchema(RegistryError):
    """Schema that is malformed, or whose references do not exist."""

    error_code: ClassVar[int] = 42201


class MalformedSchema(RejectedSchema):
    """Schema that its format does not permit."""


class InvalidVersion(RegistryError):
    error_code: ClassVar[int] = 42202

    def __init__(self, version: str) -> None:
        super().__init__(
            f"The specified version '{version[:64]}' is not a valid version id. Allowed values are"
            ' between [1, 2^31-1] and the string "latest"'
        )


class InvalidCompatibility(RegistryError):
    error_code: ClassVar[int] = 42203


class InvalidMode(RegistryError):
    error_code: ClassVar[int] = 42204


class OperationNotPermitted(RegistryError):
    """Change that the mode of the subject, or an existing schema, does not permit."""

    error_code: ClassVar[int] = 42205


class ReferenceExists(RegistryError):
    error_code: ClassVar[int] = 42206

    def __init__(self, subject: str, version: int, referrer: str) -> None:
        super().__init__(
            f"One or more references exist to the schema {{subject={subject},version={version}}}:"
            f" {referrer}. Delete the schemas that refer to it first"
        )


class InvalidSubject(RegistryError):
    error_code: ClassVar[int] = 42208


class InvalidRequest(RegistryError):
    """Request whose body or parameters are malformed."""


class BadRequest(RegistryError):
    """Request whose body is not JSON."""

    status: ClassVar[int] = 400
    error_code: ClassVar[int] = 400
