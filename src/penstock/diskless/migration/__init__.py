"""What copies the logs of a local topic into the object store, so that it can become diskless."""

from penstock.diskless.migration.copying import TopicCopy
from penstock.diskless.migration.part import MigrationPart

__all__ = ["MigrationPart", "TopicCopy"]
