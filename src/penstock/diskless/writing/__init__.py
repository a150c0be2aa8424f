"""From produced batches to committed objects: `ObjectWriter` over the core `Gathering`."""

from penstock.diskless.writing.submission import Submission

__all__ = ["Submission"]
