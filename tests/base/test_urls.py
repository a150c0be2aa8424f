"""URLs are printed without anything that may be a secret."""

from __future__ import annotations

from urllib.parse import quote, urlsplit

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.base.urls import without_credentials, without_credentials_in


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("s3://bucket/prefix", "s3://bucket/prefix"),
        ("s3://user:word@bucket/prefix?sig=secret#x", "s3://bucket/prefix"),
        ("file:///data/a%20b", "file:///data/a%20b"),
        ("https://keys.example:8443/jwks?token=secret", "https://keys.example:8443/jwks"),
        ("postgresql://u:secret@[::1]:5432,db2:5433/name", "postgresql://[::1]:5432,db2:5433/name"),
        ("postgresql:///name?password=secret", "postgresql:///name"),
        ("user:secret@host/path", "host/path"),
        ("127.0.0.1:9644", "127.0.0.1:9644"),
        ("s3://bucket/mail@example/prefix", "s3://bucket/mail@example/prefix"),
        ("https://host:8443/a@b", "https://…"),
        ("", ""),
    ],
)
def test_a_url_keeps_scheme_hosts_and_path(url: str, shown: str) -> None:
    assert without_credentials(url) == shown


@pytest.mark.parametrize("mark", "/?#@:")
@pytest.mark.parametrize("scheme", ["s3://", "https://", "postgresql://", ""])
def test_a_password_with_an_unescaped_mark_is_hidden(scheme: str, mark: str) -> None:
    shown = without_credentials(f"{scheme}user:sec{mark}ret@host/path?sig=other")
    assert not any(part in shown for part in ("sec", "ret", "other"))
    assert shown.startswith(scheme)


def test_urls_within_a_text_are_found() -> None:
    text = "GET 'https://u:pw@host/a?sig=secret' failed, http://other/b?c=secret: 403"
    assert without_credentials_in(text) == "GET 'https://host/a' failed, http://other/b 403"


@given(
    secret=st.text(min_size=1),
    scheme=st.sampled_from(["s3", "https", "postgresql", "abfss"]),
    host=st.from_regex(r"[a-z0-9.-]{1,20}", fullmatch=True),
    port=st.none() | st.integers(1, 65_535),
    path=st.from_regex(r"(/[a-z0-9._~-]{1,8}){0,3}", fullmatch=True),
)
def test_every_escaped_url_is_shown_as_the_standard_library_reads_it(
    secret: str, scheme: str, host: str, port: int | None, path: str
) -> None:
    hidden = quote(f"<{secret}>", safe="")
    url = (
        f"{scheme}://{hidden}:{hidden}@{host}{f':{port}' if port else ''}{path}?a={hidden}#{hidden}"
    )
    shown = without_credentials(url)
    assert hidden not in shown
    assert urlsplit(shown)._replace(query="", fragment="") == urlsplit(shown)
    assert (urlsplit(shown).hostname, urlsplit(shown).port) == (host, port)
    assert urlsplit(shown).path == path
    assert without_credentials_in(f"error at {url} again") == f"error at {shown} again"


@given(st.text())
def test_no_text_is_refused(text: str) -> None:
    without_credentials(text)
    without_credentials_in(text)
