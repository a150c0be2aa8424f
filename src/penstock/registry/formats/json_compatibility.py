"""Comparison of two JSON schemas: is every document of the writer's schema valid for the reader's?

Each constraint of the reader's schema must follow from the writer's schema. A goal is a subschema
of the reader with the domain of values that the writer can produce in the same place. Goals are
worked off one by one. A goal that comes up again is assumed to hold, so that recursive schemas end.
`anyOf`, `oneOf`, `not` and `if` need attempts; what a failed attempt has assumed is forgotten.

If a pair of schemas is accepted, the reader's schema accepts every document of the writer's schema,
with two documented exceptions. A property with a default may become required. The policy LENIENT
trusts that documents have declared properties only, and that at most one branch of `oneOf` matches.

A rejected pair may have no document that shows it, because some rules are conservative. Patterns,
`contains` and `not` are only compared for equality or containment of whole subschemas. The branches
of `oneOf` must be visibly disjoint. A union of the reader accepts a branch of the writer only if
one of its branches does.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from typing import Final

from penstock.registry.formats.json_document import Node, Schemas
from penstock.registry.formats.json_domain import Domain, Domains
from penstock.registry.formats.json_findings import (
    Aspect,
    Finding,
    Goal,
    Steps,
    named,
    problem,
)
from penstock.registry.formats.json_rules import KeywordRules
from penstock.registry.formats.json_view import Condition, Shapes, View
from penstock.registry.formats.schema import (
    COMPARISONS_MAX,
    PROBLEMS_MAX,
    InvalidSchema,
    Policy,
)

ATTEMPTS_DEPTH: Final = 32
"""Deepest nesting of attempts. A deeper `anyOf`, `oneOf` or `not` counts as incompatible."""
COST: Final = 4
"""Share of `COMPARISONS_MAX` that one goal takes, because goals are slower than pairs of types."""
CLOSEST_MAX: Final = 16
"""Most branches of a union that are searched for the closest one."""
CAUSES_MAX: Final = 8
"""Most causes that are collected in one branch."""

Key = tuple[int, int, Aspect, bool]


class Comparison:
    """Check of one reader's schema against one writer's schema."""

    def __init__(self, reader: Schemas, writer: Schemas, policy: Policy) -> None:
        self._reader, self._writer = reader, writer
        self._policy_lenient = policy == "LENIENT"
        self._spent = 0.0
        self._depth = 0
        self._cuts = 0
        self._reversed = False
        self._domains = Domains((writer, reader), self._spend)
        self._shapes = Shapes(self._domains.view, self._spend)
        self._rules = KeywordRules(
            self._domains, self._holds, self._shapes.same, lambda: self._lenient
        )
        self._held: set[Key] = set()
        self._failed: set[Key] = set()
        self._trail: list[Key] = []

    def findings(self) -> list[Finding]:
        """Return what the reader's schema demands and the writer's schema does not ensure.

        Raises:
            InvalidSchema: the comparison would take too many steps.
        """
        goal = Goal(self._reader.root, self._domains.of([self._writer.root]))
        found: dict[tuple[str, str, str], Finding] = {}
        for finding in self._collect(goal, PROBLEMS_MAX):
            found.setdefault((finding.rule, finding.path, finding.message), finding)
        return list(found.values())

    @property
    def _lenient(self) -> bool:
        return self._policy_lenient and not self._reversed

    def _spend(self, amount: float) -> None:
        self._spent += COST * amount
        if self._spent > COMPARISONS_MAX:
            raise InvalidSchema(
                "the schemas are too complex to compare: they take more than"
                f" {COMPARISONS_MAX // COST} comparisons of subschemas. Use fewer branches in"
                " unions, or give the branches distinct constants."
            )

    # Goals: a queue of goals that must all hold, and attempts that may fail.

    def _collect(self, goal: Goal, limit: int) -> list[Finding]:
        findings: list[Finding] = []
        waiting = deque([goal])
        while waiting:
            for step in self._expand(waiting.popleft()):
                if isinstance(step, Finding):
                    findings.append(step)
                    if len(findings) >= limit:
                        return findings
                elif self._assume(step):
                    waiting.append(step)
        return findings

    def _key(self, goal: Goal) -> Key:
        return (id(goal.reader.schema), id(goal.writer), goal.aspect, self._reversed)

    def _assume(self, goal: Goal) -> bool:
        """Return whether a goal is new, and assume from now on that it holds."""
        if isinstance(goal.reader.schema, bool):
            return not goal.reader.schema
        key = self._key(goal)
        if key in self._held:
            return False
        self._held.add(key)
        self._trail.append(key)
        return True

    def _holds(self, reader: Node, writer: Domain, aspect: Aspect = "all") -> bool:
        """Attempt a goal, and forget what was assumed if it fails."""
        if reader.schema is True or not writer.kinds:
            return True
        goal = Goal(reader, writer, aspect)
        key = self._key(goal)
        if key in self._failed:
            return False
        if key in self._held and reader.schema is not False:
            return True
        if self._depth >= ATTEMPTS_DEPTH:
            self._cuts += 1
            return False
        mark, cuts = len(self._trail), self._cuts
        self._depth += 1
        self._assume(goal)
        held = self._attempt(goal)
        self._depth -= 1
        if not held:
            self._forget(mark)
            if self._cuts == cuts and reader.schema is not False:
                self._failed.add(key)
        return held

    def _attempt(self, goal: Goal) -> bool:
        waiting = [goal]
        while waiting:
            for step in self._expand(waiting.pop()):
                if isinstance(step, Finding):
                    return False
                if self._key(step) in self._failed:
                    return False
                if self._assume(step):
                    waiting.append(step)
        return True

    def _forget(self, mark: int) -> None:
        for key in self._trail[mark:]:
            self._held.discard(key)
        del self._trail[mark:]

    def _expand(self, goal: Goal) -> Steps:
        """Yield the goals that a goal consists of, or the rules that are violated."""
        self._spend(1)
        view, writer = self._domains.view(goal.reader), goal.writer
        if view.anything or self._domains.is_empty(writer):
            return
        if goal.aspect != "all":
            yield from self._aspect(view, goal)
            return
        if self._is_part(goal.reader, writer):
            return
        for node in (*view.targets, *view.all_of):
            yield Goal(node, writer)
        own = Goal(goal.reader, writer, "own")
        if self._cases(own):
            yield own
        else:
            yield from self._direct(view, own)
        if view.any_of:
            yield Goal(goal.reader, writer, "anyOf")
        if view.one_of:
            yield Goal(goal.reader, writer, "oneOf")
        if view.negated is not None:
            yield Goal(goal.reader, writer, "not")
        if view.condition is not None:
            yield Goal(goal.reader, writer, "if")

    def _is_part(self, reader: Node, writer: Domain) -> bool:
        """Whether one of the writer's subschemas has the same constraints."""
        self._spend(len(writer.parts) / 16)
        number = self._shapes.number(reader)
        return any(
            self._shapes.number(part.node) == number and self._shapes.same(reader, part.node)
            for part in writer.parts
        )

    def _aspect(self, view: View, goal: Goal) -> Steps:
        """Compare one aspect directly, or for each case of the writer's values."""
        cases = self._cases(goal)
        if not cases:
            yield from self._direct(view, goal)
            return
        if goal.aspect in ("own", "not", "if"):
            mark = len(self._trail)
            self._depth += 1
            held = self._depth <= ATTEMPTS_DEPTH and self._attempt_direct(view, goal)
            self._depth -= 1
            if held:
                return
            self._forget(mark)
        for case in cases:
            yield Goal(goal.reader, case, goal.aspect)

    def _attempt_direct(self, view: View, goal: Goal) -> bool:
        for step in self._direct(view, goal):
            if isinstance(step, Finding):
                return False
            if not self._holds(step.reader, step.writer, step.aspect):
                return False
        return True

    def _cases(self, goal: Goal) -> list[Domain]:
        writer = goal.writer
        composite = bool(writer.kinds & {"object", "array"})
        if goal.aspect == "own" and not writer.unions and not (writer.values and composite):
            return []
        return self._domains.cases(writer, split_kinds=goal.aspect != "own")

    def _direct(self, view: View, goal: Goal) -> Steps:
        match goal.aspect:
            case "anyOf":
                yield from self._any_of(view, goal.writer)
            case "oneOf":
                yield from self._one_of(view, goal.writer)
            case "not":
                yield from self._not(view, goal.writer)
            case "if":
                yield from self._if(view, goal.writer)
            case _:
                yield from self._rules.steps(view, goal.writer)

    # Unions

    def _any_of(self, view: View, writer: Domain) -> Steps:
        if len(view.any_of) == 1 and not writer.opened:
            yield Goal(view.any_of[0], writer)
        elif not any(self._holds(node, writer) for node in self._likely(view.any_of, writer)):
            yield self._no_branch(view, "anyOf", view.any_of, writer)

    def _one_of(self, view: View, writer: Domain) -> Steps:
        if len(view.one_of) == 1 and not writer.opened:
            yield Goal(view.one_of[0], writer)
            return
        fitting = next(
            (node for node in self._likely(view.one_of, writer) if self._holds(node, writer)), None
        )
        if fitting is None:
            yield self._no_branch(view, "oneOf", view.one_of, writer)
            return
        if self._lenient:
            return
        self._spend(len(view.one_of) / 10)
        for index, node in enumerate(view.one_of):
            if node is fitting or self._is_excluded(node, writer):
                continue
            yield problem(
                "SUM_TYPE_OVERLAPS",
                view,
                ("oneOf", index),
                writer,
                demands=f"has the branches {fitting.place} and {node.place}, which may both match",
                offers="allows values that one of them accepts",
                remedy=(
                    "Use anyOf, give the branches a required property with distinct constants, or"
                    " set the compatibility policy to LENIENT."
                ),
                subject=index,
            )

    def _likely(self, nodes: Sequence[Node], writer: Domain) -> Iterator[Node]:
        """Yield the branches that can hold, those equal to the writer's schema first."""
        self._spend(len(nodes) / 10)
        shapes = {self._shapes.number(part.node) for part in writer.parts}
        equal = [node for node in nodes if self._shapes.number(node) in shapes]
        yield from equal
        tried = {node.key for node in equal}
        for node in nodes:
            domain = self._domains.single(node)
            if (
                node.key not in tried
                and writer.kinds <= domain.kinds
                and not self._domains.are_disjoint(writer, domain)
            ):
                yield node

    def _is_excluded(self, node: Node, writer: Domain) -> bool:
        """Whether no value of the writer conforms to a branch."""
        if self._domains.are_disjoint(writer, self._domains.single(node)):
            return True
        if self._domains.is_empty(self._domains.narrowed(writer, node)):
            return True
        for union, chosen in writer.chosen:
            self._spend(len(union.branches) / 8)
            for (other,) in union.branches:
                if other is not chosen and (
                    self._shapes.same(node, other) or self._contains(other, node)
                ):
                    return True
        return False

    def _contains(self, outer: Node, inner: Node) -> bool:
        """Whether all values of a subschema conform to another one, whatever the policy is."""
        before, self._reversed = self._reversed, True
        held = self._holds(outer, self._domains.single(inner))
        self._reversed = before
        return held

    def _no_branch(
        self, view: View, keyword: str, nodes: Sequence[Node], writer: Domain
    ) -> Finding:
        causes = self._closest(nodes, writer) if self._depth == 0 else []
        kinds = frozenset[str]().union(*(self._domains.single(node).kinds for node in nodes))
        unions = [part for part in writer.parts if part.any_of or part.one_of]
        if writer.kinds.isdisjoint(kinds):
            rule = "SUM_TYPE_NARROWED" if unions else "TYPE_CHANGED"
        elif unions and max(len(part.any_of or part.one_of) for part in unions) > len(nodes):
            rule = "SUM_TYPE_NARROWED"
        else:
            rule = "COMBINED_TYPE_SUBSCHEMAS_CHANGED"
        reason = _innermost(causes[0]).message if causes else ""
        return problem(
            rule,
            view,
            (keyword,),
            writer,
            demands=f"has no branch that accepts all {named(writer.kinds)} values of the writer",
            offers=f"allows {named(writer.kinds)}",
            remedy="Add a branch for these values."
            + (f" In the closest branch: {reason}" if reason else ""),
            causes=tuple(causes),
        )

    def _closest(self, nodes: Sequence[Node], writer: Domain) -> list[Finding]:
        """Return the findings of the branch that has the fewest."""
        best: list[Finding] = []
        likely = [
            node for node in nodes if not writer.kinds.isdisjoint(self._domains.single(node).kinds)
        ]
        for node in likely[:CLOSEST_MAX]:
            mark = len(self._trail)
            findings = self._collect(Goal(node, writer), CAUSES_MAX)
            self._forget(mark)
            if findings and (not best or len(findings) < len(best)):
                best = findings
        return best

    # Negations and conditions

    def _not(self, view: View, writer: Domain) -> Steps:
        node = view.negated
        if node is None:
            return
        written = [part.negated for part in writer.parts if part.negated is not None]
        if self._is_excluded(node, writer) or any(self._contains(old, node) for old in written):
            return
        yield problem(
            "NOT_TYPE_EXTENDED",
            view,
            ("not",),
            writer,
            demands="excludes values by not",
            offers="excludes fewer values" if written else "does not visibly exclude them",
            remedy="Keep the writer's not, or remove the keyword.",
        )

    def _if(self, view: View, writer: Domain) -> Steps:
        condition = view.condition
        if condition is None:
            return
        written = [
            part.condition
            for part in writer.parts
            if part.condition is not None and self._shapes.same(part.condition.test, condition.test)
        ]
        if not self._then_holds(condition, written, writer):
            yield self._condition_changed(view, "then", writer)
        if not self._else_holds(condition, written, writer):
            yield self._condition_changed(view, "else", writer)

    def _then_holds(
        self, condition: Condition, written: Sequence[Condition], writer: Domain
    ) -> bool:
        if condition.then is None:
            return True
        more = [found.then for found in written if found.then is not None]
        return self._holds(condition.then, self._domains.narrowed(writer, condition.test, *more))

    def _else_holds(
        self, condition: Condition, written: Sequence[Condition], writer: Domain
    ) -> bool:
        if condition.otherwise is None:
            return True
        more = [found.otherwise for found in written if found.otherwise is not None]
        return self._holds(condition.otherwise, self._domains.narrowed(writer, *more)) or (
            self._holds(condition.test, writer)
        )

    @staticmethod
    def _condition_changed(view: View, keyword: str, writer: Domain) -> Finding:
        return problem(
            "CONDITION_CHANGED",
            view,
            (keyword,),
            writer,
            demands=f"restricts some values by if and {keyword}",
            offers="does not visibly ensure it",
            remedy=f"Keep the writer's if and {keyword}, or remove them.",
            subject=keyword,
        )


def _innermost(finding: Finding) -> Finding:
    while finding.causes:
        finding = finding.causes[0]
    return finding
