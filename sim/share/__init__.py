"""Share partitions in every order of events: two brokers, two members, one row."""
