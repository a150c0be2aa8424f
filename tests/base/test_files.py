"""Small files are replaced as a whole."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.base.files import MACHINE_FILES, sync_directory, write_durably


def test_a_file_is_replaced_and_nothing_is_left_beside_it(tmp_path: Path) -> None:
    path = tmp_path / "new" / "state.json"
    write_durably(path, b"first")
    write_durably(path, b"2nd")
    assert path.read_bytes() == b"2nd"
    assert list(path.parent.iterdir()) == [path]


def test_only_directories_have_names(tmp_path: Path) -> None:
    sync_directory(MACHINE_FILES, tmp_path)
    (tmp_path / "file").touch()
    with pytest.raises(NotADirectoryError):
        sync_directory(MACHINE_FILES, tmp_path / "file")
