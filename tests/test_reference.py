"""The generated references say what the code declares."""

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest
from matplotlib.transforms import Bbox

from penstock.spark.pipeline.spec import NAMED, PROTECT, RULE, SINGLE, TOP

SCRIPTS = Path(__file__).resolve().parent.parent / "scripts"


def loaded(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, SCRIPTS / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def reference() -> ModuleType:
    return loaded("reference")


@pytest.fixture(scope="module")
def picture() -> ModuleType:
    return loaded("picture")


def test_references_are_up_to_date(reference: ModuleType) -> None:
    stale = [
        path.name
        for path, text in reference.pages().items()
        if not path.exists() or path.read_text(encoding="utf-8") != text
    ]
    assert stale == [], "run python scripts/reference.py"


def test_references_name_every_kind_of_setting(reference: ModuleType) -> None:
    text = reference.configuration_page()
    for name in ("`node.id`", "`journal.files.max`", "`retention.ms`", "`log.retention.hours`"):
        assert name in text
    assert "| `kafka_brokers` | gauge |" in reference.metrics_page()


def test_the_command_line_is_whole(reference: ModuleType) -> None:
    text = reference.cli_page()
    for command in ("serve", "topic trim-prefix", "group seek", "config set", "doctor"):
        assert f"## penstock {command}\n" in text
    assert "`-b, --bootstrap HOST:PORT,…`" in text


def test_the_pipeline_file_and_the_options_of_spark_are_whole(reference: ModuleType) -> None:
    text = reference.pipeline_page()
    for table in (TOP, RULE, PROTECT, *NAMED.values(), *SINGLE.values()):
        assert table.heading in text or table is TOP
        for key in table.keys:
            assert key.kind is not None
            assert f"| `{key.name}` | {key.kind.words} | {key.shown}" in text
            assert f" | {key.doc} |" in text
    for name in ("`maxBytesPerTrigger`", "`codec` or `kafka.compression.type`"):
        assert f"| {name} | " in reference.spark_page()


def test_the_picture_is_up_to_date(picture: ModuleType) -> None:
    stored = picture.PICTURE.read_text(encoding="utf-8")
    assert stored == picture.svg(), "run python scripts/picture.py"


def test_the_picture_renders_with_each_text_inside_its_box(picture: ModuleType) -> None:
    source = picture.load()
    figure, texts = picture.drawn(source)
    figure.canvas.draw()
    places: list[Bbox] = []
    for name, text in texts.items():
        x, y, width, height = source["box"][name]["at"]
        low, high = text.axes.transData.transform([(x, y), (x + width, y + height)])
        box = Bbox([low, high])
        drawn = text.get_window_extent()
        assert drawn.width > 0, name
        assert box.x0 < drawn.x0 < drawn.x1 < box.x1, name
        assert box.y0 < drawn.y0 < drawn.y1 < box.y1, name
        assert not any(box.overlaps(other) for other in places), name
        places.append(box)
    assert {name for arrow in source["arrows"] for name in arrow} == texts.keys()
