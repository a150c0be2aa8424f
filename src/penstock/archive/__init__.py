"""Formats of data in an object store, and reading it with nothing but the store.

It holds write-ahead objects and sealed segments: their formats, lookups of bytes by offset,
assembly of batches for consumers, and building of segments. Brokers, commands and Spark workers use
it.
"""
