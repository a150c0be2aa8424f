"""Random .proto source texts that protoc accepts."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Final

SCALARS: Final = (
    "double", "float", "int32", "int64", "uint32", "uint64", "sint32", "sint64", "fixed32",
    "fixed64", "sfixed32", "sfixed64", "bool", "string", "bytes",
)  # fmt: skip
KEYS: Final = tuple(kind for kind in SCALARS if kind not in ("double", "float", "bytes"))
IMPORTED: Final = {
    "google/protobuf/timestamp.proto": "google.protobuf.Timestamp",
    "google/protobuf/any.proto": ".google.protobuf.Any",
    "google/type/money.proto": "google.type.Money",
}
KEYWORDS: Final = ("message", "enum", "option", "optional", "to", "max", "stream", "package", "inf")
"""Words with a meaning that are allowed as names of fields."""


class Sample:
    """Generator of one source text."""

    def __init__(self, seed: int, syntax: str | None = None, package: str | None = None) -> None:
        self.random = random.Random(seed)
        self._package = package
        self.syntax = syntax or self.random.choice(("proto2", "proto3", "editions"))
        self._names = 0
        self._messages: list[str] = []
        self._enums: list[str] = []
        self._imports: list[str] = []
        self._has_options = package is None and self.random.random() < 0.3

    def text(self) -> str:
        package = self._package
        if package is None:
            package = self.random.choice(("", "shop", "shop.orders.v1"))
        lines = [self._head()]
        if package:
            lines.append(f"package {package};")
        self._imports = [name for name in IMPORTED if self.random.random() < 0.4]
        lines += [f'import "{name}";' for name in self._imports]
        if self._has_options:
            lines.append(self._option_declarations())
        if self.random.random() < 0.5:
            lines.append("option java_package = \"org.example\" '.caf\\u00e9';")
            lines.append("option optimize_for = CODE_SIZE;")
        for _ in range(self.random.randint(1, 3)):
            lines.append(self._enum() if self.random.random() < 0.3 else self._message(0))
        if self._messages and self.random.random() < 0.3:
            lines.append(self._service())
        return self._disturbed("\n".join(lines) + "\n")

    def _head(self) -> str:
        if self.syntax == "editions":
            if self._package is not None or self.random.random() < 0.5:
                return 'edition = "2023";'
            return 'edition = "2024";\noption features.enforce_naming_style = STYLE_LEGACY;'
        return f'syntax = "{self.syntax}";'

    def _name(self, prefix: str) -> str:
        self._names += 1
        return f"{prefix}{self._names}"

    def _option_declarations(self) -> str:
        label = "" if self.syntax == "editions" else "optional "
        return f"""import "google/protobuf/descriptor.proto";
message Extra {{ {label}int32 size = 1; repeated string tags = 2; {label}Extra inner = 3;
  {label}Level level = 4; {label}double ratio = 5; {label}bytes raw = 6; }}
enum Level {{ LEVEL_NONE = 0; LEVEL_HIGH = 1; }}
extend google.protobuf.FieldOptions {{ {label}Extra extra = 50001; repeated int64 marks = 50002; }}
extend google.protobuf.MessageOptions {{ {label}Extra extra_m = 50003; {label}Level rank = 50004; }}
extend google.protobuf.EnumValueOptions {{ {label}string label = 50005; }}"""

    def _enum(self) -> str:
        name = self._name("Kind")
        self._enums.append(name)
        alias = self.random.random() < 0.3
        numbers = [0, *self.random.sample(range(1, 50), self.random.randint(0, 3))]
        values = [f"{name.upper()}_{number} = {number}" for number in numbers]
        if alias:
            values.append(f"{name.upper()}_ALIAS = 0x0")
        if self._has_options:
            values[-1] += ' [(label) = "x\\ty"]'
        if self.random.random() < 0.4:
            values.append(f"{name.upper()}_NEGATIVE = -1")
        body = "".join(f" {value};" for value in values)
        start = " option allow_alias = true;" if alias else ""
        reserved = self.random.choice(("", " reserved 100, 200 to max;", ' reserved "OLD";'))
        if self.syntax == "editions":
            reserved = reserved.replace('"', "")
        return f"enum {name} {{{start}{body}{reserved} }}"

    def _message(self, depth: int) -> str:
        name = self._name("Item")
        self._messages.append(name)
        mark = (len(self._messages), len(self._enums))
        numbers = iter(self.random.sample(range(1, 400), 30))
        parts: list[str] = []
        if self._has_options and self.random.random() < 0.5:
            parts.append('option (extra_m) = { size: 0x10 tags: ["a", "b"] inner { size: -3 } };')
            parts.append("option (rank) = LEVEL_HIGH;")
        makers: list[Callable[[], str]] = [
            lambda: self._field(next(numbers)),
            lambda: self._field(next(numbers)),
            lambda: self._map(next(numbers)),
            lambda: self._oneof([next(numbers) for _ in range(self.random.randint(1, 3))]),
            self._enum,
        ]
        if depth < 3:
            makers.append(lambda: self._message(depth + 1))
        if self.syntax == "proto2":
            makers.append(lambda: self._group(next(numbers), depth))
        count = self.random.randint(0, 7)
        parts += [self.random.choice(makers)() for _ in range(count)]
        parts += self._tail(name)
        del self._messages[mark[0] :]
        del self._enums[mark[1] :]
        return f"message {name} {{\n" + "\n".join(parts) + "\n}"

    def _tail(self, name: str) -> Sequence[str]:
        parts: list[str] = []
        if self.random.random() < 0.3:
            parts.append("reserved 500, 600 to 0x300;")
            parts.append("reserved gone;" if self.syntax == "editions" else "reserved 'gone';")
        if self.syntax != "proto3" and self.random.random() < 0.3:
            parts.append("extensions 1000 to max;")
            label = "" if self.syntax == "editions" else "optional "
            parts.append(f"extend {name} {{ {label}int32 {self._name('ext')} = 1000; }}")
        return parts

    def _type(self) -> str:
        roll = self.random.random()
        if roll < 0.2 and self._messages:
            return self.random.choice(self._messages)
        if roll < 0.35 and self._enums:
            return self.random.choice(self._enums)
        if roll < 0.5 and self._imports:
            return IMPORTED[self.random.choice(self._imports)]
        return self.random.choice(SCALARS)

    def _field(self, number: int) -> str:
        labels = {
            "proto2": ("optional ", "required ", "repeated "),
            "proto3": ("", "", "optional ", "repeated "),
            "editions": ("", "", "repeated "),
        }[self.syntax]
        label, kind = self.random.choice(labels), self._type()
        name = self._name(self.random.choice(("field", "fieldName", "field_name_", "_f", "F__x")))
        if self.random.random() < 0.1:
            self._names += 1
            name = f"{self.random.choice(KEYWORDS)}{self._names}"
        options = self._options(label, kind, name)
        shown = hex(number) if self.random.random() < 0.1 else str(number)
        return f"{label}{kind} {name} = {shown}{options};"

    def _options(self, label: str, kind: str, name: str) -> str:
        options = ["deprecated = true"] if self.random.random() < 0.2 else []
        if self._has_options and self.random.random() < 0.5:
            options.append(
                self.random.choice(
                    (
                        "(extra).tags = \"x\", (extra) .tags = 'y'",
                        "(extra) = { size: 5 inner < level: LEVEL_HIGH > ratio: 1e-3 }",
                        '(extra).inner.raw = "\\x00\\377", (marks) = -9, (marks) = 010',
                    )
                )
            )
        if self.random.random() < 0.2:
            options.append(f'json_name = "{name}Json"')
        allowed = label != "repeated " and self.syntax != "proto3" and kind in DEFAULTS
        if allowed and self.random.random() < 0.4:
            options.append(f"default = {self.random.choice(DEFAULTS[kind])}")
        if label == "repeated " and kind in KEYS[:3] and self.syntax != "editions":
            options.append("packed = true")
        return f" [{', '.join(options)}]" if options else ""

    def _map(self, number: int) -> str:
        return f"map<{self.random.choice(KEYS)}, {self._type()}> {self._name('by_key')} = {number};"

    def _oneof(self, numbers: Sequence[int]) -> str:
        fields = [f"{self._type()} {self._name('choice')} = {number};" for number in numbers]
        return f"oneof {self._name('one')} {{ {' '.join(fields)} }}"

    def _group(self, number: int, depth: int) -> str:
        name = self._name("Group")
        label = self.random.choice(("optional", "repeated", "required"))
        options = " [deprecated = true]" if self.random.random() < 0.3 else ""
        inner = self._field(1) if depth < 3 else ""
        return f"{label} group {name} = {number}{options} {{ {inner} }}"

    def _service(self) -> str:
        sent, received = (self.random.choice(self._messages) for _ in range(2))
        stream = self.random.choice(("", "stream "))
        body = self.random.choice((";", " { option deprecated = true; }", " {}"))
        return (
            f"service {self._name('Service')} {{"
            f" rpc {self._name('Call')} ({stream}{sent}) returns ({received}){body} }}"
        )

    def _disturbed(self, text: str) -> str:
        """Add comments and white space, which have no meaning."""
        lines = []
        for line in text.splitlines():
            roll = self.random.random()
            if roll < 0.1:
                line = line.replace("{", '{ /* a } comment " */', 1)
            elif roll < 0.2:
                line = f"// comment ' {{\n\t{line}"
            elif roll < 0.25:
                line = line.replace("=", " \n = ", 1)
            lines.append(line)
        return "\n".join(lines)


DEFAULTS: Final = {
    "int32": ("5", "-0x7", "017", "-2147483648"),
    "uint64": ("18446744073709551615", "0"),
    "sint64": ("-9223372036854775808",),
    "fixed32": ("4294967295",),
    "float": ("1", "0.1", "-inf", "nan", "1e30", "3.4028235e38", "1.17549435e-38", "16777217"),
    "double": ("0.1", "-1.5e300", "inf", "1e-7", "123456789.125", ".5", "1.", "100000000000000000"),
    "bool": ("true", "false"),
    "string": ('"a\\n\\"b"', "'caf\\303\\251' \"é\"", '""', '"\\?\\a"'),
    "bytes": ('"\\000\\xff\'"', '"é\\\\"'),
}
