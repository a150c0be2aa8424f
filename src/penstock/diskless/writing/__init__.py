"""From produced batches to committed objects: `ObjectWriter` over the core `Gathering`."""

from penstock.diskless.writing.submission import Submission
from penstock.diskless.writing.writer import ObjectWriter

__all__ = ["ObjectWriter", "Submission"]
