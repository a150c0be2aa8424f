"""Signed URLs for S3, each valid for one range of one object and for a limited time.

The query of a URL has the signer, the time and the lifetime (Signature Version 4 in the query). The
signature covers the headers that `X-Amz-SignedHeaders` lists, here `host` and `range`. The store
accepts only requests with exactly the signed Range header. This matters because an object mixes the
batches of many topics.

The signer is derived from a probe URL that obstore signs, as brokers use obstore for their
requests. That URL has endpoint, path, region and access key id. The secret key comes from the
options or the environment. It is accepted if it reproduces obstore's signature. Credentials from
other sources (instance metadata, containers, web identity) are rejected.

Source: AWS, "Authenticating Requests: Using Query Parameters (AWS Signature Version 4)".
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Final
from urllib.parse import parse_qs, quote, urlsplit

from penstock.base.urls import without_credentials, without_credentials_in
from penstock.objects.opening import REQUEST_TIMEOUT_MS, remote_client
from penstock.objects.port import StoreRefused

_ALGORITHM: Final = "AWS4-HMAC-SHA256"
_PROBE: Final = "probe"
_KEYS: Final = ("access_key_id", "secret_access_key")
_NOT_KEYS: Final = (
    "no access key is set in its options or the environment. Credentials of instance metadata,"
    " containers and web identity cannot sign URLs"
)


def range_header(start: int, size_bytes: int) -> str:
    """Return the value of a Range header for [start, start + size_bytes)."""
    return f"bytes={start}-{start + size_bytes - 1}"


@dataclass(frozen=True, slots=True, kw_only=True)
class UrlSigner:
    """Credentials that sign URLs.

    An object's URL is `origin` (`https://host`), `path` and its key.
    """

    origin: str
    path: str
    region: str
    access_key_id: str
    session_token: str = field(default="", repr=False)
    secret_access_key: str = field(repr=False)

    def signing(self, *, now_ms: int, lifetime_ms: int) -> Signing:
        """Return a signing whose URLs are valid from now on for a lifetime, in whole seconds."""
        seconds = lifetime_ms // 1000
        at = datetime.fromtimestamp(now_ms // 1000, UTC)
        return Signing(
            self,
            f"{at:%Y%m%dT%H%M%SZ}",
            seconds,
            expires_ms=(now_ms // 1000 + seconds) * 1000,
        )


class Signing:
    """Signs URLs that all expire at `expires_ms`. Computes their common parts once."""

    __slots__ = ("_headers", "_key", "_query", "_signer", "_text", "expires_ms")

    def __init__(
        self,
        signer: UrlSigner,
        date: str,
        seconds: int,
        *,
        expires_ms: int,
        headers: str = "host;range",
    ) -> None:
        self.expires_ms = expires_ms
        self._signer = signer
        self._headers = headers
        scope = f"{date[:8]}/{signer.region}/s3/aws4_request"
        parameters = {
            "X-Amz-Algorithm": _ALGORITHM,
            "X-Amz-Credential": f"{signer.access_key_id}/{scope}",
            "X-Amz-Date": date,
            "X-Amz-Expires": str(seconds),
            "X-Amz-Security-Token": signer.session_token,
            "X-Amz-SignedHeaders": headers,
        }
        self._query = "&".join(
            [f"{name}={quote(value, safe='')}" for name, value in parameters.items() if value]
        )
        self._text = f"{_ALGORITHM}\n{date}\n{scope}\n"
        self._key = f"AWS4{signer.secret_access_key}".encode()
        for word in scope.split("/"):
            self._key = hmac.digest(self._key, word.encode(), "sha256")

    def url(self, key: str, start: int, size_bytes: int) -> str:
        """Return the URL of a range.

        The request must have the header `range_header` of the range.
        """
        signer = self._signer
        path = signer.path + quote(key, safe="/")
        signature = self.signature(path, f"range:{range_header(start, size_bytes)}\n")
        return f"{signer.origin}{path}?{self._query}&X-Amz-Signature={signature}"

    def signature(self, path: str, headers: str) -> str:
        """Return the signature of a GET request.

        `headers` has the signed header lines after `host`.
        """
        host = self._signer.origin.partition("://")[2]
        request = (
            f"GET\n{path}\n{self._query}\nhost:{host}\n{headers}\n{self._headers}\nUNSIGNED-PAYLOAD"
        )
        digest = hashlib.sha256(request.encode()).hexdigest()
        return hmac.digest(self._key, (self._text + digest).encode(), "sha256").hex()


def signer_of(url: str, options: Mapping[str, str], environment: Mapping[str, str]) -> UrlSigner:
    """Return the signer for a store's URLs, from its options and the environment.

    Raises:
        StoreRefused: URLs of this store cannot be signed. The message has the reason.
        InvalidSetting: as in `open_store`.
    """
    place = without_credentials(url)
    import obstore
    from obstore.exceptions import BaseError
    from obstore.store import S3Store

    client = remote_client(url, options, REQUEST_TIMEOUT_MS)
    if not isinstance(client, S3Store):
        raise StoreRefused(f"{place}: URLs can be signed only for S3 and compatible stores")
    given = [client.config.get(name) or environment.get(f"AWS_{name.upper()}") for name in _KEYS]
    if not all(given):  # obstore would go and ask for some
        raise StoreRefused(f"{place}: {_NOT_KEYS}")
    try:
        probe = obstore.sign(client, "GET", _PROBE, timedelta(minutes=1))
    except (BaseError, ValueError) as error:
        reason = without_credentials_in(str(error).partition("\n")[0])
        raise StoreRefused(f"{place}: signing a URL failed: {reason}") from None
    signer = _shown_by(probe, str(given[-1]))
    if signer is None:
        raise StoreRefused(f"{place}: {_NOT_KEYS}")
    return signer


def _shown_by(probe: str, secret: str) -> UrlSigner | None:
    """Return a signer with the fields of a signed URL (`probe`) and this secret key.

    Returns None if the key does not reproduce the URL's signature.
    """
    parts = urlsplit(probe)
    try:
        shown = {name: values[0] for name, values in parse_qs(parts.query).items()}
        access_key_id, _, region, *_ = shown["X-Amz-Credential"].split("/")
        signer = UrlSigner(
            origin=f"{parts.scheme}://{parts.netloc}",
            path=parts.path.removesuffix(_PROBE),
            region=region,
            access_key_id=access_key_id,
            session_token=shown.get("X-Amz-Security-Token", ""),
            secret_access_key=secret,
        )
        date, seconds = shown["X-Amz-Date"], int(shown["X-Amz-Expires"])
        again = Signing(signer, date, seconds, expires_ms=0, headers=shown["X-Amz-SignedHeaders"])
        expected = shown["X-Amz-Signature"]
    except (KeyError, ValueError):
        return None
    return signer if hmac.compare_digest(again.signature(parts.path, ""), expected) else None
