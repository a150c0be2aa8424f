"""Three brokers under faults drawn from a seed, and a history of what their clients were told.

    python -m compat.faults --minutes 60            an hour of faults
    python -m compat.faults --seed 7 --faults 12    the first twelve faults of a seed

`network` gives each broker a network namespace, so that links between them can be cut one way;
`kinds` are the faults, `broker` is a broker whose disk can be made to fail, `run` draws faults,
waits until clients get on again, and says what it found.
"""
