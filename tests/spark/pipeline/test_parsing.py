"""From a file to a spec: every key arrives, with its default where it is not given."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.base.document import read
from penstock.formats import ValueFormat
from penstock.spark.pipeline import kinds
from penstock.spark.pipeline.frames import start_options
from penstock.spark.pipeline.kinds import Unfit
from penstock.spark.pipeline.parsing import load
from penstock.spark.pipeline.spec import (
    ConsoleSink,
    ErrorPolicy,
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

SMALL = '[source.a]\ntopic = "t"\n[sink.s]\nfrom = "A"\nconsole = true\n'
WHOLE = '''\
name = "whole"

[run]
bootstrap = "b1:9092, b2:9092"
admin = "http://b1:9644/"
state = "state"
trigger = "1 minute 30 s"
max_records = 1000
max_bytes = "64 MiB"
tick = "500 ms"
restarts = 0
fail_on_data_loss = false

[spark]
"spark.sql.shuffle.partitions" = 4
sql.ansi.enabled = true
spark.driver.memory = "1g"

[source.orders]
topics = ["a", "b"]
format = "protobuf"
schema_file = "order.proto"
message = "shop.Order"
framing = "confluent"
start = 2026-01-31T08:00:00Z
time = "at"
delay = "600 seconds"
deduplicate = ["id", "line"]

[source.orders.expect]
"has an id" = "id is not null"
positive = {that = "amount > 0", otherwise = "retry"}

[source.events]
pattern = "events-.*"
format = "json"
schema = "infer"
unknown_fields = "reject"
decimals = "round"
start = "latest"

[source.pointers]
topic = "files"
outbox = "box"

[source.rates]
table = "lake/rates"
expect = {positive = {that = "rate > 0", otherwise = "fail"}}

[step.joined]
sql = """
with o as (select * from ORDERS)
select * from o join rates using (currency)
"""
output = "update"

[step.from_file]
sql_file = "deep/masked.sql"

[step.scored]
python = "steps.py:score"
inputs = ["from_file", "Events"]
time = "at"
delay = "0 seconds"
deduplicate = "id"
expect = {scored = "score is not null"}

[sink.lake]
from = "joined"
table = "../lake/orders"
mode = "cdc"
keys = "id"
order_by = "version"
delete_when = "op = 'd'"

[sink.events]
from = "events"
table = "s3://lake/events"
partition_by = ["day"]
codec = "lz4"
add_columns = true

[sink.out]
from = "Scored"
topic = "scores"
key = "id"
value = "to_json(struct(*))"
partition = "0"
headers = "array()"
ordered = true
transactional = true
codec = "zstd"

[sink.shown]
from = "scored"
console = 5

[errors]
on_invalid = "park"
dead_letters = "dead"
retry_delays = ["10 seconds", "1 minute"]
keep_order = false
held_max = 10
'''


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PENSTOCK_BOOTSTRAP", raising=False)
    monkeypatch.delenv("PENSTOCK_ADMIN_URL", raising=False)


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    made = tmp_path / "shop"
    (made / "deep").mkdir(parents=True)
    (made / "order.proto").write_text("")
    (made / "deep" / "masked.sql").write_text("-- without a source\nselect *\nfrom pointers\n")
    (made / "steps.py").write_text("import only_there\n\ndef score(one, other): ...\n")
    return made


def small(directory: Path, text: str = "") -> PipelineSpec:
    (directory / "pipeline.toml").write_text(text + SMALL)
    return load(directory)


def test_every_key_arrives(directory: Path) -> None:
    (directory / "pipeline.toml").write_text(WHOLE)
    assert load(directory) == PipelineSpec(
        name="whole",
        file=directory / "pipeline.toml",
        run=RunOptions(
            bootstrap="b1:9092,b2:9092",
            admin_url="http://b1:9644",
            state=directory / "state",
            trigger="90 seconds",
            records_max=1000,
            bytes_max=64 << 20,
            tick_seconds=0.5,
            restarts=0,
            fail_on_data_loss=False,
        ),
        spark={
            "spark.driver.memory": "1g",
            "spark.sql.ansi.enabled": "true",
            "spark.sql.shuffle.partitions": "4",
        },
        sources=sources(directory),
        steps=steps(directory),
        sinks=sinks(directory),
        errors=ErrorPolicy(
            on_invalid="park",
            dead_letters="dead",
            retry_delays_seconds=(10.0, 60.0),
            keep_order=False,
            held_max=10,
        ),
    )


def sources(directory: Path) -> dict[str, Source]:
    return {
        "orders": Source(
            name="orders",
            topics=("a", "b"),
            value_format=ValueFormat(
                kind="protobuf",
                schema_file=directory / "order.proto",
                message="shop.Order",
                framing="confluent",
            ),
            start="2026-01-31T08:00:00+00:00",
            time="at",
            delay="10 minutes",
            deduplicate=("id", "line"),
            rules=(
                Rule(name="has an id", condition="id is not null", otherwise="park"),
                Rule(name="positive", condition="amount > 0", otherwise="retry"),
            ),
        ),
        "events": Source(
            name="events",
            pattern="events-.*",
            value_format=ValueFormat(
                kind="json", schema="infer", unknown_fields="reject", decimals="round"
            ),
            start="latest",
        ),
        "pointers": Source(name="pointers", topics=("files",), outbox=directory / "box"),
        "rates": Source(
            name="rates",
            table=str(directory / "lake" / "rates"),
            rules=(Rule(name="positive", condition="rate > 0", otherwise="fail"),),
        ),
    }


def steps(directory: Path) -> dict[str, Step]:
    return {
        "joined": Step(
            name="joined",
            sql="with o as (select * from ORDERS)\nselect * from o join rates using (currency)\n",
            inputs=("orders", "rates"),
            output_mode="update",
        ),
        "from_file": Step(
            name="from_file",
            sql="-- without a source\nselect *\nfrom pointers\n",
            inputs=("pointers",),
        ),
        "scored": Step(
            name="scored",
            python=PythonStep(file=directory / "steps.py", function="score"),
            inputs=("from_file", "events"),
            time="at",
            delay="0 milliseconds",
            deduplicate=("id",),
            rules=(Rule(name="scored", condition="score is not null", otherwise="park"),),
        ),
    }


def sinks(directory: Path) -> dict[str, Sink]:
    cdc = TableSink(
        table=str(directory.parent / "lake" / "orders"),
        mode="cdc",
        keys=("id",),
        order_by="version",
        delete_when="op = 'd'",
    )
    events = TableSink(
        table="s3://lake/events", partition_by=("day",), add_columns=True, codec="lz4"
    )
    out = TopicSink(
        topic="scores",
        key="id",
        value="to_json(struct(*))",
        partition="0",
        headers="array()",
        ordered=True,
        transactional=True,
        codec="zstd",
    )
    return {
        "lake": Sink(name="lake", view="joined", to=cdc),
        "events": Sink(name="events", view="events", to=events),
        "out": Sink(name="out", view="scored", to=out),
        "shown": Sink(name="shown", view="scored", to=ConsoleSink(rows=5)),
    }


def test_what_is_not_given_has_a_default(directory: Path) -> None:
    assert small(directory) == PipelineSpec(
        name="shop",
        file=directory / "pipeline.toml",
        run=RunOptions(
            bootstrap="127.0.0.1:9092",
            admin_url="http://127.0.0.1:9644",
            state=directory / ".penstock" / "shop",
        ),
        sources={"a": Source(name="a", topics=("t",))},
        steps={},
        sinks={"s": Sink(name="s", view="a", to=ConsoleSink(rows=20))},
        errors=ErrorPolicy(),
    )


def test_a_pipeline_is_named_after_its_file_or_directory(directory: Path) -> None:
    other = directory / "other.toml"
    other.write_text(SMALL)
    assert load(other).name == "other"
    assert small(directory).name == load(directory / "pipeline.toml").name == "shop"
    assert small(directory, 'name = "given"\n').run.state == directory / ".penstock" / "given"


def test_admin_addresses_of_several_brokers(directory: Path) -> None:
    text = '[run]\nadmin = "http://b1:9644/, https://b2:9644"\n'
    assert small(directory, text).run.admin_url == "http://b1:9644,https://b2:9644"
    with pytest.raises(Unfit, match="'b2:9644' is not an address"):
        kinds.urls("http://b1:9644,b2:9644")


@pytest.mark.parametrize(
    ("start", "options"),
    [
        ("1969-12-31T23:59:59.999", {"startingOffsets": "earliest"}),
        ("0001-01-01", {"startingOffsets": "earliest"}),
        ("1970-01-01", {"startingTimestamp": "0"}),
        ("2013-01-01T00:00:00.0001+01:00", {"startingTimestamp": "1356994800001"}),
    ],
)
def test_a_start_before_1970_is_the_earliest(start: str, options: dict[str, str]) -> None:
    assert start_options(start).items() >= options.items()


def test_a_flag_wins_over_the_file_and_that_over_the_environment(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = '[run]\nbootstrap = "file:1"\nadmin = "http://file:1"\nstate = "file"\n'
    monkeypatch.setenv("PENSTOCK_BOOTSTRAP", "environment:1")
    monkeypatch.setenv("PENSTOCK_ADMIN_URL", "http://environment:1")
    run = small(directory, text).run
    assert (run.bootstrap, run.admin_url) == ("file:1", "http://file:1")
    run = small(directory, "").run
    assert (run.bootstrap, run.admin_url) == ("environment:1", "http://environment:1")
    (directory / "pipeline.toml").write_text(text + SMALL)
    monkeypatch.chdir(directory.parent)
    run = load(directory, bootstrap="flag:1", admin="http://flag:1", state="here").run
    assert (run.bootstrap, run.admin_url) == ("flag:1", "http://flag:1")
    assert run.state == directory.parent / "here"


def test_a_relative_path_finds_the_same_files(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (directory / "pipeline.toml").write_text(WHOLE)
    monkeypatch.chdir(directory)
    assert load(Path()) == load(directory)


def test_a_line_of_sql_is_a_line_of_a_file(directory: Path) -> None:
    (directory / "pipeline.toml").write_text(WHOLE)
    document = read(directory)
    lines = WHOLE.split("\n")
    assert document.sql_place("joined", 2) == (
        document.file,
        lines.index("select * from o join rates using (currency)") + 1,
    )
    assert document.sql_place("from_file", 3) == (directory / "deep" / "masked.sql", 3)
    assert document.place(("sink", "out", "codec")) == (
        document.file,
        lines.index('codec = "zstd"') + 1,
    )


def test_nothing_is_imported_that_starts_spark(directory: Path) -> None:
    (directory / "pipeline.toml").write_text(WHOLE)
    code = (
        "import pathlib, sys\n"
        "from penstock.spark.pipeline.parsing import load\n"
        "load(pathlib.Path(sys.argv[1]))\n"
        "print([name for name in ('pyspark', 'only_there') if name in sys.modules])\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(directory)], capture_output=True, text=True, check=True
    )
    assert done.stdout == "[]\n"


@pytest.mark.parametrize(
    ("text", "milliseconds", "spark"),
    [
        ("2 seconds", 2_000, "2 seconds"),
        ("500 ms", 500, "500 milliseconds"),
        ("1 minute", 60_000, "1 minutes"),
        ("1.5 seconds", 1_500, "1500 milliseconds"),
        (" 1 Hour 30min ", 5_400_000, "90 minutes"),
        ("1 day", 86_400_000, "24 hours"),
        ("0 s", 0, "0 milliseconds"),
    ],
)
def test_intervals(text: str, milliseconds: int, spark: str) -> None:
    assert kinds.interval_ms(text) == milliseconds
    assert kinds.interval_text(milliseconds) == spark


@pytest.mark.parametrize(
    "text", ["", "2", "seconds", "-1 s", "1 month", "0.1 ms", "400 days", "1s;"]
)
def test_intervals_that_are_none(text: str) -> None:
    with pytest.raises(Unfit):
        kinds.interval_ms(text)


@given(st.integers(0, kinds.INTERVAL_MS_MAX))
def test_an_interval_is_read_as_it_is_written(milliseconds: int) -> None:
    assert kinds.interval_ms(kinds.interval_text(milliseconds)) == milliseconds


@pytest.mark.parametrize(
    ("value", "size"),
    [(7, 7), ("7 b", 7), ("64 MiB", 64 << 20), ("1.5 kB", 1500), ("1GiB", 1 << 30)],
)
def test_sizes(value: object, size: int) -> None:
    assert kinds.size(value) == size
