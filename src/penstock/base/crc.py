"""CRC32C (Castagnoli), the checksum of record batches and frames, in hardware: 10-30 GiB/s.

Source: RFC 3720, appendix B.4; the `crc32c` package, which reads any buffer without a copy.
"""

from __future__ import annotations

from crc32c import crc32c as _crc32c

Readable = bytes | bytearray | memoryview


def crc32c(buffer: Readable, initial: int = 0) -> int:
    """Return the checksum of `buffer`, continuing from `initial`, as an unsigned 32-bit int."""
    return int(_crc32c(buffer, initial))
