"""Log lines show no credentials of URLs, whatever part of the process wrote them."""

from __future__ import annotations

import json
import logging
import sys

import pytest

from penstock.apps.process.daemon import FORMATS, set_up

URL = "https://user:SECRET@keys.example/jwks?sig=SECRET"


@pytest.mark.parametrize("log_format", FORMATS)
def test_urls_in_log_lines_have_no_credentials(
    log_format: str, capsys: pytest.CaptureFixture[str]
) -> None:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    try:
        set_up(log_format, "warning")
        try:
            raise OSError(f"cannot read {URL}")
        except OSError:
            logging.getLogger("library").exception("GET %s failed", URL)
        sys.stderr.flush()
    finally:
        root.handlers[:], root.level = handlers, level
    lines = capsys.readouterr().err
    assert "SECRET" not in lines
    assert lines.count("https://keys.example/jwks") == 2
    if log_format == "json":
        assert json.loads(lines)["logger"] == "library"
