"""Leader epochs of replicated partitions: reservations, and the chain of opened epochs."""
