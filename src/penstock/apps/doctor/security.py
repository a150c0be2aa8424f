"""Security checks for `penstock doctor`: configurations of a broker and a host agent, and their
files.

Only configurations and files are read; neither process is queried. A file is checked as far as this
user may read it.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

from penstock.apps.checks.findings import Check, Finding, Status, listed
from penstock.apps.client.session import counted
from penstock.apps.process.private_files import control_files
from penstock.base.errors import InvalidError
from penstock.base.http_listener import is_loopback, parse_address
from penstock.base.settings import by_name
from penstock.base.system import SYSTEM_CLOCK
from penstock.broker.configuration.settings import super_users_of
from penstock.broker.net.listeners import ADMIN, Listener, admin_listener, parse_listeners
from penstock.client.security import (
    CONFIG_BYTES_MAX,
    CONFIG_VARIABLE,
    ClientSecuritySettings,
    parse_properties,
    referenced_files,
)
from penstock.security import ANONYMOUS
from penstock.security.files import UnusableFile, read_file
from penstock.security.tls import check_keystore, files_of

if TYPE_CHECKING:
    from penstock.apps.host.wiring import HostConfiguration
    from penstock.apps.process.configuration import Configuration
    from penstock.broker.net.security_settings import SecuritySettings
    from penstock.security.listeners.files import ListenerSettings

BY_CONFIGURATION: Final = ("listeners", "ACLs", "admin interface")
"""Checks that depend on settings only, not on files."""
DAYS_MIN: Final = 30
NAMED_MAX: Final = 5
HOST_HTTP: Final = "host agent's HTTP"
EVERYWHERE: Final = ("", "0.0.0.0", "::")  # noqa: S104  (compared, not bound)


def security_checks(configuration: Configuration) -> list[Check]:
    """Return the security checks of a broker's configuration."""
    listeners = _listeners(configuration)
    encrypted = [listener for listener in listeners if listener.has_tls]
    return [
        *[
            Check(
                f"certificate of {thing.name}",
                partial(_certificate, thing.name, _settings(configuration, thing)),
            )
            for thing in {thing.name: thing for thing in encrypted}.values()
        ],
        Check("files with secrets", partial(_files, configuration, listeners)),
        Check("listeners", partial(_open_listeners, configuration, listeners)),
        Check("ACLs", partial(_acls, configuration, listeners)),
        Check("admin interface", partial(_admin, configuration)),
    ]


def _listeners(configuration: Configuration) -> list[Listener]:
    """Return the listeners for Kafka clients, and the admin listener if it is on."""
    broker = configuration.broker
    found = parse_listeners(broker.listeners, broker.listener_security_protocol_map)
    if broker.admin_listener:
        found.append(admin_listener(broker.admin_listener, broker.admin_security_protocol))
    return found


def _settings(configuration: Configuration, listener: Listener) -> SecuritySettings:
    return configuration.security.of(listener.name, listener.protocol)


def _one(check: str, status: Status, cause: str, fix: str = "") -> list[Finding]:
    return [Finding(check, status, cause, fix)]


def _certificate(listener: str, settings: ListenerSettings) -> list[Finding]:
    """Check that a listener's certificate matches its key, and how long it is still valid."""
    name = f"certificate of {listener}"
    now_ms = SYSTEM_CLOCK.now_ms()
    try:
        facts = check_keystore(files_of(settings), now_ms)
    except InvalidError as error:
        return _one(
            name, "fail", str(error), "correct the files: the process does not start with them"
        )
    days = facts.days_left(now_ms)
    fix = "replace the file with a new certificate; a running process loads it without a restart"
    cause = f"{facts.path}: certificate of {facts.subject} expires in {days:.0f} days"
    return _one(name, "ok", cause) if days > DAYS_MIN else _one(name, "warn", cause, fix)


def _secret_files(configuration: Configuration, listeners: list[Listener]) -> Iterator[str]:
    for listener in listeners:
        settings = _settings(configuration, listener)
        if listener.has_tls:
            yield _key_file(settings)
        if listener.has_sasl:
            yield settings.sasl_users_file
    yield configuration.locations.diskless_storage_options_file
    yield configuration.audit.log_file
    yield from _client_files(os.environ.get(CONFIG_VARIABLE, ""))
    yield from (str(path) for path in control_files(configuration.directory))


def _client_files(path: str) -> Iterator[str]:
    """Yield the files with secrets of a client: its options file, and files that its passwords
    refer to.

    The options file counts if it contains a password, or if it cannot be read.
    """
    if not path:
        return
    try:
        options = parse_properties(path, read_file(path, CONFIG_BYTES_MAX))
    except UnusableFile:
        yield path
        return
    known = by_name(ClientSecuritySettings)
    secrets = [value for name, value in options.items() if name in known and known[name].secret]
    if any("${" not in value for value in secrets):
        yield path
    for value in secrets:
        yield from referenced_files(value)


def _key_file(settings: ListenerSettings) -> str:
    return settings.ssl_key_location or settings.ssl_keystore_location


def _files(configuration: Configuration, listeners: list[Listener]) -> list[Finding]:
    """Check that files with keys and passwords are not readable by all users."""
    name = "files with secrets"
    paths = sorted({path for path in _secret_files(configuration, listeners) if path})
    there = [path for path in paths if Path(path).exists()]
    wide = [path for path in there if _readable_by_all(Path(path))]
    if wide:
        fix = f"remove the permissions of other users: chmod o= {' '.join(wide)}"
        cause = f"readable by all users: {listed(wide, NAMED_MAX)}"
        return _one(name, "fail", cause, fix)
    return _one(name, "ok", f"{counted(len(there), 'file')}, readable by owner and group at most")


def _readable_by_all(path: Path) -> bool:
    """Return whether all users can read a file, by its mode and those of the directories above
    it.
    """
    if not path.stat().st_mode & stat.S_IROTH:
        return False
    above = path.resolve().parents
    return all(folder.stat().st_mode & stat.S_IXOTH for folder in above)


def _open_listeners(configuration: Configuration, listeners: list[Listener]) -> list[Finding]:
    """Check for listeners on all addresses that do not authenticate their clients."""
    name = "listeners"
    kafka = [listener for listener in listeners if listener.name != ADMIN]
    opened = [
        entry.name
        for entry in kafka
        if entry.host in EVERYWHERE and not _authenticates(configuration, entry)
    ]
    if opened:
        fix = "require SASL or client certificates, or bind each of them to one address"
        cause = f"listeners on all addresses without authentication: {listed(opened, NAMED_MAX)}"
        return _one(name, "warn", cause, fix)
    plain = [item.name for item in kafka if item.protocol == "SASL_PLAINTEXT"]
    if plain:
        cause = (
            f"listeners that receive passwords and records unencrypted: {listed(plain, NAMED_MAX)}"
        )
        return _one(name, "warn", cause, "use SASL_SSL for them")
    return _one(name, "ok", ", ".join(f"{element.name} is {element.protocol}" for element in kafka))


def _authenticates(configuration: Configuration, listener: Listener) -> bool:
    if listener.has_sasl:
        return True
    return listener.has_tls and _settings(configuration, listener).ssl_client_auth == "required"


def _acls(configuration: Configuration, listeners: list[Listener]) -> list[Finding]:
    """Check that ACLs are enforced, and find settings with which they have no effect."""
    name, broker = "ACLs", configuration.broker
    if not broker.authorizer_class_name:
        fix = "set authorizer.class.name if other users can connect to the broker"
        return _one(
            name, "skip", "authorizer.class.name is not set: all clients may do everything", fix
        )
    wrong = []
    if broker.allow_everyone_if_no_acl_found:
        wrong.append(
            "allow.everyone.if.no.acl.found: all principals may use resources without ACLs"
        )
    anonymous = [
        listener.name
        for listener in listeners
        if listener.name != ADMIN and not _authenticates(configuration, listener)
    ]
    if anonymous:
        wrong.append(
            f"clients of {listed(anonymous, NAMED_MAX)} are not authenticated (User:ANONYMOUS)"
        )
    if str(ANONYMOUS) in super_users_of(broker):
        wrong.append("User:ANONYMOUS is a super user")
    if wrong:
        return _one(
            name,
            "warn",
            "; ".join(wrong),
            "correct these settings, with which ACLs do not protect the cluster",
        )
    return _one(name, "ok", "ACLs are enforced, and all clients are authenticated")


def _admin(configuration: Configuration) -> list[Finding]:
    """Check which clients have access to the admin interface."""
    name, broker = "admin interface", configuration.broker
    if not broker.admin_listener:
        return _one(name, "skip", "it is turned off")
    host = admin_listener(broker.admin_listener, broker.admin_security_protocol).host
    local = is_loopback(host)
    wrong = []
    if not broker.authorizer_class_name and not local:
        wrong.append(f"all clients of {broker.admin_listener} may do everything")
    if broker.authorizer_class_name and broker.admin_loopback_trusted:
        wrong.append(
            "admin.loopback.trusted: all processes of the broker's machine may do everything"
        )
    if broker.authorizer_class_name and not local and broker.admin_security_protocol != "SSL":
        wrong.append(
            "tokens and answers are sent unencrypted: admin.security.protocol is PLAINTEXT"
        )
    if wrong:
        fix = "set authorizer.class.name and admin.security.protocol=SSL, or listen on 127.0.0.1"
        return _one(name, "warn", "; ".join(wrong), fix)
    return _one(name, "ok", f"{broker.admin_listener}, {broker.admin_security_protocol}")


# Host agent


def host_checks(configuration: HostConfiguration) -> list[Check]:
    """Return the security checks of a host agent's configuration."""
    security = configuration.http_security
    found = [Check(HOST_HTTP, partial(_host_http, configuration))]
    if configuration.host.http_listener and security.has_tls:
        found.append(
            Check(f"certificate of {HOST_HTTP}", partial(_certificate, HOST_HTTP, security))
        )
    return found


def _host_http(configuration: HostConfiguration) -> list[Finding]:
    """Check which clients have access to a host agent's HTTP front."""
    host, security = configuration.host, configuration.http_security
    if not host.http_listener:
        return _one(HOST_HTTP, "skip", "none is configured (--agent-config, host.http.listener)")
    address, _ = parse_address(host.http_listener, setting="host.http.listener")
    wrong = []
    if not is_loopback(address):
        by_certificate = security.has_tls and security.ssl_client_auth == "required"
        if not host.acl_file and not by_certificate:
            wrong.append(f"all clients of {host.http_listener} may publish to every topic")
        if not security.has_tls:
            wrong.append("records and signed tokens are sent unencrypted: the listener has no TLS")
    if security.sasl_oauthbearer_unsecured_tokens:
        wrong.append("unsigned tokens are accepted: any client can claim any identity")
    secrets = [
        path
        for path in (host.acl_file, security.has_tls and _key_file(security))
        if path and Path(path).exists() and _readable_by_all(Path(path))
    ]
    if secrets:
        wrong.append(f"readable by all users: {listed(secrets, NAMED_MAX)}")
    if wrong:
        fix = (
            "set host.acl.file and host.http.security.protocol=SSL, or listen on 127.0.0.1;"
            " remove the permissions of other users from its files"
        )
        return _one(HOST_HTTP, "warn", "; ".join(wrong), fix)
    return _one(HOST_HTTP, "ok", f"{host.http_listener}, {security.security_protocol}")
