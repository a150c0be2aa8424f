"""Connections of commands to schema registries.

A registry's address is a URL or HOST:PORT. Requests carry the credentials and the TLS options of
the client's security options, as requests to admin interfaces do. Credentials are only sent over
https://, or to this machine.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from http import HTTPStatus
from queue import SimpleQueue
from typing import Any, ClassVar, Final, TypeVar

import click
from msgspec import Struct

from penstock.apps.client.admin import admin_url
from penstock.apps.client.session import State, client_options
from penstock.client.admin_http import NO_SECURITY, AdminSecurity
from penstock.client.errors import AdminUnavailable, InvalidArgument
from penstock.client.schemas import RegistryRefused, SchemaClient

DEFAULT_REGISTRY: Final = "http://127.0.0.1:8081"
TIMEOUT_MS: Final = 10_000
"""Longest wait of a command for a response, with retries."""
TRANSFER_TIMEOUT_SECONDS: Final = 60.0
"""Longest wait of an import or export, which may have to outlast a restart of the registry."""
MISSING: Final = frozenset({HTTPStatus.NOT_FOUND, HTTPStatus.METHOD_NOT_ALLOWED})
"""Statuses of a path that a registry does not have."""

T = TypeVar("T")
R = TypeVar("R")


class RegistryUnavailable(AdminUnavailable):
    """The registry did not respond within the time limit."""

    fix: ClassVar[str] = (
        "start it with `penstock registry serve`, or name a running one with --registry URL"
    )


class RegistryAddress(Struct, frozen=True, kw_only=True):
    """URL of a registry, the security of requests to it, and their timeout with retries."""

    url: str
    security: AdminSecurity = NO_SECURITY
    timeout_seconds: float = TIMEOUT_MS / 1000

    def open(self, timeout_seconds: float = 0.0) -> SchemaClient:
        """Return a client for one thread, which the caller closes.

        `timeout_seconds` may raise the timeout.

        Raises:
            InvalidArgument: the URL is invalid, or credentials must not be sent to it.
        """
        try:
            return SchemaClient(
                self.url,
                security=self.security,
                timeout_seconds=max(timeout_seconds, self.timeout_seconds),
            )
        except InvalidArgument as error:
            if self.security.authorization is not None:
                error.add_note("with --anonymous, requests have no credentials")
            raise

    @contextmanager
    def client(self) -> Iterator[SchemaClient]:
        """Yield a client; errors that leave the context say what to do."""
        with explained(self), self.open() as client:
            yield client


@contextmanager
def explained(address: RegistryAddress) -> Iterator[None]:
    """Add to errors of a registry what the user can do."""
    try:
        yield
    except AdminUnavailable as error:
        raise RegistryUnavailable(str(error)) from error
    except RegistryRefused as error:
        if error.status == HTTPStatus.UNAUTHORIZED:
            error.add_note(
                "with --anonymous, requests have no credentials"
                if address.security.authorization
                else "give credentials with -X sasl.username=… and -X sasl.password=…, or with"
                " PENSTOCK_CLIENT_CONFIG"
            )
        raise


def registry_options(command: Callable[..., None]) -> Callable[..., None]:
    """Add the options of clients, `--registry` and `--anonymous` to a command.

    The command gets a `State` and a `RegistryAddress` as first arguments.
    """

    @click.option(
        "--registry",
        metavar="URL",
        help="Schema registry: a URL, or HOST:PORT. Default: PENSTOCK_REGISTRY, else the profile's"
        f" registry, else {DEFAULT_REGISTRY}.",
    )
    @click.option(
        "--anonymous",
        is_flag=True,
        help="Send no credentials to the registry, although the options have some.",
    )
    @client_options
    @functools.wraps(command)
    def wrapped(state: State, registry: str | None, anonymous: bool, **arguments: Any) -> None:
        command(state, registry_address(state, registry, anonymous=anonymous), **arguments)

    return wrapped


def registry_address(state: State, given: str | None, *, anonymous: bool) -> RegistryAddress:
    """Return the address of an option `--registry`, or else of the environment or the profile."""
    from penstock.client.security import admin_security

    url = admin_url(state.setting("registry", given, DEFAULT_REGISTRY))
    security = admin_security(state.security() or {})
    if anonymous:
        security = AdminSecurity(tls=security.tls)
    seconds = state.api_timeout_ms(TIMEOUT_MS) / 1000
    return RegistryAddress(url=url, security=security, timeout_seconds=seconds)


class Connections:
    """Several connections to one registry, for calls that run at the same time.

    It is a context manager. Only one call of `map` or `call` may run at a time.

    Raises:
        InvalidArgument: the URL is invalid, or credentials must not be sent to it.
    """

    def __init__(self, address: RegistryAddress, count: int) -> None:
        self.address = address
        self._clients = [address.open(TRANSFER_TIMEOUT_SECONDS) for _ in range(count)]
        self._free: SimpleQueue[SchemaClient] = SimpleQueue()
        for client in self._clients:
            self._free.put(client)
        self._threads = ThreadPoolExecutor(count, thread_name_prefix="penstock-registry")

    def __enter__(self) -> Connections:
        return self

    def __exit__(self, *_: object) -> None:
        self._threads.shutdown(cancel_futures=True)
        for client in self._clients:
            client.close()

    def call(self, work: Callable[[SchemaClient], R]) -> R:
        return self.map(lambda client, _: work(client), [None])[0]

    def map(self, work: Callable[[SchemaClient, T], R], items: Iterable[T]) -> list[R]:
        """Call `work` for each item, several at a time; return the results in order.

        After an error no further item is begun, and the first error is raised.
        """
        failed: list[BaseException] = []

        def result_of(item: T) -> R:
            if failed:
                raise _Skipped
            client = self._free.get()
            try:
                return work(client, item)
            except BaseException as error:
                failed.append(error)
                raise
            finally:
                self._free.put(client)

        with explained(self.address):
            try:
                return list(self._threads.map(result_of, items))
            except _Skipped as skipped:
                raise failed[0] from skipped
            except BaseException as error:
                failed.append(error)
                raise


class _Skipped(Exception):
    """Raised for an item that was not begun, because an earlier one failed."""
