"""What lies in an object store, and reading it with nothing but the store.

Write-ahead objects and sealed segments: their formats, which bytes hold a range of offsets, making
batches of these bytes that a consumer takes, and making a segment of extents. Brokers, commands
and Spark's workers read by it.
"""
