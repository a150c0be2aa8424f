"""`penstock connect replay` sends dead letters through their connector once; `reset` forgets."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from click.testing import CliRunner

from penstock.apps.connect.command import connect
from penstock.client import Client
from penstock.connect.failures import PREFIX
from penstock.records.columnar.schema import HEADERS_TYPE
from penstock.testing import Broker


@pytest.fixture(scope="module")
def log() -> Iterator[Broker]:
    with Broker(process=True) as broker:
        yield broker


def command(*words: str, text: str | None = None) -> str:
    done = CliRunner().invoke(connect, words, input=text, catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.output


def connector(directory: Path, name: str, body: str) -> Path:
    for plugin in ("plugin.py", "dying.py"):
        shutil.copy(Path(__file__).parent / plugin, directory / plugin)
    file = directory / f"{name}.toml"
    file.write_text(f'name = "{name}"\n{body}\n[errors]\ndead_letters = "{name}.dead"\n')
    return file


def test_dead_letters_of_a_sink_are_written_once(log: Broker, tmp_path: Path) -> None:
    target = tmp_path / "lines"
    body = f'[sink]\nconnector = "plugin.py:Lines"\ntopics = ["in"]\npath = "{target}"\n'
    file = str(connector(tmp_path, "lines", f"{body}refuse = 2"))
    with Client(log.bootstrap) as client:
        client.create_topic("in", 1)
        client.write_arrow("in", rows([1, 2, 3]))
    command("run", file, "-b", log.bootstrap, "--once")
    assert target.read_text().split() == ["1", "3"]
    again = command("replay", file, "-b", log.bootstrap)
    assert "replayed 1 dead letters, 1 failed again" in again
    connector(tmp_path, "lines", body)
    assert "replayed 1 dead letters, 0 failed" in command("replay", file, "-b", log.bootstrap)
    assert "replayed 0 dead letters" in command("replay", file, "-b", log.bootstrap)
    assert target.read_text().split() == ["1", "3", "2"]


def test_dead_letters_of_a_source_are_written_to_its_topic(log: Broker, tmp_path: Path) -> None:
    body = '[source]\nconnector = "dying.py:Dying"\ntopic = "out"\nvalue = "x"\n'
    cast = '[transform.number]\ntype = "Cast"\nspec = "text:int32"\n'
    file = str(connector(tmp_path, "poison", body + cast))
    command("run", file, "-b", log.bootstrap, "--once")
    with Client(log.bootstrap) as client:
        assert client.read_arrow("poison.dead").num_rows == 1
        connector(tmp_path, "poison", body)
        assert "replayed 1 dead letters, 0" in command("replay", file, "-b", log.bootstrap)
        assert "replayed 0" in command("replay", file, "-b", log.bootstrap)
        found = client.read_arrow("out", isolation="read_committed")
    assert [json.loads(value) for value in found["value"].to_pylist()] == [{"at": 1, "text": "x"}]


def test_dead_letters_are_rejected_for_several_reasons(log: Broker, tmp_path: Path) -> None:
    body = '[source]\nconnector = "dying.py:Dying"\ntopic = "mixed"\nvalue = "x"\n'
    file = str(connector(tmp_path, "reasons", body))
    headers = [
        {"key": f"{PREFIX}connector.name", "value": b"reasons"},
        {"key": f"{PREFIX}topic", "value": b"mixed"},
    ]
    values = [b"no JSON", b'{"n": %b}' % (b"7" * 80), b'{"n": 1.5}']
    with Client(log.bootstrap) as client:
        client.create_topic("reasons.dead", 1)
        letters = {"value": values, "headers": pa.array([headers] * 3, HEADERS_TYPE)}
        client.write_arrow("reasons.dead", pa.table(letters))
        assert "replayed 3 dead letters, 2 failed" in command("replay", file, "-b", log.bootstrap)
        found = client.read_arrow("mixed", isolation="read_committed")
    assert [json.loads(value) for value in found["value"].to_pylist()] == [{"n": 1.5}]


def test_reset_asks_for_the_name_and_removes_positions(log: Broker, tmp_path: Path) -> None:
    body = '[source]\nconnector = "plugin.py:Numbers"\nlast = 3\ntopic = "again"\n'
    file = str(connector(tmp_path, "again", body))
    command("run", file, "-b", log.bootstrap, "--once")
    wrong = CliRunner().invoke(connect, ["reset", file, "-b", log.bootstrap], input="other\n")
    assert wrong.exit_code == 2
    assert "nothing was removed" in wrong.output
    assert "next" in command("reset", file, "-b", log.bootstrap, text="again\n")
    command("run", file, "-b", log.bootstrap, "--once")
    with Client(log.bootstrap) as client:
        assert client.read_arrow("again", isolation="read_committed").num_rows == 6


def rows(numbers: list[int]) -> object:
    return pa.table({"value": [json.dumps({"n": number}).encode() for number in numbers]})
