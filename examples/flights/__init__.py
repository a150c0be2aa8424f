"""The flights of New York, 2013: a whole pipeline on one machine, from log to tables.

    make demo                        everything, at full speed, with one crash on the way
    make demo ARGS="--rate 20000"    flights arrive at 20,000 a second
    make demo ARGS="--no-crash"      without the crash

`__main__` tells the story; `data` reads the files, `broker` starts the log, `producer` writes to
it, `pipeline` is the Spark driver (`rules` says what is possible, `dead_letters` publishes what
is not), `watch` shows it at work, `proof` checks that every row arrived once, `report` sums up.
"""
