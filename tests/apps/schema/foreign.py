"""A registry that another program might be: read-only, over HTTP, with the habits of several."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Literal
from urllib.parse import parse_qs, unquote, urlsplit

from penstock.apps.schema.snapshot import RegisteredVersion, Snapshot

Habit = Literal["pages", "inverted", "no list"]
"""`pages`: at most two schemas at once, as Confluent's registry with its limits. `inverted`: no
pages, and deleted versions only in the list without them, as Karapace. `no list`: no list of
schemas, as Apicurio."""
PAGE = 2


def shown(found: RegisteredVersion) -> dict[str, Any]:
    references = [
        {"name": reference.name, "subject": reference.subject, "version": reference.version}
        for reference in found.schema.references
    ]
    return {
        "subject": found.subject,
        "version": found.version,
        "id": found.id,
        "schema": found.schema.schema,
        "schemaType": found.schema.schema_type,
        "references": references or None,
    }


class _Answers:
    def __init__(self, content: Snapshot, habit: Habit) -> None:
        self._content = content
        self._habit = habit

    def answer(self, path: list[str], query: dict[str, str]) -> Any:
        """The body of a response; None for status 404."""
        deleted = query.get("deleted") == "true"
        if path == ["schemas"]:
            return self._schemas(query, deleted)
        if path == ["subjects"]:
            return sorted({found.subject for found in self._found(deleted)})
        if path[0] == "subjects":
            versions = {f.version: f for f in self._found(deleted) if f.subject == path[1]}
            if len(path) == 3:
                return sorted(versions) or None
            return shown(versions[int(path[3])]) if int(path[3]) in versions else None
        if path[0] == "config":
            return self._content.configs.get(path[1] if len(path) > 1 else "")
        if path[0] == "mode":
            mode = self._content.modes.get(path[1] if len(path) > 1 else "")
            return {"mode": "READWRITE"} if self._habit == "inverted" else mode and {"mode": mode}
        return None

    def _found(self, deleted: bool) -> list[RegisteredVersion]:
        every = sorted(self._content.versions.items())
        return [found for _, found in every if deleted or not found.deleted]

    def _schemas(self, query: dict[str, str], deleted: bool) -> Any:
        if self._habit == "no list":
            return None
        if self._habit == "inverted":
            return [shown(found) for found in self._found(not deleted)]
        start = int(query.get("offset", 0))
        return [shown(found) for found in self._found(deleted)[start : start + PAGE]]


@contextmanager
def foreign(content: Snapshot, habit: Habit) -> Iterator[str]:
    """Serve a snapshot; yield the URL."""
    answers = _Answers(content, habit)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            parts = urlsplit(self.path)
            query = {name: found[-1] for name, found in parse_qs(parts.query).items()}
            path = [unquote(segment) for segment in parts.path.strip("/").split("/")]
            found = answers.answer(path, query)
            missing = {"error_code": 40401, "message": "not found"}
            body = json.dumps(missing if found is None else found).encode()
            self.send_response(404 if found is None else 200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
