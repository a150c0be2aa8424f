"""Tables as other tools make them: with rules, features and protocols of their own."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from deltalake import DeltaTable, Field, Schema


def foreign(
    table: Path,
    columns: Sequence[dict[str, Any]],
    features: Sequence[str] = (),
    *,
    reader: Sequence[str] = (),
    protocol: tuple[int, int] = (1, 7),
    properties: Mapping[str, str] | None = None,
    partition_by: Sequence[str] = (),
) -> Path:
    """Make a table with these columns, whose metadata has rules, by writing its log by hand."""
    fields = [{"nullable": True, "metadata": {}} | column for column in columns]
    plain = [Field.from_json(json.dumps(field | {"metadata": {}})) for field in fields]
    DeltaTable.create(str(table), Schema(plain), partition_by=list(partition_by))
    first = table / "_delta_log" / f"{0:020}.json"
    actions = [json.loads(line) for line in first.read_text().splitlines()]
    versions: dict[str, Any] = dict(
        zip(("minReaderVersion", "minWriterVersion"), protocol, strict=True)
    )
    if protocol[1] == 7:
        versions["writerFeatures"] = [*features, *reader]
    if protocol[0] == 3:
        versions["readerFeatures"] = list(reader)
    for action in actions:
        if "protocol" in action:
            action["protocol"] = versions
        if "metaData" in action:
            action["metaData"]["schemaString"] = json.dumps({"type": "struct", "fields": fields})
            action["metaData"]["configuration"] |= properties or {}
    first.write_text("\n".join(map(json.dumps, actions)))
    return table
