"""The console at the shared admin address of several processes."""

from __future__ import annotations

import http.client
import re
from pathlib import Path
from urllib.parse import urlsplit

import pyarrow as pa

from penstock.client import Client
from tests.apps.console.test_requests import ask, proof
from tests.apps.processes.test_serve import READY
from tests.apps.test_serve import LOCAL, TIMEOUT_SECONDS, serving


def test_pages_acts_and_live_figures_pass_through_the_front(tmp_path: Path) -> None:
    with serving(tmp_path, *LOCAL, "--processes", "2") as (process, line):
        found = READY.fullmatch(line)
        assert found is not None
        url = f"http://{found[2]}"
        assert ask(url, "/").headers["location"] == "/console"
        page = ask(url, "/console/create-topic", headers={"accept-encoding": "gzip"})
        assert page.headers["content-encoding"] == "gzip"
        assert "default-src 'none'" in page.headers["content-security-policy"]
        assert page.headers.get("connection") != "close"

        fields = {"proof": proof(ask(url, "/console/create-topic")), "name": "made"}
        foreign = {"origin": "https://other.example"}
        assert ask(url, "/console/create-topic", fields, foreign).status == 400
        made = ask(url, "/console/create-topic", fields, {"origin": url})
        assert (made.status, made.headers["location"]) == (303, "/console/topics/made")
        cookie = made.headers["set-cookie"].partition(";")[0]
        shown = ask(url, "/console/topics/made", headers={"cookie": cookie})
        assert "Topic made was created." in shown.text

        place = urlsplit(url)
        connection = http.client.HTTPConnection(place.hostname or "", place.port, timeout=30)
        connection.request("GET", "/console/live")
        assert connection.getresponse().readline() == b": connected\n"
        connection.close()
        check_groups_of_both_brokers(url, found[1])
        process.terminate()
        assert process.wait(TIMEOUT_SECONDS) == 0


def check_groups_of_both_brokers(url: str, bootstrap: str) -> None:
    """Check that one broker's pages show and change groups that the other coordinates."""
    names = [f"group-{number}" for number in range(8)]
    with Client(bootstrap) as client:
        client.write_arrow("made", pa.table({"value": [b"x"] * 9}))
        for name in names:
            client.commit_offsets(name, {("made", 0): 4})
    page = ask(url, "/console/groups").text
    assert all(name in page for name in names)
    assert {*re.findall(r'data-label="Coordinator" class="n">(\d)<', page)} == {"1", "2"}
    for name in names:
        path = f"/console/group-reset/{name}"
        preview = ask(url, f"{path}?to=latest")
        assert "5 offsets skipped" in preview.text
        fields = {"proof": proof(preview), "to": "latest", "confirm": name}
        assert ask(url, path, fields).status == 303
        path = f"/console/group-delete/{name}"
        fields = {"proof": proof(ask(url, path)), "confirm": name}
        assert ask(url, path, fields).status == 303
    assert "No group matches" in ask(url, "/console/groups").text
