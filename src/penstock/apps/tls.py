"""`penstock tls`: certificates for development, checks of files, and reload in brokers."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import click

from penstock.apps.admin import admin_addresses, admin_url, ask_admin
from penstock.apps.log.queues import admin_option
from penstock.apps.session import BadInput, State, output_option, say, show_facts
from penstock.base.system import SYSTEM_CLOCK
from penstock.client.errors import BrokerRefused

RELOAD_SECONDS: Final = 10.0
DEFAULT_ADMIN: Final = "127.0.0.1:9644"


@click.group("tls", short_help="Create, check and reload certificates.")
def tls() -> None:
    """Certificates. Brokers reload PEM files within seconds of a change, without a restart."""


@tls.command("dev-ca", short_help="Create certificates for development.")
@click.argument("directory", type=click.Path(file_okay=False, path_type=Path))
@click.option(
    "--host", "hosts", multiple=True, default=("localhost", "127.0.0.1"), show_default=True,
    metavar="NAME", help="Names and addresses that the broker's certificate is for.",
)  # fmt: skip
@click.option(
    "--client", "clients", multiple=True, metavar="NAME", help="A client's certificate, CN=NAME."
)
@click.option(
    "--days",
    type=click.IntRange(1, 3650),
    default=90,
    show_default=True,
    help="Days that the certificates are valid.",
)
@output_option
def dev_ca(
    state: State, directory: Path, hosts: tuple[str, ...], clients: tuple[str, ...], days: int
) -> None:
    """Create an authority in DIRECTORY, unless it has one, and keystores that it signs.

    ca.pem is the truststore of all, broker.pem the keystore of brokers. A reader of ca-key.pem can
    impersonate every client and broker: not for production.
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
        raise BadInput(f"--client {name}: must be a plain name other than ca, ca-key and broker")


@tls.command("check", short_help="Check a keystore.")
@click.argument("file", type=click.Path(dir_okay=False))
@click.option("--key", default="", metavar="FILE", help="The private key, if it is elsewhere.")
@click.option(
    "--key-password", default="", envvar="PENSTOCK_KEY_PASSWORD",
    help="Password of the private key (PENSTOCK_KEY_PASSWORD).",
)  # fmt: skip
@output_option
def check(state: State, file: str, key: str, key_password: str) -> None:
    """Check FILE as a broker would: whether key and certificate match, and the validity."""
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
@admin_option
@output_option
def reload(state: State, admin: str | None) -> None:
    """Reload certificates, users and token keys; invalid files are named, and the former ones
    stay.
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
