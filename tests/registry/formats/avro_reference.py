"""Avro's own Java library, which Spark brings, as an oracle for schemas."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from compat.conftest import missing
from compat.parts import PartMissing

SOURCE = Path(__file__).with_name("AvroReference.java")
JARS = ("avro-1.*", "jackson-core-*", "jackson-databind-*", "jackson-annotations-*", "slf4j-api-*")


class AvroReference:
    """Java process that answers questions, one line each."""

    def __init__(self) -> None:
        spark = find_spec("pyspark")
        if spark is None or not spark.submodule_search_locations or shutil.which("java") is None:
            missing(PartMissing("Java, or Avro's library from pyspark"))
        folder = Path(spark.submodule_search_locations[0]) / "jars"
        path = os.pathsep.join(str(jar) for jars in JARS for jar in folder.glob(f"{jars}.jar"))
        small = ["-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"]
        self._process = subprocess.Popen(
            ["java", *small, "-cp", path, str(SOURCE)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            encoding="utf-8",
        )

    def __enter__(self) -> AvroReference:
        return self

    def __exit__(self, *error: object) -> None:
        self._process.communicate()

    def text(self, *texts: str) -> str | None:
        """Return how the library writes the last schema; None if it rejects one of them."""
        found: str | None = self._ask("parse", *texts).get("text")
        return found

    def problems(self, reader: str, writer: str) -> list[tuple[str, str]] | None:
        """Return rules and locations; None if the library fails on an ambiguous alias."""
        answer = self._ask("check", reader, writer)
        if "error" in answer:
            assert "matches multiple fields" in answer["error"]
            return None
        found = [(rule, path) for rule, path in answer["problems"]]
        assert bool(found) == (answer["verdict"] == "INCOMPATIBLE")
        return found

    def _ask(self, *question: str) -> dict[str, Any]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(question) + "\n")
        self._process.stdin.flush()
        answer: dict[str, Any] = json.loads(self._process.stdout.readline())
        return answer
