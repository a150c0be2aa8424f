"""Partitions that several brokers replicate: placement, leader epochs, and replication of logs.

`Epoch` is the leader's core of one partition, from the claim of an epoch to the end of the
leadership. `Replica` is the core of each replica, including the leader's own. Neither has I/O;
shells perform their effects. `sim/replication` runs the same classes with every order of events.

The package re-exports nothing, so that a broker without replicated partitions loads few modules.
"""
