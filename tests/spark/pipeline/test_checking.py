"""Each rejection of a pipeline's file: its line, message and fix, for `refusals.txt`'s mistakes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.base.document import FILE_BYTES_MAX, DocumentInvalid, Problem
from penstock.spark.pipeline.checking import VIEWS_MAX
from penstock.spark.pipeline.parsing import load

SOURCE = '[source.orders]\ntopic = "orders"\n'
SINK = '[sink.out]\nfrom = "orders"\ntable = "out"\n'
STEPS = """\
from elsewhere import missing


def clean(orders):
    return orders


def join(orders, items):
    return missing(orders, items)


async def later(orders):
    return orders
"""
MARK = "# <-"


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PENSTOCK_BOOTSTRAP", raising=False)
    monkeypatch.delenv("PENSTOCK_ADMIN_URL", raising=False)
    monkeypatch.delenv("PENSTOCK_REGISTRY", raising=False)


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    made = tmp_path / "orders"
    made.mkdir()
    for name, text in {
        "there.sql": "select 1",
        "there.avsc": "{}",
        "there.proto": "",
        "there.py": STEPS,
    }.items():
        (made / name).write_text(text)
    return made


def refusals() -> Iterator[object]:
    _, *cases = Path(__file__).with_name("refusals.txt").read_text().split("\n== ")
    for case in cases:
        name, _, rest = case.partition("\n")
        text, _, said = rest.partition("\n-> ")
        yield pytest.param(text, said.strip(), id=name)


def problems(directory: Path, text: str) -> tuple[Problem, ...]:
    (directory / "pipeline.toml").write_text(text)
    with pytest.raises(DocumentInvalid) as caught:
        load(directory)
    return caught.value.problems


@pytest.mark.parametrize(("text", "said"), list(refusals()))
def test_refusal(directory: Path, text: str, said: str) -> None:
    # Keys of the top level stand before the first table.
    parts = [SOURCE, text, SINK] if text.startswith("[") else [text, SOURCE, SINK]
    whole = "\n\n".join(parts)
    (line,) = (n for n, row in enumerate(whole.split("\n"), 1) if row.endswith(MARK))
    file = directory / "pipeline.toml"
    expected = f"{file}:{line}: {said.replace('DIRECTORY', str(directory))}"
    assert [str(problem) for problem in problems(directory, whole)] == [expected]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[run]\ntrigger = now", ":2: column 11: invalid value; put text in quotes"),
        ('a = 1\n\n\na = 2\n[run]', ":4: column 6: cannot overwrite a value; write each key"),
        ("[run]\nx = 1\n[run]\n", ":3: column 5: cannot declare ('run',) twice; write each key"),
        ('[run]\nx = "a\ny"', ":2: column 7: illegal character '\\n'; put text of several lines"),
        ("[run]\nmax bytes = 1", ":2: column 5: expected '=' after a key in a key/value pair; wr"),
        ("[run]\nx = [1, 2\n\n", ":2: end of file: unclosed array; close the bracket"),
        ("[run\nx = 1", ":1: column 5: expected ']' at the end of a table declaration; close"),
        ('[run]\nx = "a\\d"', ":2: column 9: unescaped '\\' in a string; write \\\\ for a backsl"),
        ("x = " + "[" * 5000, ":1: end of file: lists nested too deep; write valid TOML"),
    ],
)  # fmt: skip
def test_what_is_no_toml(directory: Path, text: str, said: str) -> None:
    (problem,) = problems(directory, text)
    assert str(problem).startswith(f"{directory / 'pipeline.toml'}{said}")


def test_all_problems_are_reported_in_the_order_of_the_file(directory: Path) -> None:
    (directory / "bad.sql").write_text("select *\nfrom ordes")
    found = problems(
        directory,
        '[run]\ntick = 5\n[step.a]\nsql_file = "bad.sql"\n[source.orders]\ntopic = "a b"\n'
        '[sink.out]\nfrom = "b"\ntable = "c"\nmode = "upsert"\n',
    )
    places = [(problem.file.name, problem.line, problem.where) for problem in found]
    assert places == [
        ("pipeline.toml", 2, "run.tick"),
        ("pipeline.toml", 6, "source.orders.topic"),
        ("pipeline.toml", 7, "sink.out"),
        ("pipeline.toml", 8, "sink.out.from"),
        ("bad.sql", 2, "step.a.sql_file"),
    ]


def test_a_pipeline_of_nothing(directory: Path) -> None:
    assert [str(problem) for problem in problems(directory, "# nothing\n")] == [
        f'{directory}/pipeline.toml: source: there is none; add [source.NAME] with topic = "…"',
        f"{directory}/pipeline.toml: sink: there is none; "
        'add [sink.NAME] with from = "…" and table = "…"',
    ]


def test_python_that_does_not_parse_has_its_own_line(directory: Path) -> None:
    (directory / "bad.py").write_text("def clean(orders):\n    return (\n")
    step = '[step.a]\npython = "bad.py:clean"\ninputs = "orders"\n'
    (problem,) = problems(directory, SOURCE + step + SINK)
    assert (
        str(problem) == f"{directory}/bad.py:2: step.a.python: '(' was never closed; fix the syntax"
    )


@pytest.mark.parametrize("function", ["missing", "made", "clean", "many"])
def test_functions_may_be_made_in_any_way(directory: Path, function: str) -> None:
    text = STEPS + "\nmade = clean\n\n\ndef many(*views, **more): ...\n"
    (directory / "steps.py").write_text(text)
    step = f'[step.a]\npython = "steps.py:{function}"\ninputs = "orders"\n'
    (directory / "pipeline.toml").write_text(SOURCE + step + SINK)
    python = load(directory).steps["a"].python
    assert python is not None
    assert (python.file, python.function) == (directory / "steps.py", function)


def test_files_that_cannot_be_read(directory: Path, tmp_path: Path) -> None:
    with pytest.raises(DocumentInvalid, match=r"none\.toml: file: there is no such file; name"):
        load(tmp_path / "none.toml")
    with pytest.raises(DocumentInvalid, match=r"pipeline\.toml: file: there .*; put a pipeline"):
        load(directory)
    file = directory / "pipeline.toml"
    file.write_bytes(b"a = 1\nb = '\xff'\n")
    with pytest.raises(DocumentInvalid, match=r"pipeline\.toml:2: file: is not UTF-8; save"):
        load(directory)
    file.write_bytes(b"#" * (FILE_BYTES_MAX + 1))
    with pytest.raises(DocumentInvalid, match=f"file: is larger than {FILE_BYTES_MAX} bytes"):
        load(directory)


def test_there_is_a_limit_to_views(directory: Path) -> None:
    steps = "".join(
        f'[step.s{n}]\nsql = "select * from s{n - 1}, s{n - 2}"\n' for n in range(2, VIEWS_MAX)
    )
    first = '[step.s1]\nsql = "select * from orders"\n[source.s0]\ntopic = "s"\n'
    (problem,) = problems(directory, steps + first + SOURCE + SINK)
    assert problem.message == f"the pipeline has {VIEWS_MAX + 1} views, the limit is {VIEWS_MAX}"
    (problem,) = problems(directory, steps + first + SINK.replace("orders", "s299"))
    assert problem.message == "there is no source or step orders"


def test_the_environment_is_checked_too(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PENSTOCK_ADMIN_URL", "here")
    (problem,) = problems(directory, SOURCE + SINK)
    assert (problem.where, problem.message) == ("PENSTOCK_ADMIN_URL", "'here' is not an address")
