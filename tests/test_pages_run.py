"""Quick starts, tutorials and guides on moving: each of their commands runs as it is written."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from penstock.testing import Broker
from tests.page_commands import DOCS, INSTALL, Block, Run, blocks, performed
from tests.ports import free_port

DATABASE = "postgresql://penstock:secret@127.0.0.1/penstock"
BROKER = (
    Block("sh", "Terminal 0", "penstock serve --data-dir ./data\n"),
    Block("text", "", "penstock ready\n"),
)
"""Broker that guides expect on 127.0.0.1:9092."""


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_the_quick_start_for_service_teams(tmp_path: Path) -> None:
    with performed("start/service-teams.md", tmp_path) as run:
        assert "102 payments billed" in "".join(run.outputs)


@pytest.mark.long
@pytest.mark.timeout(600)
def test_the_quick_start_for_platform_teams(tmp_path: Path, postgres_url: str) -> None:
    with performed("start/platform-teams.md", tmp_path, {DATABASE: postgres_url}) as run:
        assert "3 brokers, 3 ready" in "".join(run.outputs)


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", ["from-rabbitmq", "from-kinesis"])
def test_guides_on_moving(tmp_path: Path, name: str) -> None:
    with Run(tmp_path) as run:
        for block in BROKER:
            run.perform(block)
        run.page(DOCS / "moving" / f"{name}.md")
        assert run.outputs


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_the_guide_on_iceberg_tables(tmp_path: Path) -> None:
    with Run(tmp_path) as run:
        for block in BROKER:
            run.perform(block)
        run.page(DOCS / "guides" / "iceberg.md")
        assert "1 records in 1 batches" in "".join(run.outputs)
    program = """
from pyiceberg.catalog import load_catalog
table = load_catalog("default", uri="sqlite:///lake.db").load_table("shop.orders")
assert table.scan().to_arrow()["word"].to_pylist() == ["first"]
"""
    subprocess.run([sys.executable, "-c", program], cwd=tmp_path, check=True)


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_the_guide_on_writing_a_connector(tmp_path: Path) -> None:
    with Run(tmp_path) as run:
        for block in BROKER:
            run.perform(block)
        run.page(DOCS / "guides" / "writing-a-connector.md")
        assert "42 records" in "".join(run.outputs)
    program = "import test_numbers as t; t.test_numbers()"
    subprocess.run([sys.executable, "-c", program], cwd=tmp_path, check=True)


@pytest.mark.long
@pytest.mark.spark
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    "name",
    [
        "start/data-teams.md",
        "tutorials/exactly-once-orders.md",
        "tutorials/evolving-schema.md",
    ],
)
def test_pages_with_pipelines(tmp_path: Path, name: str) -> None:
    with performed(name, tmp_path) as run:
        assert run.outputs


@pytest.mark.long
@pytest.mark.timeout(600)
def test_the_tutorial_on_a_late_group(tmp_path: Path) -> None:
    with performed("tutorials/late-group.md", tmp_path) as run:
        assert run.outputs


@pytest.mark.long
@pytest.mark.timeout(600)
def test_the_tutorial_that_breaks_a_cluster(tmp_path: Path, postgres_url: str) -> None:
    with performed("tutorials/break-a-cluster.md", tmp_path, {DATABASE: postgres_url}) as run:
        assert "lost: 0\nstored twice: 0" in "".join(run.outputs)


@pytest.mark.long
@pytest.mark.interop
@pytest.mark.timeout(600)
def test_moving_from_apache_kafka_and_back(tmp_path: Path) -> None:
    from benchmarks.peers.apache_kafka import ApacheKafka
    from confluent_kafka.admin import AdminClient, NewTopic

    with ApacheKafka() as kafka, Run(tmp_path, {"old-kafka:9092": kafka.bootstrap}) as run:
        admin = AdminClient({"bootstrap.servers": kafka.bootstrap})
        admin.create_topics([NewTopic("orders", 6, 1)])["orders"].result(30)
        for block in BROKER:
            run.perform(block)
        for block in blocks(DOCS / "moving" / "from-kafka.md"):
            run.perform(block)
            if block.title == "before.py":
                run.perform(Block("sh", "", "python before.py\n"))
        assert "100 records copied" in "".join(run.outputs)


@pytest.mark.long
@pytest.mark.spark
@pytest.mark.timeout(600)
def test_the_guide_on_mirroring(tmp_path: Path) -> None:
    with Broker(process=True) as target:
        replaced = {
            "127.0.0.1:9192": target.bootstrap,
            "http://127.0.0.1:9645": target.admin_url,
            "/mnt/kafka-1": str(tmp_path / "data"),
            "/mnt/kafka-2": str(tmp_path / "data"),
            "9450": str(free_port()),
        }
        with Run(tmp_path, replaced) as run:
            for block in BROKER:
                run.perform(block)
            prepare = "penstock topic create orders -p 3\nseq 1 100 | penstock produce orders\n"
            run.perform(Block("sh", "", prepare))
            run.page(DOCS / "guides" / "mirroring.md")
            run.perform(Block("sh", "", "penstock -b 127.0.0.1:9192 consume orders -e -q | wc -l"))
            assert run.outputs[-1].strip() == "100"
            metrics = "curl -s --retry 60 --retry-connrefused http://127.0.0.1:9450/metrics\n"
            run.perform(Block("sh", "", metrics))
            assert "penstock_mirror_lag_offsets" in run.outputs[-1]


ONE_BROKER = {"--replication-factor 3": "--replication-factor 1"}
"""Replacement in commands of guides, whose clusters have one broker each in these tests."""


def commands(name: str) -> dict[str, Block]:
    """Return the commands of a guide's overview, each by its subcommand."""
    lines = blocks(DOCS / "guides" / f"{name}.md")[0].text.splitlines()
    return {line.split()[2]: Block("sh", "", f"{line}\n") for line in lines}


@pytest.mark.long
@pytest.mark.timeout(600)
def test_the_guide_on_disaster_recovery(tmp_path: Path) -> None:
    with Broker() as first, Broker() as second:
        addresses = {"first:9092": first.bootstrap, "second:9092": second.bootstrap}
        with Run(tmp_path, addresses | ONE_BROKER) as run:
            link = commands("disaster-recovery")
            for topic in ("orders", "payments"):
                first.create_topic(topic, 2)
                write = f"seq 1 100 | penstock -b first:9092 produce {topic}\n"
                run.perform(Block("sh", "", write))
            for name in ("create", "delete"):
                run.perform(link[name])
            run.perform(Block("sh", "", link["create"].text.replace("payments", "")))
            for name in ("status", "promote", "reverse"):
                run.perform(link[name])
            read = "penstock -b second:9092 consume orders -e -q | wc -l\n"
            run.perform(Block("sh", "", read + link["status"].text.replace("second", "first")))
            assert run.outputs[-1].startswith("100\n")
            assert "payments" in run.outputs[-1]


@pytest.mark.long
@pytest.mark.interop
@pytest.mark.timeout(600)
def test_the_guide_on_migrations(tmp_path: Path) -> None:
    from benchmarks.peers.apache_kafka import ApacheKafka

    with ApacheKafka() as old, Broker() as new:
        addresses = {"old-kafka:9092": old.bootstrap, "new:9092": new.bootstrap}
        with Run(tmp_path, addresses | ONE_BROKER) as run:
            create = "penstock -b old-kafka:9092 topic create orders -p 3\n"
            write = "seq 1 100 | penstock -b {} produce orders\n"
            run.perform(Block("sh", "", create + write.format("old-kafka:9092")))
            migrate = commands("moving-from-apache-kafka")
            for name in ("plan", "run", "status"):
                run.perform(migrate[name])
            run.perform(Block("sh", "", f"echo y | {migrate['cut-over'].text}"))
            run.perform(Block("sh", "", write.format("new:9092")))
            run.perform(Block("sh", "", f"echo y | {migrate['back'].text}"))
            read = "penstock -b old-kafka:9092 consume orders -e -q | wc -l\n"
            run.perform(Block("sh", "", read))
            assert run.outputs[-1] == "200\n"


@pytest.mark.long
@pytest.mark.interop
@pytest.mark.timeout(600)
def test_the_guide_on_moving_out(tmp_path: Path) -> None:
    from benchmarks.peers.apache_kafka import ApacheKafka
    from compat.parts import class_path, jars, mirror_java

    programs = tmp_path / "kafka" / "bin"
    programs.mkdir(parents=True)
    for name, classes, main in (
        ("kafka-dump-log.sh", class_path(jars("tools")), "kafka.tools.DumpLogSegments"),
        ("connect-mirror-maker.sh", mirror_java(), "kafka.connect.mirror.MirrorMaker"),
    ):
        java = f'#!/bin/sh\nexec java -Xmx512m -cp {classes} org.apache.{main} "$@"\n'
        (programs / name).write_text(java)
        (programs / name).chmod(0o755)
    with (
        ApacheKafka() as kafka,
        Run(tmp_path, {"new-kafka:9092": kafka.bootstrap}, programs) as run,
    ):
        for block in BROKER:
            run.perform(block)
        for block in blocks(DOCS / "guides" / "moving-out.md"):
            if "kafka-dump-log.sh" in block.text:
                run.close(BROKER[0].title)
            run.perform(block)
        assert [output for output in run.outputs if output.startswith("100\n100\n")]


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", ["service-teams", "data-teams", "platform-teams"])
def test_the_installation_of_the_quick_starts(tmp_path: Path, name: str) -> None:
    """Run the installation in a clone, in an environment with nothing of ours."""
    root = DOCS.parent
    clone = tmp_path / "penstock"
    clone.mkdir()
    for file in (path for path in root.iterdir() if path.is_file()):
        shutil.copyfile(file, clone / file.name)
    shutil.copytree(root / "src", clone / "src", ignore=shutil.ignore_patterns("*.egg-info"))
    text = next(found.text for found in blocks(DOCS / f"start/{name}.md") if found.title == INSTALL)
    ran = subprocess.run(
        ["bash", "-c", f"set -e\n{text}\npenstock --version\nwhich penstock"],
        cwd=clone, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert ran.stdout.rstrip().endswith(str(clone / ".venv" / "bin" / "penstock"))
