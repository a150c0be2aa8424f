"""Parameters of the messages pages, and their choices with titles.

| parameter   | meaning                                                                       |
|-------------|-------------------------------------------------------------------------------|
| `partition` | number of a partition; empty for all                                          |
| `order`     | `newest` or `oldest` first                                                    |
| `at`        | offset or time in ISO 8601 to begin at; empty for the end of the log          |
| `cursor`    | positions by partition, `0.120-1.77`, with which a list is continued          |
| `key`       | text that the key equals, or contains with `match=contains`                   |
| `filter`    | expression of `expressions.py`                                                |
| `kf`, `vf`  | formats of keys and values, by their names in `decoding.py`                   |
| `message`   | name of the Protobuf message of values, if the schema file has several        |
| `isolation` | `committed` or `uncommitted`                                                  |
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

PARAMETERS: Final = (
    "partition", "order", "at", "cursor", "key", "match", "filter", "kf", "vf", "message",
    "isolation",
)  # fmt: skip
ORDERS: Final = {"newest": "Newest first", "oldest": "Oldest first"}
MATCHES: Final = {"": "is", "contains": "contains"}
ISOLATIONS: Final = {"committed": "Committed", "uncommitted": "All records"}
FORMATS: Final[Mapping[str, str]] = {
    "auto": "Automatic",
    "registry": "Registry",
    "avro": "Avro (file)",
    "protobuf": "Protobuf (file)",
    "json": "JSON",
    "msgpack": "MessagePack",
    "text": "Text",
    "hex": "Hexadecimal",
}
"""Names of formats, with their titles."""
