"""Comparison of the compatibility rules with `buf breaking`, category WIRE.

The findings of buf for the generated pairs are stored in `protobuf_buf.json`, so that the tests
need no foreign program. `python -m tests.registry.formats.protobuf_buf PATH_OF_BUF` records them
again.
"""

from __future__ import annotations

import hashlib
import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple

from google.protobuf.descriptor_pb2 import DescriptorProto, FileDescriptorProto
from google.type import money_pb2

from penstock.registry.formats.protobuf import ProtobufSchema, parse_protobuf
from penstock.registry.formats.schema import InvalidSchema
from tests.registry.formats.protobuf_changes import Change
from tests.registry.formats.protobuf_samples import Sample

RECORDED: Final = Path(__file__).with_name("protobuf_buf.json")
PAIRS: Final = 500
ATTEMPTS: Final = 30
CONFIGURATION: Final = '{"version":"v2","breaking":{"use":["WIRE"]}}'
BREAKING_STATUS: Final = 100
TYPE_RULES: Final = frozenset(
    ("FIELD_KIND_CHANGED", "FIELD_SCALAR_KIND_CHANGED", "FIELD_NAMED_TYPE_CHANGED")
)
ONEOF_RULES: Final = frozenset(
    (
        "ONEOF_FIELD_REMOVED",
        "MULTIPLE_FIELDS_MOVED_TO_ONEOF",
        "FIELD_MOVED_TO_EXISTING_ONEOF",
    )
)
LABEL_RULES: Final = frozenset(("FIELD_NUMERIC_LABEL_CHANGED", "REQUIRED_FIELD_ADDED"))
REQUIRED_RULES: Final = frozenset(("REQUIRED_FIELD_ADDED", "REQUIRED_FIELD_REMOVED"))
MISSING_RULES: Final = frozenset(("ONEOF_FIELD_REMOVED", "REQUIRED_FIELD_REMOVED"))
ALWAYS_DIFFERENT: Final = {
    "ENUM_VALUE_NO_DELETE_UNLESS_NUMBER_RESERVED": "removed constant",
    "RESERVED_MESSAGE_NO_DELETE": "removed reservation",
    "RESERVED_ENUM_NO_DELETE": "removed reservation",
    "RPC_SAME_CLIENT_STREAMING": "service",
    "FIELD_SAME_DEFAULT": "default",
}
VARINTS: Final = frozenset(("int32", "int64", "uint32", "uint64", "bool", "enum"))

DIFFERENCES: Final[Mapping[str, str]] = {
    "removed field": "Confluent's registry does not demand that removed numbers are reserved.",
    "removed constant": "Constants of enums may be removed: their numbers are still read.",
    "removed reservation": "Reserved ranges do not change how data are read.",
    "service": "Services do not change how messages are read.",
    "default": "Defaults are not encoded; a reader uses its own.",
    "bytes as string": "Confluent's registry reads bytes as a string.",
    "enum": "Enums are read as numbers, and as other enums.",
    "entries of a map": "buf compares entries by the name of the field, we by its number.",
    "list of values": "Confluent's registry allows one string, bytes or message for a list.",
    "relaxed field": "A reader may have a field as optional that the writer requires.",
    "single field in a oneof": "One field may move into a new oneof.",
    "whole oneof": "A oneof may be renamed, or all its fields may leave it.",
    "removed message": "Confluent's registry requires that messages stay; buf's WIRE does not.",
    "removed field of a oneof": "Confluent's registry requires that fields stay in their oneof.",
    "changed package": "buf compares no messages if the package has changed.",
}
"""Reasons why our rules and buf's differ. We follow what Confluent documents."""


class Finding(NamedTuple):
    """Finding of buf: the simple name of the message, and the number and details of the field."""

    rule: str
    message: str
    number: int
    before: str
    after: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    old: ProtobufSchema
    new: ProtobufSchema
    changes: Sequence[str]
    attempt: int

    def digest(self) -> str:
        text = f"{self.old.text}\0{self.new.text}"
        return hashlib.sha256(text.encode()).hexdigest()[:12]


def generated_pair(seed: int, package: str | None = None, first_attempt: int = 0) -> Pair:
    """Return two versions of a schema."""
    for attempt in range(first_attempt, ATTEMPTS):
        text = Sample(seed * ATTEMPTS + attempt, package=package).text()
        old = parse_protobuf(text, [])
        if not old.file.message_type:
            continue
        file = FileDescriptorProto()
        file.CopyFrom(old.file)
        change = Change(seed * ATTEMPTS + attempt, file)
        try:
            change.apply()
            new = old.with_file(file)
        except (IndexError, InvalidSchema):
            continue
        if new.identity != old.identity:
            return Pair(old=old, new=new, changes=change.kinds, attempt=attempt)
    raise AssertionError(f"no change of seed {seed} gives a valid schema")


def buf_pair(seed: int, first_attempt: int = 0) -> Pair:
    """Return a pair in a package of its own, because buf compares all pairs in one run."""
    return generated_pair(seed, f"p{seed}", first_attempt)


def run_buf(program: str, pairs: Mapping[int, Pair]) -> dict[int, list[Finding]]:
    """Return buf's findings for the change from old to new."""
    with tempfile.TemporaryDirectory() as directory:
        root = Path(directory)
        for side in ("old", "new"):
            money = root / side / money_pb2.DESCRIPTOR.name
            money.parent.mkdir(parents=True)
            money.write_text(
                'syntax = "proto3"; package google.type; message Money {'
                " string currency_code = 1; int64 units = 2; int32 nanos = 3; }"
            )
        for seed, pair in pairs.items():
            (root / "old" / f"p{seed}.proto").write_text(pair.old.text)
            (root / "new" / f"p{seed}.proto").write_text(pair.new.text)
        command = [program, "breaking", str(root / "new"), "--against", str(root / "old")]
        done = subprocess.run(
            [*command, "--error-format", "json", "--config", CONFIGURATION],
            cwd="/", env={"HOME": directory, "PATH": ""}, capture_output=True, text=True,
        )  # fmt: skip
    if done.returncode not in (0, BREAKING_STATUS):
        raise AssertionError(done.stderr)
    found: dict[int, list[Finding]] = {seed: [] for seed in pairs}
    for line in done.stdout.splitlines():
        record = json.loads(line)
        seed = int(Path(record["path"]).stem.removeprefix("p"))
        found[seed].append(_finding(record["type"], record["message"]))
    return found


def _finding(rule: str, message: str) -> Finding:
    quoted = re.findall(r'"([^"]*)"', message)
    if rule == "MESSAGE_SAME_REQUIRED_FIELDS":
        return Finding(rule, quoted[0], int(quoted[1]), "", "")
    if rule.startswith("FIELD_"):
        if rule == "FIELD_SAME_ONEOF":
            kind = "oneof" if "moved from oneof" in message else message.split("moved ")[1]
            return Finding(rule, quoted[2], int(quoted[0]), kind, "")
        before, after = (*quoted[3:5], "", "")[:2]
        return Finding(rule, quoted[2], int(quoted[0]), before, after)
    if rule in ("FILE_SAME_PACKAGE", "COMPILE"):
        return Finding(rule, "", 0, message if rule == "COMPILE" else "", "")
    return Finding(rule, quoted[-1], 0, "", "")


class Comparer:
    """Comparison of both sets of findings for one pair."""

    def __init__(self, pair: Pair, findings: Sequence[Finding]) -> None:
        self._pair = pair
        self._findings = findings
        self._problems = pair.new.check_reads(pair.old)
        self._old = dict(_messages(pair.old.file))
        self._new = dict(_messages(pair.new.file))

    def differences(self) -> Iterator[str]:
        """Yield the names of the differences; an unknown one begins with UNKNOWN."""
        if any(finding.rule == "FILE_SAME_PACKAGE" for finding in self._findings):
            if any(problem.rule == "PACKAGE_CHANGED" for problem in self._problems):
                yield "changed package"
            else:
                yield "UNKNOWN: only buf reports the package"
            return
        ours = set(self._ours())
        for finding in self._findings:
            name = self._only_buf(finding, ours)
            if name is not None:
                yield name
        for rule, message, number in ours:
            name = self._only_ours(rule, message, number)
            if name is not None:
                yield name

    def _ours(self) -> Iterator[tuple[str, str, int]]:
        """Yield rule, simple name of the message, and number of the field of our problems."""
        for problem in self._problems:
            parent, _, name = problem.path.rpartition(".")
            message = parent.rpartition(".")[2]
            if problem.rule in ("MESSAGE_REMOVED", "PACKAGE_CHANGED"):
                yield problem.rule, name, 0
            elif problem.rule in ONEOF_RULES and problem.rule != "ONEOF_FIELD_REMOVED":
                for number in self._members(message, name):
                    yield problem.rule, message, number
            else:
                sides = (self._new, self._old)
                if problem.rule in ("ONEOF_FIELD_REMOVED", "REQUIRED_FIELD_REMOVED"):
                    sides = (self._old, self._new)
                yield problem.rule, message, _number(sides, message, name)

    def _members(self, message: str, oneof: str) -> Iterator[int]:
        """Yield the old fields that are in a oneof of the new message."""
        new = self._new[message]
        for field in new.field:
            known = any(old.number == field.number for old in self._old[message].field)
            if known and _oneof_of(new, field.number) == oneof:
                yield field.number

    def _only_buf(self, finding: Finding, ours: set[tuple[str, str, int]]) -> str | None:
        """Return the name of a difference if buf reports something that we do not."""
        if finding.rule in ALWAYS_DIFFERENT:
            return ALWAYS_DIFFERENT[finding.rule]
        message, number = self._owner(finding)
        rules = {rule for rule, name, of in ours if (name, of) == (message, number)}
        match finding.rule:
            case "FIELD_NO_DELETE_UNLESS_NUMBER_RESERVED":
                return None if rules & MISSING_RULES else "removed field"
            case "FIELD_WIRE_COMPATIBLE_TYPE":
                name = None if rules & TYPE_RULES else self._type_difference(finding)
            case "FIELD_WIRE_COMPATIBLE_CARDINALITY":
                name = None if rules & LABEL_RULES else _label_difference(finding)
            case "FIELD_SAME_ONEOF":
                name = None if rules & ONEOF_RULES else self._oneof_difference(message, number)
            case "MESSAGE_SAME_REQUIRED_FIELDS":
                kept = any(field.number == number for field in self._new[message].field)
                name = "relaxed field" if kept else "UNKNOWN"
                name = None if rules & REQUIRED_RULES else name
            case _:
                name = "UNKNOWN"
        return f"UNKNOWN: only buf reports {finding}" if name == "UNKNOWN" else name

    def _type_difference(self, finding: Finding) -> str:
        before, after = finding.before, finding.after
        if (before, after) == ("bytes", "string"):
            return "bytes as string"
        if f"{before} {after}".count("Entry") == 2:
            return "entries of a map"
        if self._is_renumbered_map(finding):
            return "entries of a map"
        if VARINTS.issuperset((before, after)) or self._are_enums(finding):
            return "enum"
        return "UNKNOWN"

    def _oneof_difference(self, message: str, number: int) -> str:
        old, new = (_oneof_of(side[message], number) for side in (self._old, self._new))
        if old is None and len(list(self._members(message, new or ""))) == 1:
            return "single field in a oneof"
        if all(oneof.name != old for oneof in self._new[message].oneof_decl):
            return "whole oneof"
        return "UNKNOWN"

    def _only_ours(self, rule: str, message: str, number: int) -> str | None:
        theirs = {
            finding.rule for finding in self._findings if self._owner(finding) == (message, number)
        }
        expected = {
            "FIELD_NUMERIC_LABEL_CHANGED": {"FIELD_WIRE_COMPATIBLE_CARDINALITY"},
            "REQUIRED_FIELD_ADDED": {"MESSAGE_SAME_REQUIRED_FIELDS"},
            "REQUIRED_FIELD_REMOVED": {"MESSAGE_SAME_REQUIRED_FIELDS"},
            "ONEOF_FIELD_REMOVED": {
                "FIELD_SAME_ONEOF",
                "FIELD_NO_DELETE_UNLESS_NUMBER_RESERVED",
                "FIELD_WIRE_COMPATIBLE_CARDINALITY",
            },
        }
        if theirs & expected.get(rule, {"FIELD_WIRE_COMPATIBLE_TYPE", "FIELD_SAME_ONEOF"}):
            return None
        if rule == "MESSAGE_REMOVED":
            return "removed message"
        new = self._new[message]
        if rule == "ONEOF_FIELD_REMOVED" and any(
            part.start <= number < part.end for part in new.reserved_range
        ):
            return "removed field of a oneof"
        if rule in ONEOF_RULES and self._stays(message, number):
            return None
        return f"UNKNOWN: only we report {rule} for {message}, number {number}"

    def _stays(self, message: str, number: int) -> bool:
        """Return whether a field is in a oneof of the same name on both sides."""
        return len({_oneof_of(side[message], number) for side in (self._old, self._new)}) == 1

    def _owner(self, finding: Finding) -> tuple[str, int]:
        """Return the field that a finding concerns; a map for a finding about its entries."""
        for name, message in self._old.items():
            for field in message.field:
                if field.type_name.endswith(f".{name}.{finding.message}") and any(
                    nested.name == finding.message and nested.options.map_entry
                    for nested in message.nested_type
                ):
                    return name, field.number
        return finding.message, finding.number

    def _is_renumbered_map(self, finding: Finding) -> bool:
        message, number = self._owner(finding)
        return message != finding.message and all(
            field.number != number for field in self._new[message].field
        )

    def _are_enums(self, finding: Finding) -> bool:
        message = self._old.get(finding.message)
        for field in message.field if message is not None else ():
            if field.number == finding.number:
                return field.type == field.TYPE_ENUM
        return finding.before.rpartition(".")[2].startswith("Kind")


def _label_difference(finding: Finding) -> str:
    if "repeated" in (finding.before, finding.after):
        return "list of values"
    return "relaxed field" if finding.before == "required" else "UNKNOWN"


def _oneof_of(message: DescriptorProto, number: int) -> str | None:
    for field in message.field:
        declared = field.HasField("oneof_index") and not field.proto3_optional
        if field.number == number and declared:
            return message.oneof_decl[field.oneof_index].name
    return None


def _number(sides: Sequence[Mapping[str, DescriptorProto]], message: str, name: str) -> int:
    for side in sides:
        for field in side[message].field if message in side else ():
            if field.name == name:
                return field.number
    raise AssertionError(f"{message} has no field {name}")


def _messages(file: FileDescriptorProto) -> Iterator[tuple[str, DescriptorProto]]:
    waiting = list(file.message_type)
    while waiting:
        message = waiting.pop()
        yield message.name, message
        waiting.extend(message.nested_type)


class Recorded(NamedTuple):
    """Findings of buf for one pair.

    Attributes:
        attempt: the attempt that gave the pair, so that the failed ones need not be repeated.
        digest: digest of the pair's texts.
    """

    attempt: int
    digest: str
    findings: Sequence[Finding]


def read_recorded() -> Mapping[int, Recorded]:
    """Return the recorded findings by the seeds of the pairs."""
    return {
        int(seed): Recorded(attempt, digest, [Finding(*finding) for finding in findings])
        for seed, (attempt, digest, findings) in json.loads(RECORDED.read_text()).items()
    }


def record(program: str) -> None:
    """Run buf and store its findings."""
    pairs = {seed: buf_pair(seed) for seed in range(PAIRS)}
    found = run_buf(program, pairs)
    lines = [
        f'"{seed}": {json.dumps([pair.attempt, pair.digest(), found[seed]])}'
        for seed, pair in pairs.items()
    ]
    RECORDED.write_text("{\n" + ",\n".join(lines) + "\n}\n")


if __name__ == "__main__":
    record(sys.argv[1])
