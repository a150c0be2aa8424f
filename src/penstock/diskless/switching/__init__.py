"""What copies the logs of a local topic into the object store, so that it can become diskless."""

from penstock.diskless.switching.copying import TopicCopy
from penstock.diskless.switching.part import SwitchingPart

__all__ = ["SwitchingPart", "TopicCopy"]
