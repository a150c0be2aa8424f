"""Every order of events of one transactional id, tried on the core of the product.

`python -m sim.transactions` explores; `model.py` says what is modelled and what is folded.
"""
