"""Records that go through a pipeline again: dead letters, parked ones, and what a sink missed.

`letters.py` puts dead letters back on the topics they came from, `parked.py` asks a pipeline to
let go of what waits, `backfill.py` gives a sink that joined later what came before. Each of them
first shows what it would do; what it does, it does once, whenever it is interrupted.
"""
