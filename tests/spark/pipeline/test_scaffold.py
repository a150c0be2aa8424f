"""Templates: they load without problems, and nothing of the user's is overwritten."""

from __future__ import annotations

import json
import re
import shlex
import tomllib
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from penstock.apps.cli import root
from penstock.spark.pipeline import scaffold
from penstock.spark.pipeline.parsing import load
from penstock.spark.pipeline.scaffold import PathTaken, UnknownTemplate, init, templates
from penstock.spark.pipeline.spec import TableSink, TopicSink

SCREEN_LINES = 40
RECORDS = {"quickstart": 20, "aggregate": 40, "relay": 24, "cdc": 13}


def commands(readme: str) -> Iterator[list[str]]:
    """The commands of a README's blocks, in words."""
    for block in re.findall(r"```sh\n(.*?)```", readme, re.DOTALL):
        yield from (shlex.split(line) for line in block.splitlines())


def data_file(paths: tuple[Path, ...]) -> Path:
    (found,) = (path for path in paths if path.name not in {"README.md", "pipeline.toml"})
    return found


def test_the_templates() -> None:
    assert set(templates()) == set(RECORDS)


@pytest.mark.parametrize("template", RECORDS)
def test_a_template_loads_without_problems(tmp_path: Path, template: str) -> None:
    written = init(tmp_path / "new" / "one", template)
    assert {path.parent for path in written} == {tmp_path / "new" / "one"}
    assert all(path.is_file() for path in written)
    spec = load(tmp_path / "new" / "one")
    assert spec.errors.dead_letters is not None
    assert spec.run.trigger == "once"
    assert any(source.rules for source in spec.sources.values())


@pytest.mark.parametrize("template", RECORDS)
def test_a_template_fits_on_a_screen(tmp_path: Path, template: str) -> None:
    init(tmp_path, template)
    lines = (tmp_path / "pipeline.toml").read_text().splitlines()
    assert len(lines) <= SCREEN_LINES
    assert max(map(len, lines)) <= 100


def test_the_first_template_shows_what_there_is(tmp_path: Path) -> None:
    init(tmp_path)
    spec = load(tmp_path)
    assert spec.sources["orders"].value_format.kind == "json"
    assert [rule.otherwise for rule in spec.sources["orders"].rules] == ["dead-letter"] * 2
    assert "sha2(" in (spec.steps["masked"].sql or "")
    assert isinstance(spec.sinks["lake"].to, TableSink)


def test_the_templates_cover_the_kinds_of_sinks(tmp_path: Path) -> None:
    targets = {}
    for template in RECORDS:
        init(tmp_path / template, template)
        (sink,) = load(tmp_path / template).sinks.values()
        targets[template] = sink.to
    assert [getattr(targets[name], "mode", None) for name in ("aggregate", "cdc")] == [
        "upsert",
        "cdc",
    ]
    assert isinstance(targets["relay"], TopicSink)
    assert targets["relay"].ordered


@pytest.mark.parametrize(("template", "records"), RECORDS.items())
def test_sample_data_has_bad_records(tmp_path: Path, template: str, records: int) -> None:
    written = init(tmp_path, template)
    lines = data_file(written).read_text().splitlines()
    assert len(lines) == records
    assert f"the {records} records" in (tmp_path / "README.md").read_text()

    def undecodable(line: str) -> bool:
        value = line if line.startswith("{") or template in {"quickstart", "aggregate"} else ""
        try:
            row = json.loads(value or line.partition("|")[2])
        except json.JSONDecodeError:
            return True
        return isinstance((row.get("after") or row).get("id"), str)

    assert sum(map(undecodable, lines)) == 1


@pytest.mark.parametrize("template", RECORDS)
def test_the_commands_of_the_readme_exist(tmp_path: Path, template: str) -> None:
    written = init(tmp_path, template)
    topics = set()
    for words in commands((tmp_path / "README.md").read_text()):
        if words[0] != "penstock":
            continue
        command: click.Command | None = root
        context = click.Context(root, info_name="penstock")
        rest = words[1:]
        while isinstance(command, click.Group):
            command = command.get_command(context, rest.pop(0))
        assert command is not None, words
        params = command.make_context("penstock", rest, parent=context).params
        topics |= set(params.get("names", ()))
        if words[1] == "produce":
            assert params["file"].name == data_file(written).name
            assert params["name"] in topics
    spec = load(tmp_path)
    assert {
        spec.errors.dead_letters,
        *(t for s in spec.sources.values() for t in s.topics),
    } <= topics


def test_nothing_is_overwritten(tmp_path: Path) -> None:
    mine = tmp_path / "README.md"
    mine.write_text("mine")
    with pytest.raises(PathTaken, match=r"has README\.md already: name another directory"):
        init(tmp_path)
    assert mine.read_text() == "mine"
    assert list(tmp_path.iterdir()) == [mine]
    with pytest.raises(PathTaken, match="is a file"):
        init(mine)


def test_a_template_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(UnknownTemplate, match="did you mean quickstart"):
        init(tmp_path, "quick-start")
    with pytest.raises(UnknownTemplate, match="write aggregate, cdc, quickstart or relay"):
        init(tmp_path, "zzz")


def test_templates_are_in_the_package(tmp_path: Path) -> None:
    project = Path(__file__).parents[3] / "pyproject.toml"
    package_data = tomllib.loads(project.read_text())["tool"]["setuptools"]["package-data"]
    package = Path(scaffold.__file__).parent
    packed = {
        path
        for pattern in package_data["penstock.spark.pipeline"]
        for path in package.glob(pattern)
    }
    for template in templates():
        names = {path.name for path in init(tmp_path / template, template)}
        assert {package / "templates" / template / name for name in names} <= packed
