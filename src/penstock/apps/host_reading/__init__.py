"""Reading a host: files of /proc and /sys, ethtool, sockets, a disk's syncs.

Every function takes a `Tree`, the directory that stands for `/`, and gives plain values of
`penstock.planner.host_check`; what cannot be read is None, with a reason in the tree's notebook.
Nothing is changed, and nothing is written but a nameless file whose syncs are timed.
"""

from penstock.apps.host_reading.disks import existing, quantile, sync_times_ms
from penstock.apps.host_reading.files import Tree
from penstock.apps.host_reading.host import Reading, read_host
from penstock.apps.host_reading.network import Request

__all__ = ["Reading", "Request", "Tree", "existing", "quantile", "read_host", "sync_times_ms"]
