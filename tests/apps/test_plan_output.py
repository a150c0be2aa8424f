"""Shared options and output of the `penstock plan` commands, with a plan for tests."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path

import click
import pytest
from click.testing import CliRunner, Result

from penstock.apps.client.session import State, write_table
from penstock.apps.plan.output import plan_inputs
from penstock.base.settings import setting
from penstock.planner.quantities import ImpossiblePlan
from penstock.planner.results import Chart, Curve, Figure, Finding, Plan, Snippet


@dataclass(frozen=True, slots=True, kw_only=True)
class BoxInputs:
    side_bytes: int = setting(
        1024, name="side-bytes", doc="Length of a side.", unit="bytes", minimum=1, maximum=1 << 30
    )
    wait_ms: float = setting(2.5, name="wait-ms", doc="A pause.", unit="ms", minimum=0)
    colour: str = setting("red", name="colour", doc="A word.", choices=("red", "blue"))
    lid: bool = setting(True, name="lid", doc="Whether there is a lid.")
    labels: tuple[str, ...] = setting((), name="labels", doc="Words on it.")

    def __post_init__(self) -> None:
        if self.colour == "blue" and self.lid:
            raise ImpossiblePlan("Rule 7", "a blue box with a lid", "use --lid false")


@click.command("box", short_help="Size a box.")
@click.option("--fragile", is_flag=True, help="Handle with care.")
@plan_inputs(BoxInputs)
def box(state: State, inputs: BoxInputs, fragile: bool) -> Plan:
    """Say how large a box is."""
    finding = Finding(severity="fail", subject="box", cause="fragile", fix="buy a crate")
    return Plan(
        title="a box",
        inputs=inputs,
        figures=(
            Figure(name="area_bytes", label="area", value=inputs.side_bytes * 2, unit="bytes",
                   formula="2 × side", source="Euclid", minimum=1, setting="box.area",
                   group="size"),
            Figure(name="shape", label="shape", value="square", unit="",
                   formula="as drawn", source="Euclid, book I", group="form"),
        ),
        findings=(finding,) if fragile else (),
        snippets=(Snippet(title="box.properties", language="properties", text="box.area=[2]\n"),),
        charts=(
            Chart(title="area", x_label="side", y_label="area",
                  curves=(Curve(label="area", x=(1, 2), y=(2, 4)),)),
        ),
    )  # fmt: skip


def call(*words: str, output: str | None = None) -> Result:
    return CliRunner().invoke(box, words, obj=State(output=output), terminal_width=100)


def refused(why: str, *words: str) -> None:
    """Return the one line on stderr of a rejected command line."""
    ran = call(*words)
    assert (ran.exit_code, ran.stdout) == (2, "")
    assert re.fullmatch(f"penstock: .*{why}.*\n", ran.stderr), ran.stderr


def test_a_plan_is_written_as_tables() -> None:
    ran = call("--side-bytes", "4k", "--labels", "a,b")
    assert ran.exit_code == 0
    words = ran.output.split()
    assert ran.output.startswith("a box (side-bytes 4 KiB, labels a,b)\n")
    for word in ("a", "box", "4", "KiB,", "area", "8", "box.area", "square"):
        assert word in words, ran.output
    assert "# box.properties\nbox.area=[2]\n" in ran.output
    assert "Euclid" not in ran.output


def test_a_pipe_gets_lines_that_are_whole_and_not_padded() -> None:
    ran = call("--colour", "red", "--explain")
    assert [line for line in ran.output.splitlines() if line != line.rstrip()] == []
    assert max([len(line) for line in ran.output.splitlines()]) < 80
    long = CliRunner().invoke(wide, (), obj=State(), terminal_width=40)
    assert f" word   {'x' * 500}\n" in long.output


@click.command("wide")
def wide() -> None:
    write_table(("name", "value"), [("word", "x" * 500)])


def test_answers_come_first_and_details_are_asked_for() -> None:
    plain, explained = answered().splitlines(), answered("--explain").splitlines()
    assert [line.split() for line in plain if line.startswith(" area")] == [["area", "2", "KiB"]]
    assert not any(["shape" in line for line in plain])
    assert "warn  lid: loose" in plain
    assert "      → tighten it" in plain
    assert plain[-1].endswith("5 inputs, 2 figures with formulas and sources, and 1 more findings")
    assert explained[: plain.index("warn  lid: loose")] == plain[: plain.index("warn  lid: loose")]
    assert "note  paint: wet" in explained
    assert any([line.startswith(" shape") for line in explained])


def answered(*words: str) -> str:
    @click.command("answered")
    @plan_inputs(BoxInputs)
    def command(state: State, inputs: BoxInputs) -> Plan:
        figures = [
            Figure(name=name, label=name, value=2048, unit="bytes", formula="f", source="s")
            for name in ("shape", "area")
        ]
        return Plan(
            title="a box", inputs=inputs, figures=tuple(figures), answers=("area",),
            findings=(
                Finding(severity="note", subject="paint", cause="wet"),
                Finding(severity="warn", subject="lid", cause="loose", fix="tighten it"),
            ),
        )  # fmt: skip

    return CliRunner().invoke(command, words, obj=State()).output


def test_explain_shows_formulas_and_sources() -> None:
    ran = call("--explain")
    assert "area: 2 KiB (at least 1 bytes)\n    = 2 × side\n    from Euclid\n" in ran.output
    assert "shape: square\n    = as drawn\n    from Euclid, book I\n" in ran.output


def test_a_plan_is_written_as_json() -> None:
    ran = call("--output", "json", "--side-bytes", "7", "--lid", "false", "--colour", "blue")
    found = json.loads(ran.output)
    assert found["title"] == "a box"
    assert found["inputs"]["side-bytes"] == {"value": 7, "unit": "bytes"}
    assert found["inputs"]["lid"] == {"value": False, "unit": ""}
    assert found["figures"][0]["value"] == 14
    assert found["figures"][0]["formula"] == "2 × side"
    assert found["snippets"][0]["language"] == "properties"
    assert found["charts"][0]["curves"][0]["y"] == [2, 4]
    assert json.loads(call(output="json").output)["inputs"]["colour"]["value"] == "red"


def test_a_plan_that_fails_has_status_one() -> None:
    ran = call("--fragile")
    assert ran.exit_code == 1
    assert "buy a crate" in ran.output
    assert json.loads(call("--fragile", "--output", "json").output)["findings"] == [
        {"severity": "fail", "subject": "box", "cause": "fragile", "fix": "buy a crate"}
    ]


def test_inputs_are_read_from_a_file_and_options_win(tmp_path: Path) -> None:
    file = tmp_path / "box.toml"
    file.write_text('side-bytes = "2KiB"\nwait-ms = 4\nlabels = ["x", "y"]\nlid = false\n')
    ran = call("--inputs", str(file), "--wait-ms", "100us", "--output", "json")
    found = {name: one["value"] for name, one in json.loads(ran.output)["inputs"].items()}
    assert found == {
        "side-bytes": 2048,
        "wait-ms": 0.1,
        "colour": "red",
        "lid": False,
        "labels": ["x", "y"],
    }


@pytest.mark.parametrize(
    ("content", "why"),
    [
        ("side-bytes = ", "box.toml: "),
        ("length = 5", "length = 5: there is no setting of this name"),
        ("side-bytes = true", "side-bytes = True: must be a whole number"),
        ("[side-bytes]\nx = 1", "must be a whole number"),
        ("#" * (1 << 20) + "##", "box.toml is larger than 1048576 bytes"),
        (b"\xff\xfe", "box.toml: .*decode"),
    ],
)
def test_bad_files_are_refused(tmp_path: Path, content: str | bytes, why: str) -> None:
    file = tmp_path / "box.toml"
    file.write_bytes(content if isinstance(content, bytes) else content.encode())
    refused(why, "--inputs", str(file))


@click.command("shaped")
@click.option("--preset", type=click.Choice(("large", "wide")))
@plan_inputs(BoxInputs, {"large": {"side-bytes": "1m", "lid": False}, "wide": {}})
def shaped(state: State, inputs: BoxInputs, preset: str | None) -> Plan:
    return Plan(title=preset or "plain", inputs=inputs, figures=())


def test_files_and_options_win_over_presets(tmp_path: Path) -> None:
    file = tmp_path / "box.toml"
    file.write_text('side-bytes = "2KiB"\n')

    def sides(*words: str) -> tuple[str, int, bool]:
        state = State(output="json")
        found = json.loads(CliRunner().invoke(shaped, words, obj=state).output)
        inputs = found["inputs"]
        return found["title"], inputs["side-bytes"]["value"], inputs["lid"]["value"]

    assert sides() == ("plain", 1024, True)
    assert sides("--preset", "large") == ("large", 1 << 20, False)
    assert sides("--preset", "large", "--inputs", str(file)) == ("large", 2048, False)
    assert sides("--preset", "large", "--side-bytes", "9", "--lid", "true") == ("large", 9, True)


def test_a_file_that_is_not_there_is_refused(tmp_path: Path) -> None:
    words = ["--inputs", str(tmp_path / "none.toml")]
    refused(r"none\.toml: No such file", *words)
    words = ["--inputs", str(tmp_path)]
    assert CliRunner().invoke(box, words, obj=State()).exit_code == 2


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["--side-bytes", "0"], "side-bytes = 0: must be at least 1"),
        (["--side-bytes", "-3k"], "must be at least 1"),
        (["--wait-ms", "soon"], "wait-ms = 'soon': must be a number of ms"),
        (["--colour", "blue"], "Rule 7: a blue box with a lid; use --lid false"),
    ],
)
def test_bad_inputs_are_refused(words: list[str], why: str) -> None:
    refused(why, *words)


@pytest.mark.parametrize(("suffix", "start"), [("svg", b"<?xml"), ("png", b"\x89PNG")])
def test_plots_are_drawn(tmp_path: Path, suffix: str, start: bytes) -> None:
    file = tmp_path / f"box.{suffix}"
    ran = call("--plot", str(file))
    assert ran.exit_code == 0
    assert f"drawn: {file}" in ran.output
    assert file.read_bytes().startswith(start)


def test_a_plot_of_another_format_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "box.pdf"
    refused(r"\.png or \.svg", "--plot", str(file))
    assert not file.exists()


def test_help_lists_every_input() -> None:
    ran = call("--help")
    assert ran.exit_code == 0
    text = " ".join(ran.output.split())
    for words in (
        "Say how large a box is.",
        "--side-bytes BYTES Length of a side. [default: 1 KiB]",
        "--wait-ms MS A pause. [default: 2.5 ms]",
        "--colour TEXT A word. One of red, blue. [default: red]",
        "--lid VALUE Whether there is a lid. [default: true]",
        "--fragile Handle with care.",
        "--inputs FILE",
        "--explain",
        "--plot FILE.svg|FILE.png",
        "--output",
    ):
        assert words in text, f"{words} is not in {text}"
