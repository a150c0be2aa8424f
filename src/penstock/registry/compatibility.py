"""Compatibility of a new schema with earlier versions, and the edit that a refusal proposes.

| level    | checked                                              |
|----------|------------------------------------------------------|
| BACKWARD | the new schema reads data of the newest version      |
| FORWARD  | the newest version reads data of the new schema      |
| FULL     | both                                                 |
| NONE     | nothing                                              |

The levels that end with `_TRANSITIVE` check all versions.

Source: Confluent's Schema Registry documentation, "Schema Evolution and Compatibility".
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Final, NamedTuple

from msgspec import Struct
from msgspec.structs import replace

from penstock.registry.formats.schema import (
    PROBLEMS_MAX,
    Incompatibility,
    InvalidSchema,
    ParsedSchema,
    Policy,
)
from penstock.registry.values import Level

EDITS_MAX: Final = 50
"""Most successive edits that are tried for a proposal."""
SHOWN_MAX: Final = 10
"""Most incompatibilities that one message lists."""
PROBLEM_CHARS_MAX: Final = 2_000
"""Length from which the path, and the message, of an incompatibility are shortened."""
PROPOSAL_CHARS_MAX: Final = 20_000
"""Length above which a message names the proposal's size instead of its text."""


class Earlier(NamedTuple):
    """Earlier version with which a schema is compared."""

    number: int
    schema: ParsedSchema


class Finding(Struct, frozen=True, kw_only=True):
    """Incompatibilities with one version; `reads` means that the new schema was the reader."""

    version: int
    reads: bool
    problems: Sequence[Incompatibility]


class Verdict(Struct, frozen=True, kw_only=True):
    """Result of a check. `proposal` is the text of a compatible edit, or empty if none is known."""

    findings: Sequence[Finding] = ()
    proposal: str = ""

    @property
    def compatible(self) -> bool:
        return not self.findings

    def messages(self, level: Level) -> list[str]:
        """Return a text for each incompatibility, then one with the proposed edit."""
        problems = [(finding, problem) for finding in self.findings for problem in finding.problems]
        texts = [
            f"{{rule: {problem.rule}, path: '{problem.path}', version: {finding.version},"
            f" {_sides(finding)}: {problem.message}}}"
            for finding, problem in problems[:SHOWN_MAX]
        ]
        if len(problems) > SHOWN_MAX:
            texts.append(f"{{{len(problems) - SHOWN_MAX} more incompatibilities}}")
        if problems:
            texts.append(f"{{compatibility: {level}}}")
        if len(self.proposal) > PROPOSAL_CHARS_MAX:
            texts.append(
                f"{{proposed edit: a schema of {len(self.proposal)} characters; run penstock"
                " schema check to print it}"
            )
        elif self.proposal:
            texts.append(f"{{proposed edit, which is compatible: {self.proposal}}}")
        return texts


def _reported(findings: Iterable[Finding]) -> Iterator[Finding]:
    """Yield findings with at most `PROBLEMS_MAX` problems in all, whose texts are shortened."""
    left = PROBLEMS_MAX
    for finding in findings:
        problems = [
            replace(problem, path=_shortened(problem.path), message=_shortened(problem.message))
            for problem in finding.problems[:left]
        ]
        yield replace(finding, problems=problems)
        left -= len(problems)
        if not left:
            return


def _shortened(text: str) -> str:
    return text if len(text) <= PROBLEM_CHARS_MAX else f"{text[:PROBLEM_CHARS_MAX]}…"


def _sides(finding: Finding) -> str:
    if finding.reads:
        return f"the new schema cannot read data of version {finding.version}"
    return f"version {finding.version} cannot read data of the new schema"


def directions(level: Level) -> tuple[bool, ...]:
    """Return for each direction that a level checks whether the new schema is the reader."""
    if level == "NONE":
        return ()
    if level.startswith("BACKWARD"):
        return (True,)
    return (False,) if level.startswith("FORWARD") else (True, False)


def is_transitive(level: Level) -> bool:
    return level.endswith("_TRANSITIVE")


def check(
    new: ParsedSchema,
    earlier: Sequence[Earlier],
    level: Level,
    policy: Policy = "STRICT",
    *,
    proposes: bool = True,
) -> Verdict:
    """Compare a schema with earlier versions.

    At most `PROBLEMS_MAX` incompatibilities are returned. If there are some and `proposes` is true,
    look for a compatible edit.

    Raises:
        InvalidSchema: a comparison exceeds its limit.
    """
    findings = list(_reported(_findings(new, earlier, level, policy)))
    if not findings:
        return Verdict()
    if not proposes:
        return Verdict(findings=findings)
    return Verdict(findings=findings, proposal=propose(new, earlier, level, policy))


def _findings(
    new: ParsedSchema, earlier: Sequence[Earlier], level: Level, policy: Policy
) -> Iterator[Finding]:
    for number, old in earlier:
        if type(old) is not type(new):
            problem = Incompatibility(
                rule="SCHEMA_TYPE_CHANGED",
                path="/",
                message=(
                    f"the new schema is of type {new.schema_type}, version {number} of type"
                    f" {old.schema_type}"
                ),
            )
            yield Finding(version=number, reads=True, problems=[problem])
            continue
        for reads in directions(level):
            reader, writer = (new, old) if reads else (old, new)
            problems = reader.check_reads(writer, policy)
            if problems:
                yield Finding(version=number, reads=reads, problems=problems)


def propose(new: ParsedSchema, earlier: Sequence[Earlier], level: Level, policy: Policy) -> str:
    """Return the text of an edit of `new` that is compatible; empty if none was found.

    Edits accumulate: each one resolves the problems with one version in one direction. If they do
    not lead to a compatible schema, the newest version of the same type is proposed, which adds
    nothing. A proposal is parsed and checked before it is returned.
    """
    candidate = new
    for _ in range(EDITS_MAX):
        found = next(_findings(candidate, earlier, level, policy), None)
        if found is None:
            return candidate.text
        old = next(schema for number, schema in earlier if number == found.version)
        if type(old) is not type(candidate):
            break
        try:
            edited = candidate.edited(old, found.problems, reads=found.reads, policy=policy)
        except InvalidSchema:
            break
        if edited is None or edited.text == candidate.text:
            break
        candidate = edited
    _, newest = earlier[-1]
    if next(_findings(newest, earlier, level, policy), None) is None:
        return newest.text
    return ""
