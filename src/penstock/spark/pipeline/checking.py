"""Checks of a pipeline before anything runs; they report all problems at once.

Every check adds problems to the draft; none needs Spark or a broker. A check that lacks a value
(not given, or reported already) adds none, so each mistake is reported once. Checks of one table
are here, those between tables in `connections.py`, those of other files in `files.py`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from penstock.base.settings import describe
from penstock.spark.pipeline import connections, files, protections
from penstock.spark.pipeline.draft import NAME_CHARS_MAX, Draft, Section
from penstock.spark.pipeline.keys import FORMAT, NAMED
from penstock.spark.pipeline.kinds import nearest
from penstock.spark.pipeline.problems import Problem, in_order
from penstock.spark.pipeline.spec import TableSink, TopicSink

_VIEW_NAME: Final = re.compile(r"[A-Za-z][A-Za-z0-9_]*")
_SINK_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_RESERVED: Final = frozenset(
    {"from", "join", "lateral", "select", "stream", "table", "values", "with"}
)
"""Words of SQL that Spark does not accept as names of tables."""
_SCHEMA_FILES: Final[Mapping[str, tuple[str, ...]]] = {
    "json-schema": (".json",),
    "avro": (".avsc", ".json"),
    "protobuf": (),
}
TABLE_KEYS: Final = (
    *(info.name for info in describe(TableSink) if info.name != "table"), "evolve",
)  # fmt: skip
TOPIC_KEYS: Final = tuple(info.name for info in describe(TopicSink) if info.name != "topic")


def check(draft: Draft) -> tuple[Problem, ...]:
    """Return all problems of a draft, conversion problems included, in the order of the lines."""
    _names(draft)
    for source in draft.sources.values():
        _source(draft, source)
    for step in draft.steps.values():
        _step(draft, step)
    for sink in draft.sinks.values():
        _sink(draft, sink)
    _errors(draft)
    protections.check(draft)
    files.check(draft)
    connections.check(draft)
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
                "name one of them differently: both are views in SQL, where case does not count",
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
    listed = f"{', '.join(names[:-1])} and {names[-1]}"
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


def _only_for(draft: Draft, section: Section, names: tuple[str, ...], whose: str) -> None:
    for name in section.which(*names):
        draft.refuse((*section.key, name), f"is only for {whose}", f"take {name} away")


def _needs(draft: Draft, section: Section, name: str, why: str, example: str) -> None:
    if not section.given(name):
        draft.refuse(section.key, f"{why} needs {name}", f"add {name} = {example}")


def _source(draft: Draft, source: Section) -> None:
    kind = _exactly_one(draft, source, "topic", "topics", "pattern", "table")
    if kind == "table":
        decoding = (*(info.name for info in FORMAT), "start", "outbox", "protect")
        _only_for(draft, source, decoding, "topics, and this is a table")
    else:
        _format(draft, source)
    if kind == "pattern":
        _only_for(draft, source, ("outbox",), "a topic, and this is a pattern")
    _watermark(draft, source)


def _format(draft: Draft, source: Section) -> None:
    kind = source.get("format") or ("raw" if not source.given("format") else None)
    if kind is None:
        return
    if kind == "json":
        _needs(draft, source, "schema", "json", '"id bigint, name string", or "infer"')
    else:
        _only_for(draft, source, ("schema",), f"json, and the format is {kind}")
    if kind in _SCHEMA_FILES:
        endings = _SCHEMA_FILES[kind] or (".proto",)
        _needs(draft, source, "schema_file", kind, f'"{source.name}{endings[0]}"')
    else:
        whose = f"json-schema, avro and protobuf, and the format is {kind}"
        _only_for(draft, source, ("schema_file",), whose)
    if kind == "protobuf":
        _needs(draft, source, "message", "protobuf", '"package.Message"')
    else:
        _only_for(draft, source, ("message",), f"protobuf, and the format is {kind}")
    if kind in {"raw", "text"}:
        _only_for(
            draft,
            source,
            ("framing", "decimals"),
            f"formats with a schema, and the format is {kind}",
        )
    if kind not in {"json", "json-schema"}:
        whose = f"json and json-schema, and the format is {kind}"
        _only_for(draft, source, ("unknown_fields",), whose)


def _watermark(draft: Draft, view: Section) -> None:
    if view.given("time") and not view.given("delay"):
        _needs(draft, view, "delay", "time", '"10 minutes", how late rows may come')
    if view.given("delay") and not view.given("time"):
        _needs(draft, view, "time", "delay", '"at", the column with the time of the event')
    elif view.given("deduplicate") and not view.given("time"):
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
        _only_for(draft, step, ("inputs",), "python; those of SQL are found in its text")
    _watermark(draft, step)


def _sink(draft: Draft, sink: Section) -> None:
    if not sink.given("from"):
        draft.refuse(sink.key, "has no from", 'add from = "…", the source or step to write')
    if sink.given("console") and sink.raw["console"] is False:
        draft.refuse((*sink.key, "console"), "false writes nowhere", "take the sink away")
    kind = _exactly_one(draft, sink, "table", "topic", "console")
    if kind == "table":
        _only_for(draft, sink, _without(TOPIC_KEYS, TABLE_KEYS), "topics, and this is a table")
        _table_sink(draft, sink)
    elif kind == "topic":
        _only_for(draft, sink, _without(TABLE_KEYS, TOPIC_KEYS), "tables, and this is a topic")
        if sink.get("ordered"):
            _needs(draft, sink, "key", "ordered", '"id", whose order is kept')
    elif kind == "console":
        _only_for(
            draft, sink, (*TABLE_KEYS, *_without(TOPIC_KEYS, TABLE_KEYS)), "tables and topics"
        )


def _without(keys: tuple[str, ...], others: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(key for key in keys if key not in others)


def _table_sink(draft: Draft, sink: Section) -> None:
    if sink.given("add_columns"):
        whose = "sinks without add_columns, which sets the same"
        _only_for(draft, sink, ("evolve",), whose)
    mode = sink.get("mode") or ("append" if not sink.given("mode") else None)
    if mode is None:
        return
    if mode == "append":
        whose = "upsert and cdc, and the mode is append"
        for name in sink.which("keys", "order_by"):
            draft.refuse((*sink.key, name), f"is only for {whose}", 'add mode = "upsert"')
    else:
        _needs(draft, sink, "keys", mode, '["id"], the columns that name a row')
        whose = f"append, and the mode is {mode}"
        _only_for(draft, sink, ("partition_by",), whose)
        if (order_by := sink.get("order_by")) in (sink.get("keys") or ()) and order_by:
            draft.refuse(
                (*sink.key, "order_by"),
                f"{order_by} is one of the keys, which do not change",
                "name a column that increases with each change, or remove order_by",
            )
    if mode == "cdc":
        _needs(draft, sink, "delete_when", mode, "\"op = 'd'\", or let the mode be upsert")
    elif sink.given("delete_when"):
        draft.refuse(
            (*sink.key, "delete_when"),
            f"is only for cdc, and the mode is {mode}",
            'write mode = "cdc"',
        )


def _errors(draft: Draft) -> None:
    errors = draft.errors
    retries = [
        rule.key for rules in draft.rules.values() for rule in rules if rule.otherwise == "retry"
    ]
    if errors.get("on_invalid") == "retry":
        retries.append(("errors", "on_invalid"))
    if not errors.given("retry_delays"):
        for key in retries:
            draft.refuse(
                key,
                "retry needs errors.retry_delays",
                'add to [errors]: retry_delays = ["10 seconds", "1 minute", "10 minutes"]',
            )
