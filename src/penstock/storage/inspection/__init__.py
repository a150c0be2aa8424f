"""What lies in log directories, Penstock's or Apache Kafka's, looked at from outside a store.

`directories` finds partitions, `verification` compares their files with each other, `stores` the
journal and the checkpoint with them, `dumping` shows what any one file holds, and
`repair` makes anew what can be made anew and sets aside what is rotten. Only `repair` writes.
"""
