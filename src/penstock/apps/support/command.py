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
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Final

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
    from penstock.apps.support.collecting import Files
    from penstock.apps.support.redaction import Redactor

FILE_BYTES_MAX: Final = 4 << 20
BUNDLE_BYTES_MAX: Final = 32 << 20
"""Most bytes of a file and of all files, before compression."""
_FOLDER: Final = "penstock-support"
_MODE: Final = 0o600
_CUT: Final = "\n… the rest is left out: the file has reached its largest size\n"


@dataclass(slots=True)
class Bundle:
    """Files of a bundle without secrets, and the list of what it has and lacks."""

    redact: Redactor
    contents: dict[str, bytes] = field(default_factory=dict)
    files: list[dict[str, Any]] = field(default_factory=list)
    missing: list[dict[str, str]] = field(default_factory=list)

    def collect(self, subject: str, files: Files) -> None:
        """Add the files of a subject; if that fails, list the subject as missing."""
        try:
            for name, content in files:
                self.add(name, content)
        except (PenstockError, OSError, ValueError) as error:
            self.lack(subject, str(error))

    def lack(self, subject: str, cause: str) -> None:
        self.missing.append({"subject": subject, "cause": self.redact(cause)})

    def add(self, name: str, content: Any) -> None:
        """Add a file: a text, or a value as JSON. A file over the limit is cut."""
        if isinstance(content, str):
            text = self.redact(content)
        else:
            plain = msgspec.to_builtins(content, str_keys=True, enc_hook=str)
            text = json.dumps(self.redact.value(plain), indent=1)
        data = text.encode("utf-8", "replace")
        room = min(FILE_BYTES_MAX, BUNDLE_BYTES_MAX - sum(map(len, self.contents.values())))
        cut = len(data) > room
        if cut:
            data = data[: max(0, room - len(_CUT.encode()))] + _CUT.encode()
        self.files.append({"name": name, "bytes": len(data), "cut": cut})
        self.contents[name] = data


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
    path = target or _unused(f"penstock-support-{moment}")
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, _MODE)
    with open(descriptor, "wb") as raw:
        os.fchmod(descriptor, _MODE)  # the file may exist
        made = _collected(state, file, data_dir, admin, logs)
        _write(raw, made, moment)
    _report(state, path, made)


def _unused(name: str) -> Path:
    """Return the path of an archive that does not exist, with a number if necessary."""
    paths = (Path(f"{name}{more}.tar.gz") for more in ("", *(f"-{n}" for n in range(2, 1_000))))
    return next(path for path in paths if not path.exists())


def _collected(
    state: State,
    file: Path | None,
    data_dir: str | None,
    admin: str | None,
    logs: tuple[Path, ...],
) -> Bundle:
    from penstock.apps.support import collecting
    from penstock.apps.support.redaction import Redactor

    settings = collecting.read_settings(state, file)
    directory = Path(data_dir or settings.directory).expanduser()
    made = Bundle(Redactor(settings.secrets()))
    made.add("settings.json", settings.shown())
    for problem in settings.problems:
        made.lack("settings", problem)
    made.collect("host", collecting.host(directory))
    made.collect("formats", collecting.formats(directory))
    made.collect("logs", collecting.logs(logs))
    made.collect("cluster", collecting.cluster(state))
    made.collect("metrics", collecting.metrics(state, admin))
    made.collect("doctor", collecting.doctor(state, file, directory, admin))
    return made


def _write(target: BinaryIO, made: Bundle, moment: int) -> None:
    """Write the archive; all of its files get the same time, in seconds since 1970."""
    manifest = {
        "penstock": __version__, "created_ms": moment * 1000,
        "files": made.files, "missing": made.missing,
    }  # fmt: skip
    contents = made.contents | {"manifest.json": json.dumps(manifest, indent=1).encode()}
    with tarfile.open(fileobj=target, mode="w:gz") as archive:
        for name, data in contents.items():
            member = tarfile.TarInfo(f"{_FOLDER}/{name}")
            member.size, member.mode, member.mtime = len(data), _MODE, moment
            archive.addfile(member, io.BytesIO(data))


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
