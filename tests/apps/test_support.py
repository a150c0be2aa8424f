"""`penstock support bundle`: what it takes, and what it never takes."""

from __future__ import annotations

import json
import tarfile
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from penstock.apps.support.collecting import LOG_BYTES_MAX, logs
from penstock.apps.support.command import BUNDLE_BYTES_MAX, FILE_BYTES_MAX, Bundle
from penstock.apps.support.redaction import Redactor, names_secret
from penstock.testing import Broker
from tests.apps.conftest import Ran, Run

PAYLOAD = b"payload-that-stays-here"
PLANTED = {
    "database": "db-3kf9A",
    "jaas": "jaas-77Qx",
    "listener": "listener-5Tz",
    "front": "option-9Lm",
    "log": "log-c2Vj",
    "query": "query-8Hd",
}
CONFIG = """
control.url = "postgresql://user:{database}@127.0.0.1:1/penstock?sslpassword={query}"
diskless.storage.url = "s3://key:{query}@bucket/prefix?secret_key={query}"
"some.password" = "{front}"
log.dirs = "{directory}"
"""
LOG = """
connected to postgresql://user:{database}@db/penstock?password={query}
sasl.jaas.config=org.Module required username="u" password="{jaas}";
Authorization: Bearer {log}
{{"token": "{log}", "ok": true}}
the value {front} without a name
-----BEGIN PRIVATE KEY-----
{listener}
-----END PRIVATE KEY-----
"""

secrets = st.text(
    st.characters(min_codepoint=33, max_codepoint=126, exclude_characters="\"'`<>${}[],;&#"),
    min_size=8,
    max_size=40,
)


def opened(path: Path) -> dict[str, str]:
    """The files of a bundle by name."""
    found = {}
    with tarfile.open(path) as archive:
        for member in archive.getmembers():
            content = archive.extractfile(member)
            assert content is not None
            found[member.name.partition("/")[2]] = content.read().decode()
    return found


@pytest.fixture
def planted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with secrets in the configuration, the environment, the profile and a log."""
    directory = tmp_path / "data"
    (tmp_path / "broker.toml").write_text(CONFIG.format(directory=directory, **PLANTED))
    (tmp_path / "broker.log").write_text(LOG.format(**PLANTED))
    profiles = tmp_path / "profiles.toml"
    jaas = f"org.Module required username='u' password='{PLANTED['jaas']}';"
    profiles.write_text(
        f'[default]\n"security.protocol" = "SASL_PLAINTEXT"\n"sasl.mechanism" = "PLAIN"\n'
        f'"sasl.jaas.config" = "{jaas}"\n'
    )
    monkeypatch.setenv("PENSTOCK_PROFILES", str(profiles))
    name = "KAFKA_LISTENER_NAME_CLIENT_SSL_KEY_PASSWORD"
    monkeypatch.setenv(name, PLANTED["listener"])
    return tmp_path


def bundled(run: Run, planted: Path) -> tuple[Ran, dict[str, str]]:
    """Write a bundle of the planted files without a broker; return its texts by name."""
    target = planted / "bundle.tar.gz"
    done = run(
        "-b", "127.0.0.1:1", "support", "bundle", "--output-file", str(target), "--config",
        str(planted / "broker.toml"), "--log", str(planted / "broker.log"), "-X",
        "default.api.timeout.ms=200",
    )  # fmt: skip
    assert done.status == 0, done.err
    return done, opened(target)


def test_no_planted_secret_is_in_a_bundle(bare: Run, planted: Path) -> None:
    done, files = bundled(bare, planted)
    assert {"settings.json", "log-0-broker.log.txt", "doctor.json", "host.json"} <= {*files}
    for text in (*files.values(), done.out, done.err):
        assert [name for name, secret in PLANTED.items() if secret in text] == []
    assert "control.url" in json.loads(files["settings.json"])["broker"]
    assert '"token": "[hidden]", "ok": true}' in files["log-0-broker.log.txt"]


def test_no_secret_is_in_a_bundle_of_invalid_settings(bare: Run, planted: Path) -> None:
    """The environment has a secret, which the log repeats without its name."""
    (planted / "broker.toml").write_text("log.dirs = ")
    (planted / "broker.log").write_text(PLANTED["listener"])
    done, files = bundled(bare, planted)
    assert "missing: settings: configuration file" in done.out
    assert PLANTED["listener"] not in "".join(files.values())


def test_a_bundle_of_a_running_broker_describes_it(bare: Run, tmp_path: Path) -> None:
    target = tmp_path / "bundle.tar.gz"
    target.touch(0o644)
    with Broker(directory=tmp_path / "data") as broker, broker.client() as client:
        broker.create_topic("orders")
        client.write_arrow("orders", pa.table({"key": [b"k" + PAYLOAD], "value": [PAYLOAD]}))
        client.commit_offsets("readers", {("orders", 0): 1})
        done = bare(
            "-b", broker.bootstrap, "support", "bundle", "--output-file", str(target),
            "--data-dir", str(tmp_path / "data"), "--log", __file__, "--output", "json",
        )  # fmt: skip
    assert done.status == 0, done.err
    files = opened(target)
    listed: dict[str, Any] = json.loads(files["manifest.json"])
    assert {item["name"] for item in listed["files"]} == {*files} - {"manifest.json"}
    assert listed["missing"] == []
    assert json.loads(done.out)["files"] == listed["files"]
    assert "orders" in json.loads(files["topics.json"])["topics"]
    assert json.loads(files["groups.json"])["groups"]["readers"]["offsets"] == [
        {"topic": "orders", "partition": 0, "offset": 1}
    ]
    assert "penstock_kafka_connections" in files["metrics-0.txt"]
    assert json.loads(files["health-0.json"])["status"] == "ok"
    assert "penstock" in json.loads(files["packages.json"])
    assert json.loads(files["host.json"])["limits"]["nofile"]
    assert json.loads(files["formats.json"])["in_use"] is True
    others = [text for name, text in files.items() if not name.startswith("log-")]
    assert not any(PAYLOAD.decode() in text for text in others)
    assert target.stat().st_mode & 0o777 == 0o600


def test_a_bundle_without_a_broker_lists_what_is_missing(bare: Run, tmp_path: Path) -> None:
    target = tmp_path / "bundle.tar.gz"
    (tmp_path / "there.log").write_text("a line\n")
    done = bare(
        "-b", "127.0.0.1:1", "support", "bundle", "--output-file", str(target), "--log",
        str(tmp_path / "none.log"), "--log", str(tmp_path / "there.log"), "--data-dir",
        str(tmp_path / "none"), "--admin", "127.0.0.1:1,127.0.0.1:2", "-X",
        "default.api.timeout.ms=200",
    )  # fmt: skip
    assert done.status == 0, done.err
    files = opened(target)
    missing = {
        item["subject"]: item["cause"] for item in json.loads(files["manifest.json"])["missing"]
    }
    assert missing.keys() == {"cluster", "metrics", "logs", "formats"}
    assert all(f"missing: {subject}: " in done.out for subject in missing)
    assert files["log-1-there.log.txt"] == "a line\n"
    assert "127.0.0.1:1" in missing["metrics"]
    assert "127.0.0.1:2" in missing["metrics"]


def test_the_newest_lines_of_a_large_log_are_taken(tmp_path: Path) -> None:
    log = tmp_path / "broker.log"
    log.write_text("first\n" + "x" * LOG_BYTES_MAX + "\nlast\n")
    assert [*logs([log])] == [("log-0-broker.log.txt", "last\n")]
    log.write_text("\n" * 6_000 + "last\n")
    ((_, text),) = logs([log])
    assert text == "\n" * 4_999 + "last\n"


def test_a_large_file_is_cut() -> None:
    made = Bundle(Redactor(), {"earlier": bytes(BUNDLE_BYTES_MAX - FILE_BYTES_MAX)})
    made.add("large", "x\n" * (FILE_BYTES_MAX // 2) + "y")
    made.add("late", "x\n")
    assert [item["cut"] for item in made.files] == [True, True]
    assert len(made.contents["large"]) == FILE_BYTES_MAX
    assert made.contents["late"].decode().startswith("\n… the rest is left out")


@settings(max_examples=300, deadline=None)
@given(secret=secrets, name=st.sampled_from(["password", "sasl.password", "my_token", "api-key"]))
@example(secret="a\\nb%20c/d", name="password")
def test_a_named_secret_is_removed(secret: str, name: str) -> None:
    redact = Redactor()
    for text in (
        f"{name}={secret}", f"{name}: {secret} and more", f'{{"{name}": {json.dumps(secret)}}}',
        f"{name}='{secret}'", f"url postgresql://user:{secret.replace('/', 'x')}@host/name",
    ):  # fmt: skip
        assert secret.replace("/", "x") not in redact(text).replace("/", "x")


@settings(max_examples=300, deadline=None)
@given(secret=secrets | st.text(min_size=8, max_size=40), before=st.text(), after=st.text())
def test_a_known_secret_is_removed_everywhere(secret: str, before: str, after: str) -> None:
    shown = Redactor([secret])(f"{before}{secret}{after}")
    assert secret not in shown or secret in "[hidden]" or secret in before + after


@pytest.mark.timeout(60)
@pytest.mark.parametrize("word", ["x", "x.y-", "a:", "password "])
def test_long_words_take_linear_time(word: str) -> None:
    assert Redactor(["secret"])(word * (1 << 17))


def test_names_of_secrets() -> None:
    hidden = (
        "ssl.key.password", "sasl.jaas.config", "aws_secret_access_key", "token", "AccessKeyId",
        "account-key", "sas",
    )  # fmt: skip
    shown = ("log.dirs", "tokens.count", "message.max.bytes", "passive", "sasl.mechanism")
    assert [name for name in hidden if not names_secret(name)] == []
    assert [name for name in shown if names_secret(name)] == []
