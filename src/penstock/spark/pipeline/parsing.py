"""From a pipeline's file to its spec.

Four steps, each a module: the file is read with the places of its keys (`document`), its tables
are converted (`draft`), everything is checked (`checking`), and what passed becomes a
`PipelineSpec` here. Nothing is imported that starts Spark, and no file that the pipeline names is
run.

What SQL reads is found from its text: `sql_views` has the rule.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, cast

from penstock.formats import ValueFormat
from penstock.spark.pipeline.checking import TABLE_KEYS, TOPIC_KEYS, check
from penstock.spark.pipeline.connections import step_inputs, table_path, view_named
from penstock.spark.pipeline.document import read
from penstock.spark.pipeline.draft import Draft, Section, default_otherwise, draft
from penstock.spark.pipeline.files import sql_text
from penstock.spark.pipeline.keys import ADMIN, BOOTSTRAP
from penstock.spark.pipeline.kinds import Unfit, servers, url
from penstock.spark.pipeline.locations import dotted
from penstock.spark.pipeline.problems import PipelineInvalid, Problem
from penstock.spark.pipeline.spec import (
    ConsoleSink,
    ErrorPolicy,
    Otherwise,
    PipelineSpec,
    PythonStep,
    Rule,
    RunOptions,
    Sink,
    Source,
    Step,
    TableSink,
    TopicSink,
)

ENVIRONMENT: Final[Mapping[str, str]] = {
    "bootstrap": "PENSTOCK_BOOTSTRAP",
    "admin": "PENSTOCK_ADMIN_URL",
}
STATE_DIRECTORY: Final = ".penstock"
_MAKING: Final[Mapping[str, tuple[str, ...]]] = {
    "source": (
        "topic", "topics", "pattern", "table", "outbox",
        "format", "schema", "schema_file", "message", "framing", "unknown_fields",
    ),
    "step": ("sql", "sql_file", "python", "inputs"),
}  # fmt: skip
"""The keys that say what a view's rows and columns are."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Survey:
    """What a file says as far as it can be told, and everything that is wrong with it.

    With problems, `spec` is for looking at only: values that do not fit are left out of it, as are
    sinks without a view or a target; `unsure` names the views whose columns cannot be relied on.
    """

    spec: PipelineSpec
    problems: tuple[Problem, ...]
    unsure: frozenset[str]


def load(
    path: Path,
    *,
    bootstrap: str | None = None,
    admin: str | None = None,
    state: Path | str | None = None,
) -> PipelineSpec:
    """Read and check a pipeline: one TOML file, or a directory with a `pipeline.toml`.

    Args:
        path: the file or the directory.
        bootstrap: the brokers; wins over PENSTOCK_BOOTSTRAP, which wins over the file.
        admin: the admin address; wins over PENSTOCK_ADMIN_URL, which wins over the file.
        state: the directory of checkpoints, relative to the working directory; wins over the file.

    Returns:
        A spec whose paths are absolute, whose views all exist and have no cycles, and whose
        rules all say what happens otherwise. `file` is the TOML file.

    Raises:
        PipelineInvalid: with all problems that were found.
    """
    found = survey(path, bootstrap=bootstrap, admin=admin, state=state)
    if found.problems:
        raise PipelineInvalid(found.problems)
    return found.spec


def survey(
    path: Path,
    *,
    bootstrap: str | None = None,
    admin: str | None = None,
    state: Path | str | None = None,
) -> Survey:
    """As `load`, but with the problems beside what could be read.

    Raises:
        PipelineInvalid: the file is not there, or no TOML.
    """
    document = read(path)
    drafted = draft(document)
    given = {
        "bootstrap": _address(drafted, "bootstrap", bootstrap, BOOTSTRAP),
        "admin": _address(drafted, "admin", admin, ADMIN),
    }
    problems = check(drafted)
    spec = PipelineSpec(
        name=drafted.name,
        file=document.file,
        run=_run(drafted, given["bootstrap"], given["admin"], state),
        sources={name: _source(drafted, one) for name, one in drafted.sources.items()},
        steps={name: _step(drafted, one) for name, one in drafted.steps.items()},
        sinks={name: _sink(drafted, one) for name, one in drafted.sinks.items() if _leads(one)},
        errors=_errors(drafted.errors),
        spark=dict(drafted.spark.values),
    )
    wrong = [problem.where for problem in problems]
    unsure = (view.name for view in drafted.views() if _is_unsure(view, wrong))
    return Survey(spec=spec, problems=problems, unsure=frozenset(unsure))


def _is_unsure(view: Section, wrong: list[str]) -> bool:
    """Whether what is wrong concerns the columns of a view."""
    making = {dotted(view.key), *(dotted((*view.key, name)) for name in _MAKING[str(view.key[0])])}
    return any(where in making for where in wrong)


def _leads(sink: Section) -> bool:
    """Whether a sink has a view and a target."""
    targets = [sink.get(kind) for kind in sink.which("table", "topic", "console")]
    return sink.get("from") is not None and len(targets) == 1 and targets[0] is not None


def _address(drafted: Draft, name: str, flag: str | None, default: str) -> str:
    """The flag, else the environment, else the file, else the default."""
    convert = servers if name == "bootstrap" else url
    variable = ENVIRONMENT[name]
    for value, where in ((flag, f"--{name}"), (os.environ.get(variable), variable)):
        if not value:
            continue
        try:
            return convert(value)
        except Unfit as unfit:
            drafted.problems.append(
                Problem(
                    file=drafted.document.file,
                    line=None,
                    where=where,
                    message=unfit.message,
                    fix=unfit.fix,
                )
            )
            return default
    return str(drafted.run.get(name) or default)


def _present(section: Section, **names: str) -> dict[str, Any]:
    """Fields of a spec and the keys they come from, for those that are given."""
    return {field: section.get(key) for field, key in names.items() if section.get(key) is not None}


def _run(drafted: Draft, bootstrap: str, admin: str, state: Path | str | None) -> RunOptions:
    run = drafted.run
    if state is not None:
        directory = Path(state).expanduser().resolve()
    else:
        default = f"{STATE_DIRECTORY}/{drafted.name}"
        directory = drafted.document.path(run.get("state") or default)
    return RunOptions(
        bootstrap=bootstrap,
        admin_url=admin,
        state=directory,
        **_present(
            run,
            trigger="trigger",
            records_max="max_records",
            bytes_max="max_bytes",
            tick_seconds="tick",
            restarts="restarts",
            fail_on_data_loss="fail_on_data_loss",
        ),
    )


def _source(drafted: Draft, source: Section) -> Source:
    topic, topics = source.get("topic"), source.get("topics")
    table, outbox = source.get("table"), source.get("outbox")
    schema_file = source.get("schema_file")
    return Source(
        name=source.name,
        topics=(topic,) if topic is not None else (topics or ()),
        table=None if table is None else table_path(drafted, table),
        outbox=None if outbox is None else drafted.document.path(outbox),
        value_format=ValueFormat(
            schema_file=None if schema_file is None else drafted.document.path(schema_file),
            **_present(
                source,
                kind="format",
                schema="schema",
                message="message",
                framing="framing",
                unknown_fields="unknown_fields",
            ),
        ),
        rules=_rules(drafted, source),
        **_present(
            source,
            pattern="pattern",
            start="start",
            time="time",
            delay="delay",
            deduplicate="deduplicate",
        ),
    )


def _step(drafted: Draft, step: Section) -> Step:
    python = step.get("python")
    return Step(
        name=step.name,
        sql=sql_text(drafted, step),
        python=None
        if python is None
        else PythonStep(file=drafted.document.path(python[0]), function=python[1]),
        inputs=step_inputs(drafted, step),
        rules=_rules(drafted, step),
        **_present(
            step, output_mode="output", time="time", delay="delay", deduplicate="deduplicate"
        ),
    )


def _rules(drafted: Draft, view: Section) -> tuple[Rule, ...]:
    default = default_otherwise(drafted.errors)
    return tuple(
        Rule(
            name=rule.name,
            condition=rule.condition,
            otherwise=cast(Otherwise, rule.otherwise or default),
        )
        for rule in drafted.rules.get(view.key, ())
    )


def _sink(drafted: Draft, sink: Section) -> Sink:
    return Sink(
        name=sink.name, view=view_named(drafted, sink.get("from")), to=_target(drafted, sink)
    )


def _target(drafted: Draft, sink: Section) -> TableSink | TopicSink | ConsoleSink:
    if sink.given("table"):
        return TableSink(
            table=table_path(drafted, sink.get("table")), **_present(sink, **_same(TABLE_KEYS))
        )
    if sink.given("topic"):
        return TopicSink(**_present(sink, **_same(("topic", *TOPIC_KEYS))))
    return ConsoleSink(rows=sink.get("console"))


def _same(names: tuple[str, ...]) -> dict[str, str]:
    return {name: name for name in names}


def _errors(errors: Section) -> ErrorPolicy:
    return ErrorPolicy(
        **_present(
            errors,
            on_invalid="on_invalid",
            dead_letters="dead_letters",
            retry_delays_seconds="retry_delays",
            keep_order="keep_order",
            held_max="held_max",
        )
    )
