"""Contexts from PEM files, what is wrong with files, and files that change."""

from __future__ import annotations

import os
import ssl
import warnings
from pathlib import Path
from typing import Final

import pytest

from penstock.security.development_ca import authority_in
from penstock.security.files import Reloading, UnusableFile
from penstock.security.tls import (
    ClientAuth,
    TlsFiles,
    TlsOptions,
    check_keystore,
    client_context,
    server_context,
)
from penstock.security.tls_settings import PROTOCOLS
from tests.security.certificates import keystore, now_ms, truststore

OPTIONS: Final = TlsOptions()
PASSWORD: Final = "of the key"


def server(
    files: TlsFiles, client_auth: ClientAuth = "none", options: TlsOptions = OPTIONS
) -> ssl.SSLContext:
    return server_context(files, options, client_auth, now_ms())


def client(files: TlsFiles, options: TlsOptions = OPTIONS) -> ssl.SSLContext:
    return client_context(files, options, check_host=True, now_ms=now_ms())


def shake_hands(
    there: ssl.SSLContext, here: ssl.SSLContext, host: str = "localhost"
) -> tuple[ssl.SSLObject, ssl.SSLObject]:
    """Both ends of a session, in memory; raises what either raises."""
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends = [
        there.wrap_bio(to_server, to_client, server_side=True),
        here.wrap_bio(to_client, to_server, server_hostname=host),
    ]
    for _ in range(8):
        for end in (ends[1], ends[0]):
            try:
                end.do_handshake()
                end.read(1)  # a server's refusal comes after the client's handshake (TLS 1.3)
            except ssl.SSLWantReadError:
                continue
    return ends[0], ends[1]


def subject(end: ssl.SSLObject) -> str:
    certificate = end.getpeercert()
    assert certificate
    parts = certificate["subject"]
    assert isinstance(parts, tuple)
    return str(parts[0][0][1])


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_a_session_of_each_version(tmp_path: Path, protocol: str) -> None:
    options = TlsOptions(protocols=(protocol,))
    there = server(TlsFiles(keystore=keystore(tmp_path)), options=options)
    both = shake_hands(there, client(TlsFiles(truststore=truststore(tmp_path))))
    assert [end.version() for end in both] == [protocol, protocol]
    assert subject(both[1]) == "broker"
    assert both[1].compression() is None


def test_older_versions_are_not_spoken(tmp_path: Path) -> None:
    there = server(TlsFiles(keystore=keystore(tmp_path)))
    here = client(TlsFiles(truststore=truststore(tmp_path)))
    here.set_ciphers("ALL:@SECLEVEL=0")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        here.minimum_version = ssl.TLSVersion.TLSv1
        here.maximum_version = ssl.TLSVersion.TLSv1_1
    with pytest.raises(ssl.SSLError):
        shake_hands(there, here)


def test_clients_that_have_to_show_a_certificate(tmp_path: Path) -> None:
    trusted = truststore(tmp_path)
    files = TlsFiles(keystore=keystore(tmp_path), truststore=trusted)
    mine = TlsFiles(keystore=keystore(tmp_path, "alice", hosts=()), truststore=trusted)
    there, _ = shake_hands(server(files, "required"), client(mine))
    assert subject(there) == "alice"
    with pytest.raises(ssl.SSLError):
        shake_hands(server(files, "required"), client(TlsFiles(truststore=trusted)))
    there, _ = shake_hands(server(files, "requested"), client(TlsFiles(truststore=trusted)))
    assert not there.getpeercert()


def test_certificates_of_another_authority(tmp_path: Path) -> None:
    trusted = truststore(tmp_path)
    files = TlsFiles(keystore=keystore(tmp_path), truststore=trusted)
    other = keystore(tmp_path, "mallory", hosts=(), ca="another CA")
    for auth in ("required", "requested"):
        with pytest.raises(ssl.SSLError):
            shake_hands(
                server(files, auth),
                client(TlsFiles(keystore=other, truststore=trusted)),
            )
    with pytest.raises(ssl.SSLError, match=r"self-signed certificate|unable to get local issuer"):
        shake_hands(server(files), client(TlsFiles(truststore=truststore(tmp_path, "another CA"))))


def test_a_server_of_another_name_and_a_client_as_a_server(tmp_path: Path) -> None:
    trusted = truststore(tmp_path)
    here = client(TlsFiles(truststore=trusted))
    with pytest.raises(ssl.SSLCertVerificationError):
        shake_hands(server(TlsFiles(keystore=keystore(tmp_path))), here, "elsewhere")
    theirs = keystore(tmp_path, "alice", hosts=())
    with pytest.raises(ssl.SSLCertVerificationError):
        shake_hands(server(TlsFiles(keystore=theirs)), here)


def test_sessions_are_not_resumed(tmp_path: Path) -> None:
    trusted = truststore(tmp_path)
    for protocol in PROTOCOLS:
        options = TlsOptions(protocols=(protocol,))
        there = server(TlsFiles(keystore=keystore(tmp_path)), options=options)
        _, end = shake_hands(there, client(TlsFiles(truststore=trusted), options))
        assert end.session is None or not end.session.has_ticket


def test_a_key_with_a_password_in_a_file_of_its_own(tmp_path: Path) -> None:
    whole = Path(keystore(tmp_path, password=PASSWORD)).read_bytes()
    end = whole.index(b"-----BEGIN CERTIFICATE")
    (tmp_path / "key.pem").write_bytes(whole[:end])
    (tmp_path / "chain.pem").write_bytes(whole[end:])
    files = TlsFiles(
        keystore=str(tmp_path / "chain.pem"),
        key=str(tmp_path / "key.pem"),
        key_password=PASSWORD,
        truststore=truststore(tmp_path),
    )
    shake_hands(server(files), client(TlsFiles(truststore=files.truststore)))
    assert PASSWORD not in repr(files)


def broken(tmp_path: Path, name: str) -> TlsFiles:
    """Files with one thing wrong."""
    one, other = keystore(tmp_path), keystore(tmp_path, "other")
    data = Path(one).read_bytes()
    end = data.index(b"-----BEGIN CERTIFICATE")
    path = tmp_path / f"{name}.pem"
    if name == "another key":
        path.write_bytes(data[:end] + Path(other).read_bytes()[end:])
    elif name == "no key":
        path.write_bytes(data[end:])
    elif name == "no certificate":
        path.write_bytes(data[:end])
    elif name == "cut off":
        path.write_bytes(data[:-200])
    elif name == "ended":
        return TlsFiles(keystore=keystore(tmp_path, name, days=-1))
    elif name in ("no password", "wrong password"):
        wrong = "wrong" if name == "wrong password" else ""
        return TlsFiles(keystore=keystore(tmp_path, name, password=PASSWORD), key_password=wrong)
    elif name == "no PEM":
        path.write_bytes(b"\x30\x82" + bytes(500))
    elif name == "huge":
        path.write_bytes(b"\n" * (5 << 20))
    return TlsFiles(keystore=str(path))


@pytest.mark.parametrize(
    ("name", "match"),
    [
        ("another key", "does not match the first certificate"),
        ("no key", "the private key in PEM is missing or invalid"),
        ("no certificate", "no certificates"),
        ("cut off", "no certificates|cannot be loaded"),
        ("ended", "expired on"),
        ("no password", "needs a password"),
        ("wrong password", "the private key in PEM is missing or invalid"),
        ("no PEM", "no certificates"),
        ("huge", "more than"),
        ("missing", "cannot be read: No such file"),
    ],
)
def test_what_is_wrong_with_a_keystore_is_said(tmp_path: Path, name: str, match: str) -> None:
    files = broken(tmp_path, name)
    with pytest.raises(UnusableFile, match=match) as refused:
        server(files)
    assert files.keystore in str(refused.value)
    assert "PRIVATE" not in str(refused.value)
    assert PASSWORD not in str(refused.value)


def test_client_certificates_need_a_truststore(tmp_path: Path) -> None:
    with pytest.raises(UnusableFile, match=r"ssl\.truststore\.location is not set"):
        server(TlsFiles(keystore=keystore(tmp_path)), "requested")
    empty = tmp_path / "empty.pem"
    empty.write_bytes(b"")
    with pytest.raises(UnusableFile, match=r"empty\.pem has no certificates"):
        server(TlsFiles(keystore=keystore(tmp_path), truststore=str(empty)), "required")
    with pytest.raises(UnusableFile, match="knows no cipher"):
        server(TlsFiles(keystore=keystore(tmp_path)), options=TlsOptions(ciphers="none such"))


def test_facts_of_a_certificate(tmp_path: Path) -> None:
    files = TlsFiles(keystore=keystore(tmp_path, days=10))
    facts = check_keystore(files, now_ms())
    assert facts.subject == "CN=broker"
    assert 9.9 < facts.days_left(now_ms()) <= 10
    with pytest.raises(UnusableFile, match="the certificate is not valid before 20"):
        check_keystore(files, now_ms() - 10 * 86_400_000)


def reloading(files: TlsFiles) -> Reloading[ssl.SSLContext]:
    return Reloading(files.paths(), lambda: server(files))


def later(path: str, seconds: int) -> None:
    """Give a file a time that it has not had."""
    status = Path(path).stat()
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns + seconds * 10**9))


def test_files_that_change_make_a_new_context(tmp_path: Path) -> None:
    files = TlsFiles(keystore=keystore(tmp_path))
    here = client(TlsFiles(truststore=truststore(tmp_path)))
    one = reloading(files)
    former = one.current
    open_session, _ = shake_hands(one.current, here)
    assert not one.reload()
    later(files.keystore, 5)
    assert not one.reload()  # the same in it
    assert one.current is former

    keystore(tmp_path, "renewed")
    (tmp_path / "renewed.keystore.pem").replace(files.keystore)
    assert one.reload()
    assert one.current is not former
    _, new = shake_hands(one.current, here)
    assert subject(new) == "renewed"
    assert open_session.version()
    assert (one.reloads, one.failures, one.failure) == (1, 0, "")


def test_bad_files_leave_the_former_context(tmp_path: Path) -> None:
    files = TlsFiles(keystore=keystore(tmp_path))
    one = reloading(files)
    former, good = one.current, Path(files.keystore).read_bytes()
    for bad in (good[:300], b"", keystore_of_another(tmp_path)):
        Path(files.keystore).write_bytes(bad)
        later(files.keystore, 5)
        assert not one.reload()
        assert one.failure
        assert one.current is former
    Path(files.keystore).unlink()
    assert not one.reload()
    assert "No such file" in one.failure
    Path(files.keystore).write_bytes(good)
    assert one.reload()
    assert one.failure == ""
    assert one.failures == 4


def keystore_of_another(tmp_path: Path) -> bytes:
    return Path(broken(tmp_path, "another key").keystore).read_bytes()


def test_a_change_that_times_do_not_show_is_found_when_asked(tmp_path: Path) -> None:
    files = TlsFiles(keystore=keystore(tmp_path))
    one = reloading(files)
    status = Path(files.keystore).stat()
    keystore(tmp_path, "other")
    same_size = (tmp_path / "other.keystore.pem").read_bytes()
    Path(files.keystore).write_bytes(same_size)
    os.utime(files.keystore, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert one.reload(look_closely=True)


def test_the_authority_of_a_directory_is_made_once(tmp_path: Path) -> None:
    made = authority_in(tmp_path / "ca", now_ms())
    again = authority_in(tmp_path / "ca", now_ms())
    assert made.pem == again.pem
    assert (tmp_path / "ca" / "ca-key.pem").stat().st_mode & 0o777 == 0o600
