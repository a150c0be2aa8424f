"""Command group `penstock tls`: creates and checks certificates, and makes brokers reload them."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import click

from penstock.apps.client.admin import admin_addresses, admin_url, ask_admin
from penstock.apps.client.session import (
    BadInput,
    State,
    default_option,
    output_option,
    say,
    show_facts,
)
from penstock.base.system import SYSTEM_CLOCK
from penstock.client.errors import BrokerRefused

RELOAD_SECONDS: Final = 10.0
DEFAULT_ADMIN: Final = "127.0.0.1:9644"


@click.group("tls", short_help="Create, check and reload certificates.")
def tls() -> None:
    """Create, check and reload certificates.

    Brokers reload changed PEM files within seconds, without a restart.
    """


@tls.command("dev-ca", short_help="Create certificates for development.")
@click.argument("directory", type=click.Path(file_okay=False, path_type=Path))
@click.option(
    "--host", "hosts", multiple=True, default=("localhost", "127.0.0.1"), show_default=True,
    metavar="NAME",
    help="Host name or address that the broker's certificate is valid for. May be repeated.",
)  # fmt: skip
@click.option(
    "--client",
    "clients",
    multiple=True,
    metavar="NAME",
    help="Create also a certificate for a client, with the subject CN=NAME. May be repeated.",
)
@default_option("--days", 90, "Days for which the certificates are valid.", click.IntRange(1, 3650))
@output_option
def dev_ca(
    state: State, directory: Path, hosts: tuple[str, ...], clients: tuple[str, ...], days: int
) -> None:
    """Create a certificate authority in DIRECTORY, and keystores with certificates that it signs.

    An existing authority is used again. ca.pem is the truststore for brokers and clients,
    broker.pem the keystore of brokers. Do not use it in production: a reader of ca-key.pem can
    impersonate every client and broker.
    """
    from penstock.security.data.secret_files import write_private
    from penstock.security.development_ca import authority_in, common_name

    now_ms = SYSTEM_CLOCK.now_ms()
    try:
        authority = authority_in(directory, now_ms)
        made = {"broker": authority.issue(common_name("broker"), now_ms, hosts=hosts, days=days)}
        for name in clients:
            _check_name(name)
            made[name] = authority.issue(common_name(name), now_ms, days=days)
        for name, keystore in made.items():
            write_private(directory / f"{name}.pem", keystore)
    except (OSError, ValueError) as error:
        raise BadInput(f"{directory}: {error}") from None
    paths = {name: str(directory / f"{name}.pem") for name in ("ca", *made)}
    lines = [f"ssl.truststore.location={paths['ca']}", f"ssl.keystore.location={paths['broker']}"]
    lines += [f"keystore of client {name}: {paths[name]}" for name in clients]
    say(state, "\n".join(lines), **paths)


def _check_name(name: str) -> None:
    if name in ("ca", "ca-key", "broker") or Path(name).name != name:
        raise BadInput(
            f"--client {name}: must be a file name without directories, and not ca, ca-key or"
            " broker"
        )


@tls.command("check", short_help="Check a keystore.")
@click.argument("file", type=click.Path(dir_okay=False))
@click.option(
    "--key", default="", metavar="FILE", help="File with the private key. Default: FILE itself."
)
@click.option(
    "--key-password", default="", envvar="PENSTOCK_KEY_PASSWORD",
    help="Password of the private key (PENSTOCK_KEY_PASSWORD). Default: the key is not encrypted.",
)  # fmt: skip
@output_option
def check(state: State, file: str, key: str, key_password: str) -> None:
    """Check the keystore FILE as a broker would, and show its certificate.

    The private key must match the certificate, and the certificate must be valid now.
    """
    from penstock.security.files import UnusableFile
    from penstock.security.tls import TlsFiles, check_keystore, load_chain

    now_ms = SYSTEM_CLOCK.now_ms()
    try:
        facts = check_keystore(TlsFiles(keystore=file, key=key, key_password=key_password), now_ms)
        chain = load_chain(file)
    except UnusableFile as error:
        raise BadInput(str(error)) from None
    ends = datetime.fromtimestamp(facts.not_after, UTC)
    show_facts(
        state,
        {
            "subject": facts.subject,
            "serial": facts.serial,
            "ends": f"{ends:%Y-%m-%d %H:%M} UTC",
            "days_left": int(facts.days_left(now_ms)),
            "certificates": len(chain),
            "readable_by_others": bool(Path(key or file).stat().st_mode & 0o077),
        },
        ("what", "value"),
        spaced=True,
    )


@tls.command("reload", short_help="Make brokers reload changed files now.")
@click.option(
    "--admin", metavar="HOST:PORT,…",
    help=f"Admin interfaces of the brokers (PENSTOCK_ADMIN). [default: {DEFAULT_ADMIN}]",
)  # fmt: skip
@output_option
def reload(state: State, admin: str | None) -> None:
    """Reload certificates, users and token keys in brokers.

    A broker continues to use the former content of a file that is invalid. Such files are listed,
    and the command exits with status 1.
    """
    failures = []
    for address in admin_addresses(state.setting("admin", admin, DEFAULT_ADMIN)):
        url = admin_url(address)
        answer = ask_admin(
            state, url, "/v1/security/reload", "POST",
            timeout_seconds=RELOAD_SECONDS, repeated=True,
        )  # fmt: skip
        if answer.status != 200:
            raise BrokerRefused(f"{url}: {answer.message}")
        failures += [f"{url}: {failure}" for failure in answer.body.get("failures", [])]
    say(state, "\n".join(failures) or "reloaded all files", failures=failures)
    if failures:
        raise click.exceptions.Exit(1)
