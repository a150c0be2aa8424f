"""Several brokers of one machine in one command: `penstock serve --processes N`.

`apps/serve/plan.py` computes the settings of each broker. `apps/serve/parent.py` starts and
restarts the processes. `apps/serve/front.py` is the shared admin address, and `apps/serve/front.py`
merges the answers of several brokers.
"""
