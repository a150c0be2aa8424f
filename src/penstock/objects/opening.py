"""Opening of the object store that a URL names.

| URL                                          | store                                            |
|----------------------------------------------|--------------------------------------------------|
| `file:///path`                               | a directory, of this machine or a shared one     |
| `memory://name`                              | this process's memory; one store per name        |
| `s3://bucket/prefix`, `gs://…`, `az://…`     | S3, Google Cloud Storage, Azure, and compatible  |
|                                              | services                                         |

Credentials come from `options`, or else from the environment and the machine's own identity, as the
documentation of obstore describes.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Final
from urllib.parse import unquote, urlsplit
from weakref import WeakValueDictionary

from penstock.base.errors import InvalidSetting
from penstock.base.system import SYSTEM_CLOCK, Clock
from penstock.base.urls import without_credentials, without_credentials_in
from penstock.objects.directory import DirectoryStore, MemoryStore
from penstock.objects.port import ObjectStore

if TYPE_CHECKING:
    from obstore.store import ClientConfig, RetryConfig
    from obstore.store import ObjectStore as Client

REQUEST_TIMEOUT_MS: Final = 10_000
"""Default timeout of a request to a remote store."""
CONNECT_TIMEOUT_MS: Final = 3_000
"""Timeout of connecting to a remote store, which is part of the request's timeout."""

REMOTE_SCHEMES: Final = ("s3", "s3a", "gs", "az", "azure", "adl", "abfs", "abfss")
SETTING: Final = "diskless.storage.url"
_NO_OPTIONS: Final[Mapping[str, str]] = {}
_MEMORY: Final[WeakValueDictionary[str, MemoryStore]] = WeakValueDictionary()
_ENDPOINTS: Final = ("endpoint", "aws_endpoint", "aws_endpoint_url", "aws_endpoint_url_s3")


def open_store(
    url: str,
    *,
    options: Mapping[str, str] = _NO_OPTIONS,
    request_timeout_ms: int = REQUEST_TIMEOUT_MS,
    clock: Clock = SYSTEM_CLOCK,
) -> ObjectStore:
    """Open a store. Each call returns a client with its own connections, except for memory stores.

    `options` are obstore's, such as `aws_endpoint`, `aws_access_key_id` and `aws_region`. HTTP
    without TLS is allowed if an `http://` endpoint is set. No request is sent to a remote store
    yet.

    Raises:
        InvalidSetting: the URL or an option is invalid.
        StoreRefused: a directory cannot be created or opened.
    """
    scheme = url.partition("://")[0].lower() if "://" in url else ""
    if scheme == "file":
        return DirectoryStore(_directory(url), clock=clock)
    if scheme == "memory":
        name = url.partition("://")[2]
        found = _MEMORY.get(name)
        if found is None:
            found = _MEMORY[name] = MemoryStore(clock=clock)
        return found
    if scheme in REMOTE_SCHEMES:
        from penstock.objects.obstore_store import RemoteStore

        client = remote_client(url, options, request_timeout_ms)
        return RemoteStore(
            client, name=without_credentials(url), request_timeout_ms=request_timeout_ms
        )
    schemes = ", ".join(("file", "memory", *REMOTE_SCHEMES))
    raise _invalid(url, f"must begin with one of {schemes}, followed by ://")


def is_local(url: str) -> bool:
    """Return whether a store responds within milliseconds, in memory or in a directory."""
    return url.partition("://")[0].lower() in ("file", "memory")


def place_of(url: str, options: Mapping[str, str] = _NO_OPTIONS) -> str:
    endpoint = next((options[name] for name in _ENDPOINTS if name in options), "")
    return without_credentials(url) + (f" at {without_credentials(endpoint)}" if endpoint else "")


def _directory(url: str) -> Path:
    parts = urlsplit(url)
    path = Path(unquote(parts.path))
    if parts.netloc not in ("", "localhost") or not path.is_absolute():
        raise _invalid(url, "must name an absolute path: file:///path")
    return path


def remote_client(url: str, options: Mapping[str, str], request_timeout_ms: int) -> Client:
    """Return obstore's client of a remote store. Raises InvalidSetting as `open_store` does."""
    from obstore.exceptions import BaseError
    from obstore.store import from_url

    timeout = timedelta(milliseconds=request_timeout_ms)
    connect = timedelta(milliseconds=min(request_timeout_ms, CONNECT_TIMEOUT_MS))
    client_options: ClientConfig = {"timeout": timeout, "connect_timeout": connect}
    if any(options.get(name, "").startswith("http://") for name in _ENDPOINTS):
        client_options["allow_http"] = True
    retry: RetryConfig = {"max_retries": 0, "retry_timeout": timeout}
    try:
        client: Client = from_url(
            url,
            config=dict(options),  # type: ignore[call-overload]
            client_options=client_options,
            retry_config=retry,
        )
    except (BaseError, ValueError, TypeError) as error:
        raise _invalid(url, without_credentials_in(str(error).partition("\n")[0])) from error
    except BaseException as error:
        if type(error).__name__ != "PanicException":  # of pyo3, which does not export it
            raise
        names = ", ".join(sorted(options))
        raise _invalid(
            url,
            f"one of the options {names} belongs to the HTTP client and cannot be set. Set only"
            " options of the store, such as aws_endpoint and aws_region.",
        ) from None
    return client


def _invalid(url: str, reason: str) -> InvalidSetting:
    return InvalidSetting(SETTING, without_credentials(url), reason)
