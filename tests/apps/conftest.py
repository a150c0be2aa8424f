"""A broker, and the command line run inside the test."""

from __future__ import annotations

import contextlib
import io
import os
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from uuid import uuid4

import pytest

from penstock.apps.cli import main
from penstock.testing import Broker


@dataclass(frozen=True, slots=True)
class Ran:
    """Result of a command."""

    status: int
    out: str
    err: str


Run = Callable[..., Ran]


@pytest.fixture(scope="package")
def bootstrap() -> Iterator[str]:
    """A broker that the tests of commands share; it ends with them."""
    given = os.environ.get("PENSTOCK_TEST_BOOTSTRAP")
    if given:
        yield given
        return
    with Broker(admin=False) as broker:
        yield broker.bootstrap


@pytest.fixture
def bare(monkeypatch: pytest.MonkeyPatch) -> Run:
    """Runs the command line as a process would, errors and status included."""

    def run(*words: str, stdin: str = "") -> Ran:
        out, err = io.TextIOWrapper(io.BytesIO()), io.StringIO()
        umask = os.umask(0o022)
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin.encode())))
        with (
            contextlib.redirect_stdout(out),
            contextlib.redirect_stderr(err),
        ):
            try:
                main(list(words))
                status = 0
            except SystemExit as error:
                status = int(error.code or 0)
            finally:
                os.umask(umask)  # some commands set that of their process
            out.flush()
        raw = out.buffer
        assert isinstance(raw, io.BytesIO)
        return Ran(status, raw.getvalue().decode(), err.getvalue())

    return run


@pytest.fixture
def run(bare: Run, bootstrap: str) -> Run:
    """Runs the command line against the broker."""
    return lambda *words, stdin="": bare("-b", bootstrap, *words, stdin=stdin)


@pytest.fixture
def topic(run: Run) -> Callable[..., str]:
    """Creates topics with names of their own."""

    def create(partitions: int = 1) -> str:
        name = f"cli-{uuid4().hex[:8]}"
        assert run("topic", "create", name, "-p", str(partitions)).status == 0
        return name

    return create
