"""Command `penstock pipeline plan`: shows the queries of a pipeline without running them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from penstock.apps.client.session import State, write_json
from penstock.apps.pipeline.command import Located, located

if TYPE_CHECKING:
    from penstock.spark.pipeline.analysis import PlannedQuery
    from penstock.spark.pipeline.spec import PipelineSpec, Rule, Sink


@click.command("plan", short_help="Show a pipeline's queries without running it.")
@located
@click.option("--explain", is_flag=True, help="Show also Spark's plan of each step.")
def plan(state: State, where: Located, explain: bool) -> None:
    """Show a pipeline's queries: sources and start offsets, steps, sinks, and rules.

    Nothing is run, and no broker is needed. Each query is one streaming query of Spark. A step runs
    once per batch, unless it needs state between batches.
    """
    from penstock.apps.pipeline.spark import looking_session
    from penstock.spark.pipeline import analysis

    spec = where.load()
    with looking_session(spec) as spark:
        found = analysis.plan(spec, spark)
    body = described(spec, found.queries, explain=explain)
    if state.json:
        write_json(body)
    else:
        for line in written(body):
            click.echo(line)


def described(
    spec: PipelineSpec, queries: tuple[PlannedQuery, ...], *, explain: bool
) -> dict[str, Any]:
    """Return the plan as a JSON document; with `explain` it has Spark's plans."""
    run = spec.run
    return {
        "pipeline": spec.name,
        "file": str(spec.file),
        "bootstrap": run.bootstrap,
        "admin_url": run.admin_url,
        "state_directory": str(run.state),
        "trigger": run.trigger,
        "restarts": run.restarts,
        "errors": asdict(spec.errors),
        "queries": [_query(spec, query, explain=explain) for query in queries],
    }


def _query(spec: PipelineSpec, one: PlannedQuery, *, explain: bool) -> dict[str, Any]:
    from penstock.spark.pipeline.status import checkpoint_offsets

    offsets = checkpoint_offsets(one.checkpoint)
    body: dict[str, Any] = {
        "query": one.name,
        "group": one.group_id,
        "checkpoint": str(one.checkpoint),
        "output_mode": one.output_mode,
        "values": list(one.values),
        "records": one.passes,
        "sources": [_source(spec, name) for name in one.sources],
        "offsets": [
            {"topic": topic, "partition": partition, "offset": offset}
            for (topic, partition), offset in sorted(offsets.items())
        ],
        "tables": [{"name": name, "table": spec.sources[name].table} for name in one.tables],
        "steps": [
            _step(spec, name, streaming=name in one.streamed)
            for name in (*one.streamed, *one.batched)
        ],
        "sinks": [_sink(spec.sinks[name]) for name in one.sinks],
        "rejects": list(one.rejects),
        "late": list(one.late),
    }
    return body | ({"explain": one.explain} if explain else {})


def _source(spec: PipelineSpec, name: str) -> dict[str, Any]:
    source = spec.sources[name]
    return {
        "name": name,
        "topics": list(source.topics),
        "pattern": source.pattern,
        "outbox": None if source.outbox is None else str(source.outbox),
        "format": source.value_format.kind,
        "start": source.start,
        "watermark": _watermark(source.time, source.delay),
        "deduplicate": list(source.deduplicate),
        "rules": [_rule(rule) for rule in source.rules],
    }


def _step(spec: PipelineSpec, name: str, *, streaming: bool) -> dict[str, Any]:
    step = spec.steps[name]
    python = step.python
    return {
        "name": name,
        "runs": "streaming" if streaming else "per batch",
        "inputs": list(step.inputs),
        "sql": step.sql,
        "python": None if python is None else f"{python.file}:{python.function}",
        "watermark": _watermark(step.time, step.delay),
        "deduplicate": list(step.deduplicate),
        "rules": [_rule(rule) for rule in step.rules],
    }


def _watermark(time: str | None, delay: str | None) -> str | None:
    return None if time is None else f"{time}, {delay}"


def _rule(rule: Rule) -> dict[str, str]:
    return {"name": rule.name, "condition": rule.condition, "otherwise": rule.otherwise}


def _sink(sink: Sink) -> dict[str, Any]:
    kind = type(sink.to).__name__.removesuffix("Sink").lower()
    return {"name": sink.name, "from": sink.view, "kind": kind, **asdict(sink.to)}


# As text


def written(body: dict[str, Any]) -> Iterator[str]:
    """Yield the plan as lines of text; `body` is the document of `described`."""
    yield f"pipeline {body['pipeline']}: {body['file']}"
    yield f"  brokers   {body['bootstrap']}, admin {body['admin_url'] or 'not given'}"
    yield f"  state     {body['state_directory']}"
    yield f"  trigger   {body['trigger']}, at most {body['restarts']} restarts in a row"
    yield f"  errors    {_errors(body['errors'])}"
    for query in body["queries"]:
        yield ""
        yield from _query_lines(query)


def _errors(errors: dict[str, Any]) -> str:
    words = [f"undecodable: {errors['on_invalid']}"]
    if errors["dead_letters"]:
        words.append(f"dead letters to {errors['dead_letters']}")
    if errors["retry_delays_seconds"]:
        delays = ", ".join(f"{seconds:g} s" for seconds in errors["retry_delays_seconds"])
        words.append(f"retried after {delays}")
    return "; ".join(words)


def _query_lines(query: dict[str, Any]) -> Iterator[str]:
    yield f"query {query['query']}: group {query['group']}, {query['output_mode']}"
    for source in query["sources"]:
        yield f"  reads     {source['name']}: {_reads(source)}"
        yield from _rules(source["rules"])
    for read in query["values"]:
        yield f"  opens     values by {read}"
    yield f"  batch     records are {query['records']}"
    yield f"  from      {_stands(query)}"
    for table in query["tables"]:
        yield f"  reads     {table['name']}: table {table['table']}, as of each batch"
    for step in query["steps"]:
        made = "SQL" if step["python"] is None else step["python"]
        facts = [step["runs"], made, f"from {', '.join(step['inputs'])}"]
        yield f"  step      {step['name']}: {'; '.join([*facts, *_timing(step)])}"
        yield from _rules(step["rules"])
    for sink in query["sinks"]:
        yield f"  writes    {sink['name']}: {sink['from']} to {_sink_words(sink)}"
    for line in query["rejects"]:
        yield f"  writes    {line}"
    for line in query["late"]:
        yield f"  late      {line}"
    if "explain" in query:
        yield from (f"    {line}" for line in query["explain"].splitlines())


def _reads(source: dict[str, Any]) -> str:
    topics = source["topics"]
    words = [f"topic{'s' if len(topics) > 1 else ''} {', '.join(topics)}"] if topics else []
    if source["pattern"]:
        words.append(f"topics like {source['pattern']}")
    words.append(source["format"])
    if source["outbox"]:
        words.append(f"payloads in {source['outbox']}")
    return "; ".join([*words, *_timing(source)])


def _timing(part: dict[str, Any]) -> list[str]:
    words = [f"watermark {part['watermark']}"] if part["watermark"] else []
    if part["deduplicate"]:
        words.append(f"once per {', '.join(part['deduplicate'])}")
    return words


def _stands(query: dict[str, Any]) -> str:
    if not query["offsets"]:
        starts = {source["start"] for source in query["sources"]}
        return f"{', '.join(sorted(starts))} (no batch has finished in {query['checkpoint']})"
    positions = [f"{at['topic']}-{at['partition']} {at['offset']}" for at in query["offsets"]]
    return f"offsets {', '.join(positions)} ({query['checkpoint']})"


def _rules(rules: list[dict[str, str]]) -> Iterator[str]:
    for rule in rules:
        yield f"    expects {rule['name']}: {rule['condition']}; otherwise {rule['otherwise']}"


def _sink_words(sink: dict[str, Any]) -> str:
    if sink["kind"] == "topic":
        return f"topic {sink['topic']}{', in order of keys' if sink['ordered'] else ''}"
    if sink["kind"] == "console":
        return f"the console, {sink['rows']} rows a batch"
    keys = f" by {', '.join(sink['keys'])}" if sink["keys"] else ""
    return f"table {sink['table']}, {sink['mode']}{keys}"
