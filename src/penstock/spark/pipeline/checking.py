"""Checks of a pipeline's file beyond single values; they report all problems at once.

Every check adds problems to the draft. No check needs Spark or a broker. A check skips values that
are missing or already reported, so each mistake is reported once. Names of views are
case-insensitive, as in Spark. Later checks ignore references to views that do not exist or are
defined twice. Checks of other files are in `draft.py`.
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from penstock.base.document import Key, Problem, in_order
from penstock.base.settings import by_name
from penstock.formats.value_format import DEBEZIUM, INFER, is_schema_file
from penstock.formats.value_format import KINDS as FORMATS
from penstock.security.data.masks import KINDS as MASKS
from penstock.security.data.masks import InvalidTokenForm, TokenForm
from penstock.spark.pipeline.draft import (
    NAME_CHARS_MAX,
    Draft,
    Section,
    check_files,
    sql_text,
)
from penstock.spark.pipeline.kinds import nearest
from penstock.spark.pipeline.spec import (
    KEEPING,
    NAMED,
    REGISTRY_VARIABLE,
    Evolve,
    FormatKeys,
    IcebergSink,
    Protection,
    TableSink,
    TopicSink,
)

VIEWS_MAX: Final = 300
_VIEW_NAME: Final = re.compile(r"[A-Za-z][A-Za-z0-9_]*")
_SINK_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_RESERVED: Final = frozenset(
    {"from", "join", "lateral", "select", "stream", "table", "values", "with"}
)
"""Words of SQL that Spark does not accept as names of tables."""
_TABLE_KEYS: Final = (*by_name(TableSink), *by_name(Evolve))
_ICEBERG_KEYS: Final = (*by_name(IcebergSink), *by_name(Evolve))
_TOPIC_KEYS: Final = tuple(by_name(TopicSink))
_TO_DEAD_LETTERS: Final = frozenset({"dead-letter", "retry"})
"""Actions that may end in a dead letter: `retry` does after its last try."""
_DEAD_LETTERED: Final = {
    "format": "records that cannot be decoded",
    "protect": "values that cannot be decrypted",
}
_COMPARED: Final = ("keys", "order_by", "partition_by")
"""Keys of table sinks whose columns are compared for equality."""

Choices = Mapping[str, Mapping[str, str]]
"""For each key, the values of another key that allow it; with an example, they require it."""
_OF_FORMAT: Final[Choices] = {
    "schema": {
        "json": '"id bigint, name string", or "infer"',
        DEBEZIUM: '"id bigint, name string", the columns of the table',
    },
    "schema_file": {
        "json-schema": '"{name}.json"', "avro": '"{name}.avsc"', "protobuf": '"{name}.proto"',
    },
    "message": {"protobuf": '"package.Message"', "registry": ""},
    "framing": dict.fromkeys(("json", "json-schema", "avro", "protobuf"), ""),
    "decimals": dict.fromkeys((kind for kind in FORMATS if kind not in ("raw", "text")), ""),
    "unknown_fields": dict.fromkeys(("json", "json-schema", "registry", DEBEZIUM), ""),
    "decimal_handling": {DEBEZIUM: ""},
    "milliseconds": {DEBEZIUM: ""},
    **{key: {"registry": ""} for key in ("registry", "registry_config", "subject", "reader")},
    "envelope": {"registry": ""},
}  # fmt: skip
_OF_FRAMING: Final[Choices] = {"ids": {"confluent": ""}}
_OF_MODE: Final[Choices] = {
    "keys": dict.fromkeys(("upsert", "cdc"), '["id"], the columns that name a row'),
    "order_by": dict.fromkeys(("upsert", "cdc"), ""),
    "partition_by": {"append": ""},
    "delete_when": {"cdc": "\"op = 'd'\", or let the mode be upsert"},
}
_OF_PROTECTION: Final[Choices] = {
    **{key: {"mask": ""} for key in ("kind", "first", "last", "text")},
    **{key: {"tokenize": ""} for key in ("field", "form", "length")},
    "subject": dict.fromkeys(("encrypt", "decrypt"), '"customer", whose key it is'),
    "gives": {"decrypt": ""},
}
_OF_MASK: Final[Choices] = {
    "first": {"keep": ""},
    "last": {"keep": ""},
    "text": {kind: "" for kind in MASKS if kind != "keep"},
}


def check(draft: Draft) -> tuple[Problem, ...]:
    """Return all problems of a draft, conversion problems included, in the order of the lines."""
    _names(draft)
    for source in draft.sources.values():
        _source(draft, source)
    for step in draft.steps.values():
        _step(draft, step)
    for sink in draft.sinks.values():
        _sink(draft, sink)
    _retries(draft)
    _protections(draft)
    check_files(draft)
    _connections(draft)
    return in_order(draft.problems, draft.document.file)


def _names(draft: Draft) -> None:
    seen: dict[str, Section] = {}
    for view in draft.views():
        _view_name(draft, view)
        first = seen.setdefault(view.name.lower(), view)
        if first is not view:
            draft.refuse(
                view.key,
                f"the name is taken by {first.key[0]}.{first.name}",
                "rename one of them: both are views in SQL, where names are case-insensitive",
            )
    for sink in draft.sinks.values():
        if not _SINK_NAME.fullmatch(sink.name) or len(sink.name) > NAME_CHARS_MAX:
            draft.refuse(
                sink.key,
                f"{sink.name[:40]!r} cannot name a sink",
                f"use at most {NAME_CHARS_MAX} letters, digits, ., _ and -",
            )
    meant = {nearest(name, tuple(NAMED)) for name in draft.document.values}
    for kind in ("source", "sink"):
        if kind not in meant:
            fix = 'topic = "…"' if kind == "source" else 'from = "…" and table = "…"'
            draft.refuse((kind,), "there is none", f"add [{kind}.NAME] with {fix}")


def _view_name(draft: Draft, view: Section) -> None:
    if not _VIEW_NAME.fullmatch(view.name) or len(view.name) > NAME_CHARS_MAX:
        fix = f"use at most {NAME_CHARS_MAX} letters, digits and _, beginning with a letter"
        draft.refuse(view.key, f"{view.name[:40]!r} cannot name a view", fix)
    elif view.name.lower() in _RESERVED:
        draft.refuse(
            view.key, f"{view.name!r} is a word of SQL", f"choose another name, as {view.name}_rows"
        )


def _exactly_one(draft: Draft, section: Section, *names: str) -> str | None:
    given = section.which(*names)
    if len(given) == 1:
        return given[0]
    listed = _listed(names)
    if given:
        both = " and ".join(given)
        draft.refuse(
            section.key,
            f"has {both}; exactly one of {listed} must be set",
            f"keep one of {both}",
            under=(*section.key, given[1]),
        )
    else:
        draft.refuse(section.key, f"has none of {listed}", f'add {names[0]} = "…"')
    return None


def _listed(names: Collection[str]) -> str:
    *others, last = names
    return f"{', '.join(others)} and {last}" if others else last


def _only_for(draft: Draft, section: Section, names: tuple[str, ...], whose: str) -> None:
    for name in section.which(*names):
        draft.refuse((*section.key, name), f"is only for {whose}", f"remove {name}")


def _needs(draft: Draft, section: Section, name: str, why: str, example: str) -> None:
    if not section.given(name):
        draft.refuse(section.key, f"{why} needs {name}", f"add {name} = {example}")


def _chosen(
    draft: Draft, section: Section, part: type[Any], by: str, choices: Choices
) -> str | None:
    """Check the keys that depend on the key `by`, such as `format` or `mode`; return its value.

    Report keys that this value does not allow, and missing keys that it requires.
    """
    found = section.get(by) if section.given(by) else by_name(part)[by].default
    if found is None:
        return None
    value = str(found)
    what = "this" if by == "by" else f"the {by}"
    for name, examples in choices.items():
        if value not in examples and section.given(name):
            said = f"is only for {_listed(examples)}, but {what} is {value}"
            other = f', or write mode = "{next(iter(examples))}"' if by == "mode" else ""
            draft.refuse((*section.key, name), said, f"remove {name}{other}")
        elif example := examples.get(value):
            _needs(draft, section, name, value, example.format(name=section.name))
    return value


def _source(draft: Draft, source: Section) -> None:
    kind = _exactly_one(draft, source, "topic", "topics", "pattern", "table")
    if kind == "table":
        decoding = (*by_name(FormatKeys), "start", "outbox", "protect")
        _only_for(draft, source, decoding, "topics, but this is a table")
    else:
        _chosen(draft, source, FormatKeys, "framing", _OF_FRAMING)
        value_format = _chosen(draft, source, FormatKeys, "format", _OF_FORMAT)
        if value_format == "registry":
            _registry(draft, source, kind)
        if has_changes(source):
            _only_for(draft, source, ("outbox",), "values that are no change events")
        if value_format == DEBEZIUM and source.get("schema") == INFER:
            fix = 'write the columns of the table: "id bigint, name string"'
            draft.refuse((*source.key, "schema"), "debezium cannot infer a schema", fix)
    if kind == "pattern":
        _only_for(draft, source, ("outbox",), "a topic, but this is a pattern")
    _watermark(draft, source)


def _registry(draft: Draft, source: Section, kind: str | None) -> None:
    if not source.given("registry") and not os.environ.get(REGISTRY_VARIABLE):
        fix = f'add registry = "http://127.0.0.1:8081", or set {REGISTRY_VARIABLE}'
        draft.refuse(source.key, "registry needs the address of a schema registry", fix)
    several = kind == "pattern" or len(source.get("topics") or ()) > 1
    if several and not source.given("subject") and not is_schema_file(source.get("reader") or ""):
        said = "values come from several topics, so the reader's schema needs a subject"
        draft.refuse(source.key, said, 'add subject = "…"')


def _watermark(draft: Draft, view: Section) -> None:
    if view.given("time"):
        _needs(draft, view, "delay", "time", '"10 minutes", how late rows may come')
    elif view.given("delay"):
        _needs(draft, view, "time", "delay", '"at", the column with the time of the event')
    elif view.given("deduplicate"):
        draft.refuse(
            (*view.key, "deduplicate"),
            "needs time and delay, which bound its state",
            'add time = "at" and delay = "10 minutes"',
        )


def _step(draft: Draft, step: Section) -> None:
    kind = _exactly_one(draft, step, "sql", "sql_file", "python")
    if kind == "python":
        _needs(draft, step, "inputs", "python", '["…"], the views it is given')
    elif kind is not None:
        _only_for(draft, step, ("inputs",), "python: the inputs of SQL are found in its text")
    _watermark(draft, step)


def _sink(draft: Draft, sink: Section) -> None:
    if not sink.given("from"):
        draft.refuse(sink.key, "has no from", 'add from = "…", the source or step to write')
    if sink.given("console") and sink.raw["console"] is False:
        draft.refuse((*sink.key, "console"), "false would write nothing", "remove the sink")
    kind = _exactly_one(draft, sink, "table", "iceberg", "topic", "console")
    if kind in {"table", "iceberg"}:
        own = _TABLE_KEYS if kind == "table" else _ICEBERG_KEYS
        _only_for(draft, sink, _without(_TOPIC_KEYS, own), "topics, but this is a table")
        _only_for(draft, sink, _without(_ICEBERG_KEYS, own), "Iceberg tables")
        _table_sink(draft, sink)
    elif kind == "topic":
        tables = (*dict.fromkeys((*_ICEBERG_KEYS, *_TABLE_KEYS)),)
        _only_for(draft, sink, _without(tables, _TOPIC_KEYS), "tables, but this is a topic")
        if sink.get("ordered"):
            _needs(draft, sink, "key", "ordered", '"id", whose order is kept')
    elif kind == "console":
        keys = (*dict.fromkeys((*_TABLE_KEYS, *_ICEBERG_KEYS, *_TOPIC_KEYS)),)
        _only_for(draft, sink, keys, "tables and topics")


def _without(keys: tuple[str, ...], others: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(key for key in keys if key not in others)


def _table_sink(draft: Draft, sink: Section) -> None:
    if sink.given("add_columns"):
        _only_for(draft, sink, ("evolve",), "sinks without add_columns, which has the same meaning")
    choices = {
        key: modes
        for key, modes in _OF_MODE.items()
        if key != "partition_by" or not sink.given("iceberg")
    }
    changes = _has_changes(draft, sink.get("from") or "")
    if changes:
        choices["delete_when"] = {"cdc": ""}
    mode = _chosen(draft, sink, TableSink, "mode", choices)
    if mode != "cdc" or sink.given("delete_when"):
        _only_for(draft, sink, ("history",), "cdc of change events, without delete_when")
    elif changes:
        whose = "rows that are no change events, which are applied in the order of the database"
        _only_for(draft, sink, ("order_by",), whose)
    order_by = sink.get("order_by")
    if mode not in {None, "append"} and order_by and order_by in (sink.get("keys") or ()):
        draft.refuse(
            (*sink.key, "order_by"),
            f"{order_by} is one of the keys, which do not change",
            "name a column that increases with each change, or remove order_by",
        )


def has_changes(source: Section) -> bool:
    """Return whether the values of a source are change events."""
    return DEBEZIUM in (source.get("format"), source.get("envelope"))


def _has_changes(draft: Draft, name: str) -> bool:
    """Return whether a view is a source of change events, or reads one at any distance."""
    events = {key for key, source in draft.sources.items() if has_changes(source)}
    seen: set[str] = set()
    waiting = [view_named(draft, name)] if events else []
    while waiting:
        view = waiting.pop()
        if view in events:
            return True
        if view in draft.steps and view not in seen:
            waiting += step_inputs(draft, draft.steps[view])
        seen.add(view)
    return False


def _retries(draft: Draft) -> None:
    if draft.errors.given("retry_delays"):
        return
    rules = (rule for view in draft.views() for rule in view.rules)
    keys: list[Key] = [rule.key for rule in rules if rule.get("otherwise") == "retry"]
    if draft.errors.get("on_invalid") == "retry":
        keys.append(("errors", "on_invalid"))
    for key in keys:
        draft.refuse(
            key,
            "retry needs errors.retry_delays",
            'add to [errors]: retry_delays = ["10 seconds", "1 minute", "10 minutes"]',
        )


def _protections(draft: Draft) -> None:
    """Check protections as far as the file alone shows; `analysis.py` checks columns and types."""
    for view in draft.views():
        for protection in view.protections:
            _protection(draft, protection)
            if protection.get("by") == "decrypt" and view.key[0] == "step":
                draft.refuse(
                    protection.key,
                    "decrypt is for sources of topics, but this is a step",
                    "decrypt it in the source",
                )
    _keyring(draft)
    _encrypted_columns(draft)


def _protection(draft: Draft, protection: Section) -> None:
    by = _chosen(draft, protection, Protection, "by", _OF_PROTECTION)
    if by == "mask":
        kind = _chosen(draft, protection, Protection, "kind", _OF_MASK)
        if kind == "keep" and not protection.which("first", "last"):
            draft.refuse(protection.key, "keep needs first or last", "add last = 4")
    if by == "tokenize":
        given = protection.values
        try:
            TokenForm(**{name: given[name] for name in ("form", "length") if name in given})
        except InvalidTokenForm as error:
            fix = "choose another length, or another form"
            key = (*protection.key, *protection.which("length", "form")[:1])
            draft.refuse(key, str(error), fix)


def _keyring(draft: Draft) -> None:
    if draft.run.given("keys"):
        return
    protections = [protection for view in draft.views() for protection in view.protections]
    first = next((each for each in protections if each.get("by") != "mask"), None)
    if first is not None:
        draft.refuse(
            ("run", "keys"),
            f"names no keyring, but {first.get('by')} needs one",
            'make one with `penstock keys init`, and add keys = "…" to [run]',
            under=first.key,
        )
    if draft.run.given("master_key"):
        draft.refuse(
            ("run", "master_key"), "needs a keyring, but keys is not set", 'add keys = "…" to [run]'
        )


def _encrypted_columns(draft: Draft) -> None:
    """Reject keys that compare an encrypted column: equal values get different ciphertexts."""
    sealed = {
        view.name.lower(): {each.name for each in view.protections if each.get("by") == "encrypt"}
        for view in draft.views()
    }
    compared: list[tuple[Section, str, str]] = [
        (view, "deduplicate", view.name) for view in draft.views()
    ]
    compared += [
        (sink, name, sink.get("from") or "") for sink in draft.sinks.values() for name in _COMPARED
    ]
    for section, name, view_name in compared:
        given = section.get(name) or ()
        for column in (given,) if isinstance(given, str) else given:
            if column in sealed.get(view_name.lower(), ()):
                draft.refuse(
                    (*section.key, name),
                    f"{column} is encrypted: equal values get different ciphertexts",
                    "use tokenize: equal values get equal tokens",
                )


@dataclass(frozen=True, slots=True)
class _Read:
    name: str
    file: Path
    line: int | None


def _connections(draft: Draft) -> None:
    """Check how sources, steps, sinks and topics are connected.

    Report unknown views, cycles, targets written twice, loops through topics, and dead letters
    without a topic.
    """
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
            "remove one of these reads",
        )
    if not cycles:
        _starts(draft, inputs)
    _written_twice(draft)
    _loops(draft)
    _dead_letters(draft)


def step_inputs(draft: Draft, step: Section) -> tuple[str, ...]:
    """Return the names of the views that a step reads, spelled as in the file if they exist."""
    known = _known(draft)
    names = (known.get(read.name.lower(), read.name) for read in _step_reads(draft, step))
    return tuple(dict.fromkeys(names))


def view_named(draft: Draft, name: str) -> str:
    """Return a view's name as the file spells it, or the name itself if no view has it."""
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

    text = sql_text(draft, step)
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
    """Reject sinks whose view reads tables only: only new records of a topic begin a batch."""
    feeding = _Feeding(draft, inputs)
    known = _known(draft)
    for sink in draft.sinks.values():
        view = known.get((sink.get("from") or "").lower())
        if view is not None and feeding.tables_only(view):
            draft.refuse(
                (*sink.key, "from"),
                f"{view} reads tables only, so nothing would begin a batch",
                "name a view that reads a topic",
            )
    for reader in draft.views():
        if feeding.tables_only(reader.name):
            _rules_without_records(draft, reader)


def _rules_without_records(draft: Draft, view: Section) -> None:
    for rule in view.rules:
        otherwise = draft.otherwise(rule)
        if otherwise in KEEPING:
            draft.refuse(
                rule.key,
                f"otherwise is {otherwise}, but rows of tables have no record to keep",
                f'write {{that = "{rule.get("that")}", otherwise = "drop"}}',
            )


def _written_twice(draft: Draft) -> None:
    seen: dict[tuple[str, str], Section] = {}
    for sink in draft.sinks.values():
        for kind in ("table", "iceberg", "topic"):
            target = sink.get(kind)
            first = sink if target is None else seen.setdefault((kind, target), sink)
            if first is not sink:
                draft.refuse(
                    (*sink.key, kind),
                    f"sink.{first.name} writes {sink.raw[kind]} too",
                    "write from one sink; union the views in a step before it",
                )


def _reading(draft: Draft, topic: str) -> Section | None:
    for source in draft.sources.values():
        names = (source.get("topics") or ()) + (source.get("topic") or ())
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


def _undecodable(view: Section) -> Iterator[Key]:
    decrypts = any(protection.get("by") == "decrypt" for protection in view.protections)
    if view.key[0] == "source" and not view.given("table"):
        if view.get("format") not in {None, "raw"}:
            yield (*view.key, "format")
        elif decrypts:
            yield (*view.key, "protect")


def _dead_letters_missing(draft: Draft) -> None:
    fix = f'add to [errors]: dead_letters = "{draft.name}.dead"'
    default = draft.default_otherwise
    by_default: list[Key] = []
    for view in draft.views():
        by_default += _undecodable(view)
        for rule in view.rules:
            otherwise = rule.get("otherwise")
            if otherwise is None:
                by_default.append(rule.key)
            elif otherwise in _TO_DEAD_LETTERS:
                draft.refuse(rule.key, f"{otherwise} needs errors.dead_letters", fix)
    if default not in _TO_DEAD_LETTERS or not by_default:
        return
    if draft.errors.given("on_invalid"):
        draft.refuse(("errors", "on_invalid"), f"{default} needs errors.dead_letters", fix)
    else:
        whose = _DEAD_LETTERED.get(str(by_default[0][-1]), "rows that do not meet the rule")
        draft.refuse(
            ("errors", "dead_letters"),
            f"names no topic, but {whose} are dead-lettered by default",
            f'{fix}, or on_invalid = "drop"',
            under=by_default[0],
        )
