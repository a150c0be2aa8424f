"""What a principal is told: the errors of an answer, element by element, and what it lists.

Errors that have nothing to do with rights depend on more than rights: they count as one, `passed`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final
from uuid import UUID

from penstock.broker.net.errors import error_name

VERDICTS: Final = frozenset({
    "topic_authorization_failed", "group_authorization_failed", "cluster_authorization_failed",
    "transactional_id_authorization_failed", "unknown_topic_or_partition", "unknown_topic_id",
    "operation_not_attempted", "security_disabled",
})  # fmt: skip
PASSED: Final = "passed"
LABELS: Final = (
    "name", "topic", "topic_name", "group_id", "key", "transactional_id", "resource_name", "user",
    "topic_id", "partition_index", "partition", "index",
)  # fmt: skip
LISTINGS: Final = frozenset({"groups", "transaction_states", "topics"})
"""Arrays of answers that leave out what must not be seen."""
UNSEEN: Final = "__"
"""What begins so is the server's own."""

Path = tuple[str, ...]


def observed(answer: Any, names: Mapping[UUID, str]) -> dict[Path, str]:
    """What an answer says of each element; `names` are those of topics by their ids."""
    return dict(sorted(_walk(answer, (), names)))


def _walk(value: Any, path: Path, names: Mapping[UUID, str]) -> Iterator[tuple[Path, str]]:
    for field in value.__slots__:
        item = getattr(value, field)
        if field.endswith("error_code"):
            name = error_name(int(item)).lower()
            yield (*path, field), name if name in VERDICTS else PASSED
        elif field.endswith("authorized_operations"):
            yield (*path, field), str(item)
        elif isinstance(item, tuple):
            for element in item:
                if hasattr(element, "__slots__") and not isinstance(element, UUID):
                    yield from _element(element, field, path, names)


def _element(one: Any, field: str, path: Path, names: Mapping[UUID, str]) -> Iterator[Any]:
    label = _label(one, names)
    if label.startswith(UNSEEN):
        return
    if field in LISTINGS:
        yield (*path, field, label), "there"
    yield from _walk(one, (*path, field, label), names)


def _label(one: Any, names: Mapping[UUID, str]) -> str:
    for name in LABELS:
        found = getattr(one, name, None)
        if isinstance(found, UUID):
            return names.get(found, "id of nothing")
        if found is not None:
            return str(found)
    return ""
