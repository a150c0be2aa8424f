"""Several brokers of one machine in one command: `penstock serve --processes N`.

`plan.py` computes the settings of each broker. `parent.py` starts and restarts the processes.
`front.py` is the shared admin address, and `admin_text.py` merges the answers of several brokers.
"""
