"""The image that several tests run: made once."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.deploy.image import install, make_wheel


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_wheel(tmp_path_factory.mktemp("context"))


@pytest.fixture(scope="session")
def image(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("image")
    install(wheel, folder)
    return folder
