"""Passwords in files and environment variables, named by an option."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.base.errors import InvalidSetting
from penstock.client.security import ClientSecuritySettings, resolve, settings_of
from penstock.security.files import UnusableFile

SCRAM = {"security.protocol": "SASL_SSL", "sasl.username": "admin"}


def password(text: str) -> str:
    settings: ClientSecuritySettings = settings_of(SCRAM | {"sasl.password": text})
    return settings.sasl_password


def test_a_file_a_key_and_a_variable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "admin.password").write_text("first ${ second\n")
    (tmp_path / "all.properties").write_text("admin = s\\u00e4\nother=o\n")
    monkeypatch.setenv("PASSWORD_OF_A_TEST", "from a variable")
    assert password(f"${{file:{tmp_path}/admin.password}}") == "first ${ second"
    assert password(f"${{file:{tmp_path}/all.properties:admin}}") == "sä"
    assert password("${env:PASSWORD_OF_A_TEST}") == "from a variable"
    assert password(f"<${{file:{tmp_path}/all.properties:other}}>") == "<o>"
    assert password("a $plain {password}") == "a $plain {password}"
    monkeypatch.chdir(tmp_path)
    assert password("${file:admin.password}") == "first ${ second"


@pytest.mark.parametrize(
    "text", ["${admin.password}", "a${", "${file:}", "${vault:a}", "${env:A}${", "${file:a"]
)
def test_another_reference_is_refused_without_the_value(text: str) -> None:
    with pytest.raises(InvalidSetting, match=r"\$\{file:PATH\}") as refused:
        resolve("sasl.password", f"secret {text}")
    assert "sasl.password" in str(refused.value)
    assert "secret" not in str(refused.value)


def test_what_is_not_there_is_named(tmp_path: Path) -> None:
    (tmp_path / "all.properties").write_text("admin=a\n")
    with pytest.raises(UnusableFile, match=r"nowhere cannot be read"):
        resolve("sasl.password", f"${{file:{tmp_path}/nowhere}}")
    with pytest.raises(InvalidSetting, match=r"has no key other"):
        resolve("sasl.password", f"${{file:{tmp_path}/all.properties:other}}")
    with pytest.raises(InvalidSetting, match=r"has no variable NOT_THERE_AT_ALL"):
        resolve("sasl.password", "${env:NOT_THERE_AT_ALL}")
