"""Reading of a host's facts: files of /proc and /sys, ethtool, socket buffers, syncs of a disk.

Most functions read below a `Tree`, a directory that takes the place of `/`. They return values of
`penstock.planner.host_check`. A value that cannot be read is None, and the tree has the reason.
"""

from penstock.apps.host_reading.files import Tree
from penstock.apps.host_reading.host import Reading, existing, quantile, read_host, sync_times_ms
from penstock.apps.host_reading.network import Request

__all__ = ["Reading", "Request", "Tree", "existing", "quantile", "read_host", "sync_times_ms"]
