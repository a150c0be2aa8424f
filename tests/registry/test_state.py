"""Properties of the registry's state under random decisions.

A second state gets the rows of each decision late, repeatedly, and in another order, as a broker
does that reads the changes of others in pages.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import msgspec
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from penstock.control.values.registry import RegistryRow
from penstock.registry import decisions
from penstock.registry.decisions import Candidate, Change
from penstock.registry.errors import RegistryError
from penstock.registry.state import RegistryState
from penstock.registry.values import (
    GLOBAL,
    LATEST,
    MODES,
    Association,
    Config,
    Reference,
    Schema,
    Subject,
    guid_of,
)

CONTEXTS = (".", ".a")
SUBJECTS = tuple(Subject(context, name) for context in CONTEXTS for name in ("s", "t"))
SCOPES = (*SUBJECTS, *(Subject(context, "") for context in CONTEXTS))
TEXTS = ("one", "two", "three")

subjects = st.sampled_from(SUBJECTS)
scopes = st.sampled_from(SCOPES)
numbers = st.sampled_from((LATEST, 1, 2, 3))


def contents(state: RegistryState) -> dict[str, Any]:
    """Return everything that requests can read, in an order that does not depend on changes."""
    contexts = {
        name: (
            {subject: dict(sorted(found.items())) for subject, found in context.subjects.items()},
            context.guids,
            {guid: dict(ids) for guid, ids in context.ids.items()},
            state.highest_id(name),
        )
        for name, context in state.contexts.items()
        if context.subjects or state.highest_id(name)
    }
    referrers = {
        (subject, number): state.referrers_of(subject, number, deleted=True)
        for subject in SUBJECTS
        for number in range(1, 12)
    }
    return {
        "schemas": state.schemas,
        "contexts": contexts,
        "configs": state.configs,
        "modes": state.modes,
        "associations": state.associations,
        "sizes": (state.versions, state.bytes),
        "referrers": referrers,
        "users": {guid: state.uses(guid) for guid in state.schemas},
    }


class Registry(RuleBasedStateMachine):
    """Random decisions, the rows they store, and a state that gets these rows later."""

    def __init__(self) -> None:
        super().__init__()
        self.state = RegistryState()
        self.late = RegistryState()
        self.stored: dict[tuple[str, str], RegistryRow] = {}
        self.highest: dict[str, int] = {}
        self.names: dict[tuple[str, int], Any] = {}
        self.unread: set[tuple[str, str]] = set()

    def decide(self, decide: Callable[[RegistryState], Change[Any]]) -> None:
        """Apply a decision if it is permitted, after it has been undone once."""
        before = contents(self.state)
        try:
            change = decide(self.state)
        except RegistryError:
            assert contents(self.state) == before, "a decision changes nothing itself"
            return
        rows = {(row.kind, row.key): row for row in change.rows}
        earlier = [self.state.current(kind, key) for kind, key in reversed(rows)]
        self.state.apply(change.rows)
        after = contents(self.state)
        self.state.apply(earlier)
        undone = contents(self.state)
        assert undone == before, "the current rows restore the state"
        self.state.apply(change.rows)
        assert contents(self.state) == after
        self.stored |= rows
        self.unread |= rows.keys()

    @rule(subject=subjects, text=st.sampled_from(TEXTS), metadata=st.booleans())
    def register(self, subject: Subject, text: str, metadata: bool) -> None:
        schema = Schema(schema=text, metadata={"properties": {"a": "b"}} if metadata else None)
        self.decide(partial(decisions.register, candidate=candidate(subject, schema)))

    @rule(subject=subjects, named=subjects)
    def register_referrer(self, subject: Subject, named: Subject) -> None:
        number = max(self.state.versions_of(named), default=0)
        if not number:
            return
        reference = Reference(name="r", subject=named.qualified, version=number)
        if named.context == "." and subject.context != ".":
            reference = Reference(name="r", subject=f":.:{named.name}", version=number)
        schema = Schema(schema="refers", references=(reference,))
        self.decide(partial(decisions.register, candidate=candidate(subject, schema)))

    @rule(subject=subjects, text=st.sampled_from(TEXTS), given=st.integers(1, 40),
          version=st.one_of(st.none(), st.integers(1, 9)))  # fmt: skip
    def import_schema(self, subject: Subject, text: str, given: int, version: int | None) -> None:
        made = candidate(subject, Schema(schema=text), schema_id=given, version=version)
        if self.state.guid(subject.context, given) is None:
            # An import may give an id again that was deleted permanently.
            self.names.pop((subject.context, given), None)
        self.decide(partial(decisions.register, candidate=made))

    @rule(subject=subjects, permanent=st.booleans())
    def delete_subject(self, subject: Subject, permanent: bool) -> None:
        self.decide(partial(decisions.delete_subject, subject=subject, permanent=permanent))

    @rule(subject=subjects)
    def remove_subject(self, subject: Subject) -> None:
        for permanent in (False, True):
            self.decide(partial(decisions.delete_subject, subject=subject, permanent=permanent))

    @rule(subject=subjects, number=numbers, permanent=st.booleans())
    def delete_version(self, subject: Subject, number: int, permanent: bool) -> None:
        self.decide(
            partial(decisions.delete_version, subject=subject, number=number, permanent=permanent)
        )

    @rule(scope=scopes, mode=st.sampled_from(MODES), force=st.booleans(), stays=st.booleans())
    def set_mode(self, scope: Subject, mode: Any, force: bool, stays: bool) -> None:
        self.decide(partial(decisions.set_mode, subject=scope, mode=mode, force=force))
        if not stays:
            self.permit_everything()

    @rule(scope=scopes, recursive=st.booleans())
    def delete_mode(self, scope: Subject, recursive: bool) -> None:
        self.decide(partial(decisions.delete_mode, subject=scope, recursive=recursive))

    def permit_everything(self) -> None:
        """Delete the modes, so that most of the decisions are permitted."""
        for scope in (Subject(context, "") for context in CONTEXTS):
            self.decide(partial(decisions.delete_mode, subject=scope, recursive=True))

    @rule(scope=scopes, level=st.sampled_from(("NONE", "FULL", None)), normalize=st.booleans())
    def set_config(self, scope: Subject, level: Any, normalize: bool) -> None:
        config = Config(compatibility_level=level, normalize=normalize)
        self.decide(partial(decisions.set_config, subject=scope, config=config))

    @rule(scope=scopes)
    def delete_config(self, scope: Subject) -> None:
        self.decide(partial(decisions.delete_config, subject=scope))

    @rule(subject=subjects, resource=st.sampled_from(("x", "y")), strong=st.booleans(),
          replace=st.booleans())  # fmt: skip
    def associate(self, subject: Subject, resource: str, strong: bool, replace: bool) -> None:
        made = Association(
            subject=subject.qualified,
            guid=guid_of([resource, "value"]),
            resource_name=resource,
            resource_namespace="n",
            resource_id=resource,
            lifecycle="STRONG" if strong else "WEAK",
        )
        self.decide(partial(decisions.associate, associations=[made], replace_existing=replace))

    @rule(resource=st.sampled_from(("x", "y")), cascade=st.booleans())
    def dissociate(self, resource: str, cascade: bool) -> None:
        self.decide(
            partial(
                decisions.dissociate,
                resource_id=resource,
                resource_type=None,
                types=(),
                cascade=cascade,
            )
        )

    @rule(seed=st.integers(0, 1 << 32))
    def read_changes(self, seed: int) -> None:
        """Apply the newest rows of changed keys to the second state: shuffled, some twice."""
        chance = random.Random(seed)
        rows = [self.stored[key] for key in sorted(self.unread)]
        chance.shuffle(rows)
        known = [self.stored[key] for key in sorted(self.stored)]
        self.late.apply(rows)
        self.late.apply(chance.choices(rows, k=len(rows)) if rows else [])
        self.late.apply(chance.sample(known, k=len(known) // 2))
        self.unread.clear()
        assert contents(self.late) == contents(self.state)

    @invariant()
    def ids_only_grow_and_name_one_schema(self) -> None:
        for name, context in self.state.contexts.items():
            highest = self.state.highest_id(name)
            assert highest >= self.highest.get(name, 0)
            self.highest[name] = highest
            for schema_id, guid in context.guids.items():
                assert schema_id <= highest
                assert guid in self.state.schemas
                assert self.names.setdefault((name, schema_id), guid) == guid
            for found in context.subjects.values():
                for version in found.values():
                    assert context.guids[version.id] == version.guid

    @invariant()
    def references_lead_to_schemas(self) -> None:
        for subject in SUBJECTS:
            for version in self.state.all_versions(subject, deleted=True):
                self.state.dependencies(subject, version.schema.references)

    def teardown(self) -> None:
        self.read_changes(0)
        fresh = RegistryState()
        fresh.apply(self.stored[key] for key in sorted(self.stored, reverse=True))
        assert contents(fresh) == contents(self.state), "a restarted broker has the same state"


def candidate(subject: Subject, schema: Schema, **more: int | None) -> Candidate:
    return Candidate(subject=subject, schema=schema, guid=schema.guid(schema.schema), **more)


TestRegistry = Registry.TestCase
TestRegistry.settings = settings(max_examples=60, stateful_step_count=60, deadline=None)


def test_rows_of_one_page_are_applied_in_any_order() -> None:
    """A page may hold a version before its schema, and a schema before its last version."""
    state, made = RegistryState(), RegistryState()
    schema = Schema(schema="one")
    subject = Subject(".", "s")
    change = decisions.register(made, candidate(subject, schema))
    state.apply(reversed(change.rows))
    assert state.version(subject, 1).schema == schema
    gone = [msgspec.structs.replace(row, value=None) if isinstance(row, msgspec.Struct) else
            RegistryRow(row.kind, row.key, None) for row in change.rows]  # fmt: skip
    for rows in (gone, list(reversed(gone))):
        state.apply(rows)
        assert not state.schemas
        assert state.versions == state.bytes == 0


def test_the_rows_of_the_scopes_do_not_depend_on_their_order() -> None:
    rows: Sequence[RegistryRow] = decisions.set_config(
        RegistryState(), GLOBAL, Config(normalize=True)
    ).rows
    state = RegistryState()
    state.apply([*rows, *rows])
    assert state.configs == {GLOBAL: Config(normalize=True)}
