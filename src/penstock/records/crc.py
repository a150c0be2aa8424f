"""The checksum of RecordBatch v2: `penstock.base.crc`, by the name that this room uses for it."""

from penstock.base.crc import Readable, crc32c

__all__ = ["Readable", "crc32c"]
