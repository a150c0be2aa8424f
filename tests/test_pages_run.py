"""Quick starts, tutorials and guides on moving: each of their commands runs as it is written."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.page_commands import DOCS, INSTALL, Block, Run, blocks, performed

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
