"""Command `penstock support bundle`: one archive with the facts that a support request needs.

    penstock-support/manifest.json   files with their sizes, and subjects that are missing
                    /settings.json   settings without secrets
                    /doctor.json     findings of `penstock doctor`
                    /…               brokers, topics, groups, metrics, formats, host, logs

Each file passes through the redactor and has a largest size. Records are never read.
"""

from __future__ import annotations

import io
import json
import os
import tarfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click
import msgspec

from penstock import __version__
from penstock.apps.client.session import (
    State,
    client_options,
    counted,
    path_option,
    write_json,
    write_table,
)
from penstock.base.errors import PenstockError
from penstock.base.system import SYSTEM_CLOCK

if TYPE_CHECKING:
    from penstock.apps.support.redaction import Redactor

FILE_BYTES_MAX: Final = 4 << 20
BUNDLE_BYTES_MAX: Final = 32 << 20
"""Most bytes of a file and of all files, before compression."""
_FOLDER: Final = "penstock-support"
_MODE: Final = 0o600
_CUT: Final = "\n… the rest is left out: the file has reached its largest size\n"

Files = Iterator[tuple[str, Any]]


@dataclass(slots=True)
class Bundle:
    """Archive that is being filled, and the list of what it has and lacks."""

    archive: tarfile.TarFile
    redact: Redactor
    moment: int
    """Seconds since 1970 that all files get as their time."""
    files: list[dict[str, Any]] = field(default_factory=list)
    missing: list[dict[str, str]] = field(default_factory=list)
    size_bytes: int = 0

    def collect(self, subject: str, collector: Callable[[], Files]) -> None:
        """Add the files of a subject; if that fails, list the subject as missing."""
        try:
            for name, content in collector():
                self.add(name, content)
        except (PenstockError, OSError, ValueError) as error:
            self.missing.append({"subject": subject, "cause": self.redact(str(error))})

    def add(self, name: str, content: Any) -> None:
        """Add a file: a text, or a value as JSON. A text over the limit is cut."""
        if isinstance(content, str):
            text = self.redact(content)
        else:
            text = json.dumps(self.redact.value(_plain(content)), indent=1)
        data = text.encode("utf-8", "replace")
        room = min(FILE_BYTES_MAX, BUNDLE_BYTES_MAX - self.size_bytes)
        cut = len(data) > room
        if cut:
            data = data[: max(0, room - len(_CUT.encode()))] + _CUT.encode()
        self.files.append({"name": name, "bytes": len(data), "cut": cut})
        self.size_bytes += len(data)
        self._write(name, data)

    def close(self) -> None:
        manifest = {
            "penstock": __version__, "created_ms": self.moment * 1000,
            "files": self.files, "missing": self.missing,
        }  # fmt: skip
        self._write("manifest.json", json.dumps(manifest, indent=1).encode())

    def _write(self, name: str, data: bytes) -> None:
        member = tarfile.TarInfo(f"{_FOLDER}/{name}")
        member.size, member.mode, member.mtime = len(data), _MODE, self.moment
        self.archive.addfile(member, io.BytesIO(data))


def _plain(value: Any) -> Any:
    """Return a value as JSON has it; other types become texts."""
    return json.loads(msgspec.json.encode(value, enc_hook=str))


@click.group("support", short_help="Collect facts for a support request.")
def support() -> None:
    """Collect facts for a support request."""


@support.command("bundle", short_help="Write an archive of settings, metrics, states and logs.")
@click.option(
    "--output-file",
    "target",
    type=click.Path(path_type=Path, dir_okay=False),
    help="File to write. Default: penstock-support-SECONDS.tar.gz.",
)
@path_option("--config file", "TOML file with the broker's settings.")
@click.option("--data-dir", help="Data directory of the broker. Default: the setting log.dirs.")
@click.option(
    "--admin", metavar="HOST:PORT,…",
    help="Admin interfaces whose metrics are taken (PENSTOCK_ADMIN). Default: those that the"
    " brokers report.",
)  # fmt: skip
@click.option(
    "--log",
    "logs",
    multiple=True,
    type=click.Path(path_type=Path, dir_okay=False),
    help="Log file whose newest lines are taken. May be repeated. Default: the journal of"
    " penstock's systemd units.",
)
@client_options
def bundle(
    state: State,
    target: Path | None,
    file: Path | None,
    data_dir: str | None,
    admin: str | None,
    logs: tuple[Path, ...],
) -> None:
    """Write an archive with the facts that a support request needs.

    It has settings, metrics, descriptions of brokers, topics and groups, the findings of `penstock
    doctor`, the newest log lines, and facts about this machine. Passwords, keys, tokens and
    credentials of URLs are removed. Records are never read. The command works without a running
    broker; it lists what is missing. Look at the archive before you send it.
    """
    moment = SYSTEM_CLOCK.now_ms() // 1000
    path = target or Path(f"penstock-support-{moment}.tar.gz")
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, _MODE)
    with open(descriptor, "wb") as raw, tarfile.open(fileobj=raw, mode="w:gz") as archive:
        made = _fill(archive, moment, state, file, data_dir, admin, logs)
    _report(state, path, made)


def _fill(
    archive: tarfile.TarFile,
    moment: int,
    state: State,
    file: Path | None,
    data_dir: str | None,
    admin: str | None,
    logs: tuple[Path, ...],
) -> Bundle:
    from penstock.apps.checks.brokers import known_admins
    from penstock.apps.doctor.command import examine
    from penstock.apps.process.configuration import DEFAULT_DIRECTORY, gathered
    from penstock.apps.support import collecting
    from penstock.apps.support.redaction import Redactor

    settings = collecting.Settings()
    trouble: PenstockError | None = None
    try:
        given = gathered(file, os.environ)
        settings = collecting.Settings(given, state.security() or {})
    except PenstockError as error:
        trouble = error
    named = settings.given.get("log.dirs")
    directory = Path(data_dir or (str(named.value) if named else DEFAULT_DIRECTORY)).expanduser()
    made = Bundle(archive, Redactor(settings.secrets()), moment)
    if trouble is not None:
        made.missing.append({"subject": "settings", "cause": made.redact(str(trouble))})

    def admins() -> list[str]:
        with suppress(PenstockError), state.client() as client:
            return known_admins(state, client.broker_states(), admin)
        return known_admins(state, {}, admin)

    def doctor() -> Files:
        findings = examine(state, file, str(directory), admin)
        yield "doctor.json", [asdict(finding) for finding in findings]

    made.collect("settings", lambda: iter([("settings.json", settings.shown())]))
    made.collect("host", lambda: collecting.host(directory))
    made.collect("formats", lambda: collecting.formats(directory))
    made.collect("logs", lambda: collecting.logs(logs))
    made.collect("cluster", lambda: collecting.cluster(state))
    made.collect("metrics", lambda: collecting.metrics(state, admins()))
    made.collect("doctor", doctor)
    made.close()
    return made


def _report(state: State, path: Path, made: Bundle) -> None:
    facts = {"file": str(path), "files": made.files, "missing": made.missing}
    if state.json:
        write_json(facts)
        return
    write_table(("file", "bytes"), [(item["name"], item["bytes"]) for item in made.files])
    for item in made.missing:
        click.echo(f"missing: {item['subject']}: {item['cause']}")
    size = path.stat().st_size
    click.echo(f"{path} has {counted(len(made.files) + 1, 'file')} in {size} bytes")
