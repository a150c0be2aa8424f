"""Every order of events of one replicated partition, tried on the cores of the product.

`python -m sim.replication` explores; `model.py` says what is modelled and what is folded.
"""
