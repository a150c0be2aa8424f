"""Images that several tests run: each made once."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.deploy.built import BuiltImage, build
from tests.deploy.image import install, make_wheel


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_wheel(tmp_path_factory.mktemp("context"))


@pytest.fixture(scope="session")
def image(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("image")
    install(wheel, folder)
    return folder


@pytest.fixture(scope="session")
def built(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BuiltImage]:
    """The image as its container file describes it. It takes minutes."""
    with build(tmp_path_factory.mktemp("built")) as image:
        yield image
