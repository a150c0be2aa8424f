"""Writing of objects: `ObjectWriter` for producers, `StagedObjects` for commits of sinks."""

from penstock.diskless.writing.objects import Submission
from penstock.diskless.writing.staged import ObjectPlace, StagedObjects
from penstock.diskless.writing.writer import ObjectWriter

__all__ = ["ObjectPlace", "ObjectWriter", "StagedObjects", "Submission"]
