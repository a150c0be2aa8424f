"""Partitions on several brokers: who holds them, and how their copies stay alike.

`Epoch` is the leader's side of one partition, from the claim of an epoch to the end of its
leadership; `Replica` is the side of each copy, the leader's own included. Neither has I/O: shells
perform what they say. `sim/replication` tries these very classes in every order of events.

Modules are imported by their own names: a broker without replicated partitions loads few of them.
"""
