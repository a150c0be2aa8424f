"""Command `penstock log dump`: prints stored batches, records and files, as text or JSON lines."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from penstock.apps.client.session import default_option
from penstock.apps.log.formats import JSON_COLUMNS, parse_format, render, render_json
from penstock.apps.log.sources import (
    Chosen,
    FileSource,
    Range,
    place_options,
    range_options,
    source_of,
)
from penstock.base.extras import check_installed
from penstock.base.ids import TopicPartition

if TYPE_CHECKING:
    from collections.abc import Iterator

    from penstock.storage.inspection.directories import PartitionFiles

RECORD_LAYOUT: Final = "    offset %o timestamp %T key %k headers %h value %s\\n"
_KINDS: Final = ("batches", "indexes", "snapshots", "epochs", "journal", "all")


@click.command("dump", short_help="Show batches, records, indexes, snapshots, journal.")
@click.option("--deep", is_flag=True, help="Show also the records of each batch.")
@default_option(
    "--what",
    "batches",
    "Kind of files to show; other kinds than batches require --data-dir.",
    click.Choice(_KINDS),
)
@click.option(
    "--file", "paths", multiple=True, type=click.Path(path_type=Path),
    help="Show only this file: a segment, index, snapshot, checkpoint or journal. May be repeated.",
)  # fmt: skip
@range_options
@place_options
def dump(chosen: Chosen, deep: bool, what: str, paths: tuple[Path, ...], wanted: Range) -> None:
    """Show stored batches by their headers, and with --deep also their records.

    Nothing is changed, and segments of a running broker can be read. With --output json every
    batch, record or index entry is one line. Bytes that are not UTF-8 are shown as U+FFFD. --deep
    needs the extra `client`.
    """
    if deep:
        check_installed("client")
    out = _Out(chosen.state.json, deep)
    if paths:
        for path in paths:
            _dump_file(out, str(path), wanted)
        return
    if what != "batches" and chosen.data_dir is None:
        raise click.UsageError(f"--what {what} requires --data-dir")
    if what in ("batches", "all"):
        with source_of(chosen) as source:
            for where in source.partitions():
                out.head(f"{where}")
                for batch in source.batches(where, wanted):
                    out.batch(where, batch.header, batch.position, batch.place, batch.read)
    if what != "batches":
        for name in _other_files(chosen, what):
            out.rows(name)


def _dump_file(out: _Out, path: str, wanted: Range) -> None:
    from penstock.base.files import MACHINE_FILES
    from penstock.storage.files.values import LOG, parse_directory_name
    from penstock.storage.files.walk import walk_file

    if not path.endswith(LOG):
        out.rows(path)
        return
    where = parse_directory_name(Path(path).absolute().parent.name) or TopicPartition("", 0)
    out.head(path)
    for found in walk_file(MACHINE_FILES, path):
        if wanted.has(found.header):
            place = f"{path}, byte {found.position}"
            out.batch(where, found.header, found.position, place, found.read)


def _other_files(chosen: Chosen, what: str) -> Iterator[str]:
    """Yield the paths of the files other than segments that `what` selects.

    Files of partitions come first, then checkpoints and journals.
    """
    from penstock.storage.files.values import CHECKPOINT_FILE
    from penstock.storage.inspection.stores import journal_files

    source = FileSource(chosen)
    for where in source.partitions():
        for files in source.files(where):
            yield from _files_of(files, what)
    for root in chosen.roots() if what in ("journal", "all") else ():
        checkpoint = Path(root, CHECKPOINT_FILE)
        if checkpoint.exists():
            yield str(checkpoint)
        yield from journal_files(root)


def _files_of(files: PartitionFiles, what: str) -> Iterator[str]:
    from penstock.storage.files.values import (
        EPOCHS_FILE,
        INDEX,
        METADATA_FILE,
        TIME_INDEX,
        TXN_INDEX,
    )

    paths: list[str] = []
    if what in ("indexes", "all"):
        for base in files.segments:
            paths += [files.file(base, suffix) for suffix in (INDEX, TIME_INDEX, TXN_INDEX)]
    if what in ("snapshots", "all"):
        paths += [files.file(*snapshot) for snapshot in files.snapshots]
    if what in ("epochs", "all"):
        paths += [str(Path(files.path, name)) for name in (METADATA_FILE, EPOCHS_FILE)]
    yield from (path for path in paths if Path(path).exists())


class _Out:
    """Writer to stdout, as text or as JSON lines."""

    def __init__(self, as_json: bool, deep: bool) -> None:
        self._json = as_json
        self._deep = deep
        self._layout = parse_format(RECORD_LAYOUT)

    def head(self, text: str) -> None:
        if not self._json:
            click.echo(text)

    def rows(self, path: str) -> None:
        """Write the content of a file that is not a segment."""
        from penstock.storage.inspection.dumping import rows_of

        self.head(path)
        for row in rows_of(path):
            self._row({"file": path, **row}, row)

    def batch(
        self, where: TopicPartition, header: Any, position: int, place: str, read: Any
    ) -> None:
        """Write one batch as its header and whether it is valid; with `deep` also its records."""
        from penstock.base.errors import PenstockError
        from penstock.records import verify_crc
        from penstock.storage.inspection.dumping import batch_row

        data = read()
        row = batch_row(header, position)
        try:
            verify_crc(data, header)
            row = batch_row(header, position, data)
            row["valid"] = True
        except PenstockError as error:
            row.update(valid=False, reason=str(error))
        self._row({"partition": str(where), "place": place, **row}, row)
        if self._deep and row["valid"] and not header.is_control and header.record_count:
            try:
                self._records(where, data)
            except PenstockError as error:
                error.add_note(place)
                raise

    def _row(self, whole: dict[str, Any], short: dict[str, Any]) -> None:
        if self._json:
            click.echo(json.dumps(whole, default=str))
        else:
            words = [f"{name} {_word(value)}" for name, value in short.items() if value is not None]
            click.echo("  " + ", ".join(words))

    def _records(self, where: TopicPartition, data: bytes) -> None:
        import pyarrow as pa

        from penstock.records.columnar.decode import decode_batches

        names = [name for name in JSON_COLUMNS if name != "partition"]
        columns = decode_batches(data, columns=names)
        number = pa.array([where.partition], pa.int32()).take(pa.repeat(0, columns.num_rows))
        columns = columns.append_column("partition", number)
        if self._json:
            written = render_json(columns, where.topic, {})
        else:
            written = render(columns, self._layout, where.topic)
        sys.stdout.flush()
        sys.stdout.buffer.write(written)
        sys.stdout.buffer.flush()


def _word(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
