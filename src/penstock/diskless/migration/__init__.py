"""What copies the logs of a topic into the object store, and out of it into logs again."""

from penstock.diskless.migration.copying import TopicCopy
from penstock.diskless.migration.filling import FilledLog, TopicFilling
from penstock.diskless.migration.part import MigrationPart

__all__ = ["FilledLog", "MigrationPart", "TopicCopy", "TopicFilling"]
