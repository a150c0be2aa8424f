"""Formats of data in an object store, and readers that need only the store.

This covers write-ahead objects and sealed segments: their formats, lookup of bytes by offset,
assembly of batches for consumers, and building of segments. Brokers, commands and Spark workers use
it.
"""
