"""Inspection of log directories, Penstock's or Apache Kafka's, without a running store.

`directories` finds partitions, `verification` compares their files with each other, `stores`
compares them with journal and checkpoint, `dumping` shows the content of any one file, and `repair`
rebuilds what can be rebuilt and quarantines damaged data. Only `repair` writes.
"""
