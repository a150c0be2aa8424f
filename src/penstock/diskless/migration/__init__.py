"""Migration of a topic's records: from logs into the object store, and from the store into logs."""

from penstock.diskless.migration.copying import TopicCopy
from penstock.diskless.migration.filling import FilledLog, TopicFilling
from penstock.diskless.migration.part import MigrationPart

__all__ = ["FilledLog", "MigrationPart", "TopicCopy", "TopicFilling"]
