"""`penstock`, with a disk that fails one sync: the first one after a file with a name was made.

The file's path is the first argument; it is removed when the sync fails.
"""

from __future__ import annotations

import errno
import os
import sys
from typing import TYPE_CHECKING

from penstock.base.files import MachineFiles

if TYPE_CHECKING:
    from _typeshed import HasFileno

_SYNC = os.fdatasync


def main() -> None:
    """Run the command line that follows."""
    mark = sys.argv.pop(1)

    def sync_file(fd: int | HasFileno) -> None:
        try:
            os.unlink(mark)
        except FileNotFoundError:
            _SYNC(fd)
        else:
            raise OSError(errno.EIO, os.strerror(errno.EIO))

    MachineFiles.sync_file = staticmethod(sync_file)
    from penstock.apps.cli import main as penstock

    penstock()


if __name__ == "__main__":
    main()
