"""Checks of the connections between views, sinks and topics of a pipeline.

Names of views are case-insensitive, as in Spark. References to views that do not exist or are
defined twice are left out of the later checks.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from penstock.spark.pipeline import files
from penstock.spark.pipeline.draft import Draft, RuleDraft, Section, default_otherwise
from penstock.spark.pipeline.kinds import nearest
from penstock.spark.pipeline.locations import Key
from penstock.spark.pipeline.problems import Problem
from penstock.spark.pipeline.spec import KEEPING

_TO_DEAD_LETTERS: Final = frozenset({"dead-letter", "retry"})
"""Actions that end in dead letters; retried records do in the end."""
_WHOSE: Final = {
    "format": "records that cannot be decoded",
    "protect": "values that cannot be decrypted",
}
VIEWS_MAX: Final = 300


@dataclass(frozen=True, slots=True)
class _Read:
    name: str
    file: Path
    line: int | None


def check(draft: Draft) -> None:
    """Check for unknown views, cycles, loops through topics, and rejects without a target."""
    count = len(draft.sources) + len(draft.steps)
    if count > VIEWS_MAX:
        message = f"the pipeline has {count} views, the limit is {VIEWS_MAX}"
        draft.refuse(("step",), message, "split it into several")
        return
    _unknown_views(draft)
    inputs = {name: step_inputs(draft, step) for name, step in draft.steps.items()}
    cycles = _cycles(inputs)
    for cycle in cycles:
        draft.refuse(
            ("step", cycle[0]),
            f"reads itself: {' → '.join([*cycle, cycle[0]])}",
            "take one of these reads away",
        )
    if not cycles:
        _starts(draft, inputs)
    _written_twice(draft)
    _loops(draft)
    _dead_letters(draft)


def step_inputs(draft: Draft, step: Section) -> tuple[str, ...]:
    """Return the views that a step reads, by their names in the file if they exist."""
    known = _known(draft)
    names = (known.get(read.name.lower(), read.name) for read in _step_reads(draft, step))
    return tuple(dict.fromkeys(names))


def view_named(draft: Draft, name: str) -> str:
    """Return a view's name as its table spells it."""
    return _known(draft).get(name.lower(), name)


def _known(draft: Draft) -> dict[str, str]:
    return {view.name.lower(): view.name for view in draft.views()}


def _step_reads(draft: Draft, step: Section) -> Iterator[_Read]:
    document = draft.document
    if step.given("python"):
        for index, name in enumerate(step.get("inputs") or ()):
            key: Key = (*step.key, "inputs")
            written = step.raw["inputs"]
            file, line = document.place((*key, index) if isinstance(written, list) else key)
            yield _Read(name, file, line)
        return
    from penstock.spark.pipeline.sql_views import views_read  # its parser takes half a second

    text = files.sql_text(draft, step)
    for read in views_read(text or ""):
        yield _Read(read.name, *document.sql_place(step.name, read.line))


def _unknown_views(draft: Draft) -> None:
    known = _known(draft)
    for step in draft.steps.values():
        for read in _step_reads(draft, step):
            if read.name.lower() not in known:
                key = (*step.key, *step.which("inputs", "sql", "sql_file")[:1])
                fix = _view_fix(draft, read.name, step)
                where = ".".join(map(str, key))
                message = f"there is no source or step {read.name}"
                draft.problems.append(
                    Problem(file=read.file, line=read.line, where=where, message=message, fix=fix)
                )
    for sink in draft.sinks.values():
        name = sink.get("from")
        if name is not None and name.lower() not in known:
            fix = _view_fix(draft, name)
            draft.refuse((*sink.key, "from"), f"there is no source or step {name}", fix)


def _view_fix(draft: Draft, name: str, reader: Section | None = None) -> str:
    names = tuple(view.name for view in draft.views() if view is not reader)
    close = nearest(name, names)
    if close is not None:
        return f"write {close}"
    if not names:
        return f"add [source.{name}]"
    return f"there are {', '.join(names[:20])}"


def _cycles(inputs: Mapping[str, tuple[str, ...]]) -> list[list[str]]:
    found: list[list[str]] = []
    done: set[str] = set()

    def visit(name: str, path: list[str]) -> None:
        if name in path:
            cycle = path[path.index(name) :]
            first = min(range(len(cycle)), key=lambda at: order[cycle[at]])
            found.append([*cycle[first:], *cycle[:first]])
        elif name in inputs and name not in done:
            for view in inputs[name]:
                visit(view, [*path, name])
            done.add(name)

    order = {name: at for at, name in enumerate(inputs)}
    for name in inputs:
        visit(name, [])
    return found


class _Feeding:
    def __init__(self, draft: Draft, inputs: Mapping[str, tuple[str, ...]]) -> None:
        self._draft = draft
        self._inputs = inputs
        self._kinds: dict[str, frozenset[str]] = {}

    def tables_only(self, name: str) -> bool:
        """Whether all inputs of a view are known, and all of them are tables."""
        return self._fed_by(name) == {"table"}

    def _fed_by(self, name: str) -> frozenset[str]:
        if name not in self._kinds:
            source = self._draft.sources.get(name)
            if source is not None:
                given = source.which("topic", "topics", "pattern", "table")
                kind = {("table",): "table", (): "unknown"}.get(given, "topic")
                self._kinds[name] = frozenset({kind})
            else:
                views = self._inputs.get(name, ())
                fed = [self._fed_by(view) for view in views] or [frozenset({"unknown"})]
                self._kinds[name] = frozenset[str]().union(*fed)
        return self._kinds[name]


def _starts(draft: Draft, inputs: Mapping[str, tuple[str, ...]]) -> None:
    """Reject views that only tables feed: a batch begins when a topic has new records."""
    feeding = _Feeding(draft, inputs)
    known = _known(draft)
    for sink in draft.sinks.values():
        view = known.get((sink.get("from") or "").lower())
        if view is not None and feeding.tables_only(view):
            draft.refuse(
                (*sink.key, "from"),
                f"{view} reads tables only, so nothing would begin a batch",
                "write what a topic feeds",
            )
    for reader in draft.views():
        if feeding.tables_only(reader.name):
            _rules_without_records(draft, reader)


def _rules_without_records(draft: Draft, view: Section) -> None:
    for rule, otherwise in _rules(draft, view.key):
        if otherwise in KEEPING:
            draft.refuse(
                rule.key,
                f"otherwise is {otherwise}, but rows of tables have no record to keep",
                f'write {{that = "{rule.condition}", otherwise = "drop"}}',
            )


def _rules(draft: Draft, key: Key) -> Iterator[tuple[RuleDraft, str]]:
    default = default_otherwise(draft.errors)
    for rule in draft.rules.get(key, ()):
        yield rule, rule.otherwise or default


def _written_twice(draft: Draft) -> None:
    seen: dict[tuple[str, str], Section] = {}
    for sink in draft.sinks.values():
        for kind in ("table", "topic"):
            given = sink.get(kind)
            if given is None:
                continue
            target = table_path(draft, given) if kind == "table" else given
            first = seen.setdefault((kind, target), sink)
            if first is not sink:
                draft.refuse(
                    (*sink.key, kind),
                    f"sink.{first.name} writes {given} too",
                    "write from one sink; union the views in a step before it",
                )


def table_path(draft: Draft, given: str) -> str:
    """Return a table as an absolute path, or as the URI that it is."""
    return given if "://" in given else str(draft.document.path(given))


def _reading(draft: Draft, topic: str) -> Section | None:
    for source in draft.sources.values():
        names = (*(source.get("topics") or ()), *((source.get("topic"),)))
        pattern = source.get("pattern")
        if topic in names or (pattern is not None and re.fullmatch(pattern, topic)):
            return source
    return None


def _loops(draft: Draft) -> None:
    for sink in draft.sinks.values():
        topic = sink.get("topic")
        source = None if topic is None else _reading(draft, topic)
        if source is not None:
            draft.refuse(
                (*sink.key, "topic"),
                f"source.{source.name} reads {topic}, so the pipeline would feed itself",
                "write to another topic",
            )


def _dead_letters(draft: Draft) -> None:
    topic = draft.errors.get("dead_letters")
    if topic is not None:
        _dead_letters_apart(draft, topic)
    elif not draft.errors.given("dead_letters"):
        _dead_letters_missing(draft)


def _dead_letters_apart(draft: Draft, topic: str) -> None:
    key = ("errors", "dead_letters")
    fix = f'name a topic of its own, as "{draft.name}.dead"'
    source = _reading(draft, topic)
    if source is not None:
        draft.refuse(key, f"source.{source.name} reads {topic}", fix)
    for sink in draft.sinks.values():
        if sink.get("topic") == topic:
            draft.refuse(key, f"sink.{sink.name} writes {topic}", fix)


def _unreadable(draft: Draft, view: Section) -> Iterator[Key]:
    protections = draft.protections.get(view.key, ())
    decrypts = any(protection.get("by") == "decrypt" for protection in protections)
    if view.key[0] == "source" and not view.given("table"):
        if view.get("format") not in {None, "raw"}:
            yield (*view.key, "format")
        elif decrypts:
            yield (*view.key, "protect")


def _dead_letters_missing(draft: Draft) -> None:
    fix = f'add to [errors]: dead_letters = "{draft.name}.dead"'
    default = default_otherwise(draft.errors)
    by_default: list[Key] = []
    for view in draft.views():
        by_default += _unreadable(draft, view)
        for rule in draft.rules.get(view.key, ()):
            if rule.otherwise is None:
                by_default.append(rule.key)
            elif rule.otherwise in _TO_DEAD_LETTERS:
                message = f"{rule.otherwise} needs errors.dead_letters"
                draft.refuse(rule.key, message, fix)
    if default not in _TO_DEAD_LETTERS or not by_default:
        return
    if draft.errors.given("on_invalid"):
        draft.refuse(("errors", "on_invalid"), f"{default} needs errors.dead_letters", fix)
    else:
        whose = _WHOSE.get(str(by_default[0][-1]), "rows that do not meet the rule")
        draft.refuse(
            ("errors", "dead_letters"),
            f"names no topic, but {whose} are dead-lettered by default",
            f'{fix}, or on_invalid = "drop"',
            under=by_default[0],
        )
