"""Files that a Protobuf schema may import without a reference.

They are the files of Protobuf itself, Google's common types, and Confluent's: clients of a schema
registry leave references to them out, or send them as references with copies of their own. The
files here have precedence over such copies.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from google.protobuf import (
    any_pb2,
    api_pb2,
    descriptor_pb2,
    duration_pb2,
    empty_pb2,
    field_mask_pb2,
    source_context_pb2,
    struct_pb2,
    timestamp_pb2,
    type_pb2,
    wrappers_pb2,
)
from google.type import (
    calendar_period_pb2,
    color_pb2,
    date_pb2,
    datetime_pb2,
    dayofweek_pb2,
    decimal_pb2,
    expr_pb2,
    fraction_pb2,
    interval_pb2,
    latlng_pb2,
    localized_text_pb2,
    money_pb2,
    month_pb2,
    phone_number_pb2,
    postal_address_pb2,
    quaternion_pb2,
    timeofday_pb2,
)

_MODULES: Final = (
    any_pb2, api_pb2, descriptor_pb2, duration_pb2, empty_pb2, field_mask_pb2, source_context_pb2,
    struct_pb2, timestamp_pb2, type_pb2, wrappers_pb2, calendar_period_pb2, color_pb2, date_pb2,
    datetime_pb2, dayofweek_pb2, decimal_pb2, expr_pb2, fraction_pb2, interval_pb2, latlng_pb2,
    localized_text_pb2, money_pb2, month_pb2, phone_number_pb2, postal_address_pb2, quaternion_pb2,
    timeofday_pb2,
)  # fmt: skip

COMPILED_IMPORTS: Final[Mapping[str, bytes]] = MappingProxyType(
    {module.DESCRIPTOR.name: module.DESCRIPTOR.serialized_pb for module in _MODULES}
)
"""Serialized descriptors of the files of Protobuf and of Google's common types, by import path."""

SOURCE_IMPORTS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "confluent/meta.proto": """\
syntax = "proto3";
package confluent;
import "google/protobuf/descriptor.proto";
message Meta {
  string doc = 1;
  map<string, string> params = 2;
  repeated string tags = 3;
  repeated Rule rules = 4;
}
message Rule {
  string name = 1;
  string doc = 2;
  string expr = 3;
  string sql = 4;
}
extend google.protobuf.FileOptions { Meta file_meta = 1088; }
extend google.protobuf.MessageOptions { Meta message_meta = 1088; }
extend google.protobuf.FieldOptions { Meta field_meta = 1088; }
extend google.protobuf.EnumOptions { Meta enum_meta = 1088; }
extend google.protobuf.EnumValueOptions { Meta enum_value_meta = 1088; }
""",
        "confluent/type/decimal.proto": """\
syntax = "proto3";
package confluent.type;
message Decimal {
  bytes value = 1;
  uint32 precision = 2;
  int32 scale = 3;
}
""",
        "confluent/type/variant.proto": """\
syntax = "proto3";
package confluent.type;
message Variant {
  bytes metadata = 1;
  bytes value = 2;
}
""",
        "confluent/types/decimal.proto": """\
syntax = "proto3";
import public "confluent/type/decimal.proto";
""",
    }
)
"""Source texts of Confluent's files, by import path: their fields and numbers as clients use them.

`confluent/types/decimal.proto` is the older path of the decimal.
"""
