"""Migration of a topic's logs into the object store, and out of it into logs."""

from penstock.diskless.migration.copying import TopicCopy
from penstock.diskless.migration.filling import FilledLog, TopicFilling
from penstock.diskless.migration.part import MigrationPart

__all__ = ["FilledLog", "MigrationPart", "TopicCopy", "TopicFilling"]
