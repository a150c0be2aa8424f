"""Check that brokers respond and have the topics of a pipeline, before Spark starts.

Spark starts slowly, and reports missing topics one by one with long stack traces. This check finds
all missing topics with one request, and reports each with its line of the file.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from typing import ClassVar, Final

from penstock.base.document import Document, DocumentInvalid, Key, Problem, read
from penstock.base.errors import RetriableError, UnavailableError
from penstock.client import Client
from penstock.client.errors import BrokerRefused
from penstock.spark.pipeline.kinds import nearest, servers
from penstock.spark.pipeline.spec import PipelineSpec, TopicSink

WAIT_MS: Final = 4_000
CONNECT_WAIT_MS: Final = 1_000
"""Longest wait for a connection: leaves time to try the next bootstrap address."""


class NoBroker(UnavailableError):
    """No broker of a pipeline responds."""

    code: ClassVar[str] = "broker_not_available"


def check_topics(spec: PipelineSpec, meet: Callable[[Client], None] | None = None) -> None:
    """Check that every topic of a pipeline exists.

    `meet` is called with the connected client, for further questions to the brokers.

    Raises:
        NoBroker: no broker responds within `WAIT_MS`.
        DocumentInvalid: topics are missing (all are listed), or the dead-letter topic is compacted.
    """
    document = read(spec.file)
    named = list(_named(spec, document))
    try:
        with asking(spec) as client:
            there = tuple(topic.name for topic in client.list_topics(internal=True))
            if meet is not None:
                meet(client)
            compacted = _compacted(client, spec.errors.dead_letters, there)
    except (RetriableError, UnavailableError) as error:
        raise NoBroker(str(_unanswered(spec, document, str(error)))) from error
    missing = [
        document.problem(key, f"{spec.run.bootstrap} has no topic {topic}", _fix(topic, there))
        for key, topic in named
        if topic not in there
    ]
    if compacted:
        message = f"topic {spec.errors.dead_letters} is compacted, and keeps one record of each key"
        fix = "set its cleanup.policy to delete, or name another topic"
        missing.append(document.problem(("errors", "dead_letters"), message, fix))
    if missing:
        raise DocumentInvalid(tuple(missing))


def _compacted(client: Client, topic: str | None, there: Collection[str]) -> bool:
    if topic is None or topic not in there:
        return False
    try:
        configs = client.describe_configs("topic", topic)
    except BrokerRefused:
        return False
    policies = [entry.value or "" for entry in configs if entry.name == "cleanup.policy"]
    return any("compact" in policy for policy in policies)


def asking(spec: PipelineSpec) -> Client:
    """Return a client with a short timeout, for interactive commands."""
    return Client(
        spec.run.bootstrap,
        client_id="penstock-pipeline",
        api_timeout_ms=WAIT_MS,
        request_timeout_ms=WAIT_MS,
        connect_timeout_ms=CONNECT_WAIT_MS,
    )


def _named(spec: PipelineSpec, document: Document) -> Iterator[tuple[Key, str]]:
    for name, source in spec.sources.items():
        for index, topic in enumerate(source.topics):
            single = "topic" in document.values["source"][name]
            yield ("source", name, "topic") if single else ("source", name, "topics", index), topic
    for name, sink in spec.sinks.items():
        if isinstance(sink.to, TopicSink):
            yield ("sink", name, "topic"), sink.to.topic
    if spec.errors.dead_letters is not None:
        yield ("errors", "dead_letters"), spec.errors.dead_letters


def _fix(topic: str, there: tuple[str, ...]) -> str:
    close = nearest(topic, there)
    return f"create it with `penstock topic create {topic}`" + (f", or write {close}" * bool(close))


def _unanswered(spec: PipelineSpec, document: Document, message: str) -> Problem:
    given = document.values.get("run", {}).get("bootstrap")
    if given is not None and servers(given) == spec.run.bootstrap:
        return document.problem(("run", "bootstrap"), message)
    return Problem(file=spec.file, line=None, where="bootstrap", message=message)
