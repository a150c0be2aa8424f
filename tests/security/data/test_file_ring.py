"""The keyring in a directory: what it promises through crashes, processes and curious users."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from penstock.security.data.file_ring import FILE, FileKeyRing, KeyPlace
from penstock.security.data.key_ring import KeyRingUnusable, SubjectKey, SubjectTooLong
from penstock.security.data.master_keys import generated, master_keys
from penstock.security.data.sealing import open_value, seal_value
from tests.security.data.conftest import VARIABLE, opened

SUBJECTS = [f"customer-{number}" for number in range(1_200)]


def ids(found: list[SubjectKey | None]) -> list[bytes | None]:
    return [None if entry is None else entry.key_id for entry in found]


def all_bytes(folder: Path) -> bytes:
    return b"".join(path.read_bytes() for path in sorted(folder.iterdir()))


def test_a_subject_keeps_its_key(ring: FileKeyRing, place: KeyPlace) -> None:
    made = ids(ring.for_encryption([*SUBJECTS, SUBJECTS[0]]))
    assert len(set(made)) == len(SUBJECTS)
    assert made[0] == made[-1]
    other = opened(place)
    assert ids(other.for_decryption(SUBJECTS)) == made[:-1]
    assert ids(other.for_encryption(SUBJECTS)) == made[:-1]
    assert other.for_decryption(["nobody"]) == [None]
    assert ring.counts().living == len(SUBJECTS)
    assert [entry.subject for entry in ring.entries(3)] == sorted(SUBJECTS)[:3]


def test_a_shredded_subject_has_no_key_and_gets_none(ring: FileKeyRing, place: KeyPlace) -> None:
    other = opened(place)
    sealed = seal_value(other, "a17", b"value")
    assert sealed is not None
    assert ring.shred("a17")
    assert not ring.shred("a17")
    assert not ring.shred("nobody")
    # The other one had the key in memory.
    assert open_value(other, "a17", sealed) is None
    assert seal_value(other, "a17", b"again") is None
    assert (ring.counts().living, ring.counts().shredded) == (0, 1)
    assert ring.readmit("a17")
    assert not ring.readmit("a17")
    again = seal_value(other, "a17", b"again")
    assert again is not None
    assert open_value(ring, "a17", again) == b"again"
    assert open_value(ring, "a17", sealed) is None


def test_rows_that_page_splits_copied_are_shredded_everywhere(
    ring: FileKeyRing, place: KeyPlace
) -> None:
    """The oracle is the file: a row's key that it has twice was copied by a split."""
    copied: dict[str, bytes] = {}
    for round_number in range(500):
        ring.for_encryption([f"round-{round_number}-{number:04}" for number in range(20)])
        stored = all_bytes(place.ring)
        rows = ring._connection.execute("select subject, wrapped from keys where subject not null")
        copied = {subject: key for subject, key in rows if stored.count(key[12:44]) > 1}
        if copied:
            break
    assert copied
    for subject in copied:
        assert ring.shred(subject)
        assert not ring.shred(subject)
    after = all_bytes(place.ring)
    assert not [subject for subject, key in copied.items() if key[12:44] in after]
    assert not [subject for subject in copied if subject.encode() in after]


def test_no_file_has_a_shredded_key_or_its_subject(ring: FileKeyRing, place: KeyPlace) -> None:
    ring.for_encryption(SUBJECTS)
    wrapped = dict(
        ring._connection.execute(
            "select subject, wrapped from keys where subject like 'customer-7%'"
        )
    )
    assert len(wrapped) > 100
    before = all_bytes(place.ring)
    assert all(key in before for key in wrapped.values())
    for subject in wrapped:
        assert ring.shred(subject)
    after = all_bytes(place.ring)
    assert sorted(path.name for path in place.ring.iterdir() if path.name != "master.key") == [FILE]
    assert not [subject for subject, key in wrapped.items() if key in after or key[12:44] in after]
    assert b"customer-777" not in after
    assert b"customer-111" in after


def test_a_rotation_makes_copies_worthless(ring: FileKeyRing, place: KeyPlace) -> None:
    other = opened(place)
    sealed = seal_value(other, "a17", b"value")
    assert sealed is not None
    ring.for_encryption(SUBJECTS)
    before = ids(ring.for_decryption(SUBJECTS))
    old = (place.ring / FILE).read_bytes()
    count, todo = ring.rotate()
    assert count == len(SUBJECTS) + 1
    assert (VARIABLE in todo) == (place.master is not None)
    # Those that were open go on, and find the new master key.
    assert open_value(other, "a17", sealed) == b"value"
    assert ids(other.for_encryption(SUBJECTS)) == before
    if place.master is not None:
        os.environ[VARIABLE] = os.environ.pop(f"{VARIABLE}_NEXT")
    assert ids(opened(place).for_decryption(SUBJECTS)) == before
    (place.ring / FILE).write_bytes(old)
    with pytest.raises(KeyRingUnusable, match=r"wrapped by master key .* the given master key is"):
        opened(place)


def test_a_rotation_to_the_same_key_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(VARIABLE, generated().decode())
    ring = FileKeyRing.create(tmp_path / "ring", master_keys(f"env:{VARIABLE}"))
    with pytest.raises(KeyRingUnusable, match=f"{VARIABLE}_NEXT with the next master key"):
        ring.rotate()
    monkeypatch.setenv(f"{VARIABLE}_NEXT", os.environ[VARIABLE])
    with pytest.raises(KeyRingUnusable, match="the next master key equals the present one"):
        ring.rotate()
    assert ring.for_encryption(["a17"]) != [None]


@pytest.mark.parametrize(
    ("name", "mode"),
    [("", 0o750), ("", 0o701), (FILE, 0o640), (FILE, 0o604), ("master.key", 0o644)],
)
def test_what_others_can_read_is_refused(tmp_path: Path, name: str, mode: int) -> None:
    place = KeyPlace(ring=tmp_path / "ring")
    FileKeyRing.create(place.ring, master_keys(place.master_place)).close()
    assert (place.ring / FILE).stat().st_mode & 0o777 == 0o600
    assert place.ring.stat().st_mode & 0o777 == 0o700
    assert Path(place.master_place).stat().st_mode & 0o777 == 0o600
    (place.ring / name).chmod(mode)
    with pytest.raises(KeyRingUnusable, match=f"its mode {mode:04o} gives other users access"):
        opened(place)


def test_modes_do_not_depend_on_the_umask(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        place = KeyPlace(ring=tmp_path / "ring")
        FileKeyRing.create(place.ring, master_keys(place.master_place)).for_encryption(SUBJECTS)
    finally:
        os.umask(before)
    opened(place)
    assert {path.stat().st_mode & 0o777 for path in place.ring.iterdir()} == {0o600}


def test_what_is_no_ring_is_refused(tmp_path: Path, place: KeyPlace) -> None:
    with pytest.raises(KeyRingUnusable, match="No such file"):
        opened(KeyPlace(ring=tmp_path / "nowhere", master=place.master))
    with pytest.raises(KeyRingUnusable, match="already contains a keyring"):
        FileKeyRing.create(place.ring, master_keys(place.master_place))
    (place.ring / FILE).write_bytes(b"no database" * 100)
    with pytest.raises(KeyRingUnusable, match="not a database"):
        opened(place)
    (place.ring / FILE).write_bytes(b"")
    with pytest.raises(KeyRingUnusable, match="Create one with `penstock keys init`"):
        opened(place)


def test_damage_in_the_ring_is_an_error_and_not_a_missing_key(
    ring: FileKeyRing, place: KeyPlace
) -> None:
    ring.for_encryption(["a17", "b2"])
    rows = dict(ring._connection.execute("select subject, wrapped from keys"))
    ring._connection.execute("update keys set wrapped = ? where subject = 'a17'", (rows["b2"],))
    with pytest.raises(KeyRingUnusable, match="the master key cannot unwrap a key"):
        opened(place).for_decryption(["a17"])


@pytest.mark.parametrize("text", ["", "no base64 at all", "c2hvcnQ=", "QUFB" * 20])
def test_a_master_key_that_is_none_is_not_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    monkeypatch.setenv(VARIABLE, text)
    with pytest.raises(KeyRingUnusable) as caught:
        FileKeyRing.create(tmp_path / "ring", master_keys(f"env:{VARIABLE}"))
    assert VARIABLE in str(caught.value)
    assert not text or text not in str(caught.value)


def test_a_subject_that_is_too_long_is_refused_unseen(ring: FileKeyRing) -> None:
    with pytest.raises(SubjectTooLong, match="has 2000 bytes; the limit is 1024") as caught:
        ring.for_encryption(["private" * 285 + "12345"])
    assert "private" not in str(caught.value)


def test_keys_in_memory_are_bounded(place: KeyPlace) -> None:
    ring = FileKeyRing(place.ring, master_keys(place.master_place), cached_max=100)
    made = ids(ring.for_encryption(SUBJECTS))
    assert ids(ring.for_encryption(SUBJECTS)) == made
    assert len(ring._cached) <= 100


def test_nothing_shows_a_secret(ring: FileKeyRing) -> None:
    ring.for_encryption(["a17"])
    secrets = [ring._secret, ring.secret("token:customer")]
    shown = f"{ring!r} {ring} {ring.for_encryption(['a17'])!r} {ring._masters!r} {ring._master!r}"
    for secret in secrets:
        assert secret.hex() not in shown
        assert repr(secret)[2:-1] not in shown


def test_threads_share_a_ring(ring: FileKeyRing) -> None:
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda _: ids(ring.for_encryption(SUBJECTS[:300])), range(8)))
    assert all(entry == found[0] for entry in found)


# Processes

_MAKING = """
import sys
from pathlib import Path
from penstock.security.data.file_ring import KeyPlace, ring_at
ring = ring_at(KeyPlace(ring=Path(sys.argv[1]), master=sys.argv[2] or None))
for first in range(0, 1200, 50):
    names = [f"customer-{n}" for n in range(first, first + 50)]
    for name, key in zip(names, ring.for_encryption(names)):
        print(name, key.key_id.hex(), flush=True)
"""


def _process(place: KeyPlace, program: str) -> subprocess.Popen[str]:
    arguments = [
        sys.executable,
        "-c",
        textwrap.dedent(program),
        str(place.ring),
        place.master or "",
    ]
    return subprocess.Popen(arguments, stdout=subprocess.PIPE, text=True)


def test_processes_that_make_keys_at_once_agree(place: KeyPlace) -> None:
    running = [_process(place, _MAKING) for _ in range(3)]
    said = [item.communicate(timeout=60)[0].splitlines() for item in running]
    assert [entry.returncode for entry in running] == [0, 0, 0]
    assert said[0] == said[1] == said[2]
    assert len(said[0]) == 1_200


@pytest.mark.parametrize("lines", [1, 60, 333])
def test_a_key_that_was_given_out_outlives_a_kill(place: KeyPlace, lines: int) -> None:
    running = _process(place, _MAKING)
    assert running.stdout is not None
    said = [running.stdout.readline() for _ in range(lines)]
    running.send_signal(signal.SIGKILL)
    said += running.stdout.read().splitlines(keepends=True)
    running.wait(timeout=60)
    running.stdout.close()
    given = dict(line.split() for line in said if line.endswith("\n"))
    assert len(given) >= lines
    ring = opened(place)
    found = ids(ring.for_decryption(list(given)))
    assert [entry.hex() for entry in found if entry is not None] == list(given.values())


_ROTATING = """
import os, signal, sys
from pathlib import Path
from penstock.security.data import file_ring, master_keys, secret_files
from penstock.security.data.file_ring import KeyPlace, ring_at
ring = ring_at(KeyPlace(ring=Path(sys.argv[1]), master=sys.argv[2] or None))
left = int(os.environ["KILLED_AT"])

def counted(of, name):
    real = getattr(of, name)
    def call(*arguments, **others):
        global left
        if left == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        left -= 1
        return real(*arguments, **others)
    setattr(of, name, call)

for name in ("open", "create", "write_at", "sync_file", "rename", "sync_directory"):
    counted(master_keys.MACHINE_FILES, name)
class Statements:
    def __init__(self, real):
        self.real = real
    def __getattr__(self, name):
        return getattr(self.real, name)
    def execute(self, *arguments):
        return self.real.execute(*arguments)
    def executemany(self, *arguments):
        return self.real.executemany(*arguments)

ring._connection = Statements(ring._connection)
for of, name in ((Statements, "execute"), (Statements, "executemany"), (file_ring, "_wrap")):
    counted(of, name)
ring.rotate()
print("rotated", left)
"""


def test_a_rotation_that_is_killed_anywhere_loses_nothing(
    place: KeyPlace, monkeypatch: pytest.MonkeyPatch
) -> None:
    ring = opened(place)
    sealed = seal_value(ring, "a17", b"value")
    assert sealed is not None
    killed = 0
    while True:
        monkeypatch.setenv("KILLED_AT", str(killed))
        running = _process(place, _ROTATING)
        said = running.communicate(timeout=60)[0]
        assert open_value(opened(place), "a17", sealed) == b"value"
        assert open_value(ring, "a17", sealed) == b"value"
        if running.returncode == 0:
            assert said.startswith("rotated")
            break
        assert running.returncode == -signal.SIGKILL
        killed += 1
        if place.master is not None and ring._present().key_id == ring._masters.read()[-1].key_id:
            monkeypatch.setenv(VARIABLE, os.environ[f"{VARIABLE}_NEXT"])
            monkeypatch.setenv(f"{VARIABLE}_NEXT", generated().decode())
    assert killed > 12
    assert not (place.ring / "master.key.next").exists()
