"""Facts of a host: files of /proc and /sys, ethtool, sockets, a disk's syncs.

Every function reads a `Tree`, the directory in place of `/`, and returns plain values of
`penstock.planner.host_check`; an unreadable value is None, with a reason in the tree.
"""

from penstock.apps.host_reading.files import Tree
from penstock.apps.host_reading.host import Reading, existing, quantile, read_host, sync_times_ms
from penstock.apps.host_reading.network import Request

__all__ = ["Reading", "Request", "Tree", "existing", "quantile", "read_host", "sync_times_ms"]
