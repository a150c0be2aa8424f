"""The outbox's guide runs; tests of the Spark room run its part on Spark."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from penstock.testing import Broker
from tests.test_documentation import blocks

GUIDE = Path(__file__).resolve().parents[2] / "docs" / "guides" / "outbox.md"


def test_the_guide_runs(
    outbox_broker: Broker, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    part = tmp_path / "part.md"
    part.write_text(GUIDE.read_text(encoding="utf-8").split("## In Spark")[0], encoding="utf-8")
    space: dict[str, object] = {"__name__": "guide"}
    for number, text in enumerate(blocks(part, "python")):
        code = text.replace("127.0.0.1:9092", outbox_broker.bootstrap)
        exec(compile(code, f"outbox.md, block {number}", "exec"), space)
    space["client"].close()  # type: ignore[attr-defined]
    shutil.rmtree(str(space["root"]))
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].endswith("/data.bin True")
    assert [line.split()[0] for line in lines[1:3]] == ["JFK", "JFK"]
    assert lines[3:] == ["2", "0 1 0"]
