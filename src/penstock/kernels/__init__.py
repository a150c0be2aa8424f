"""Compiled loops over bytes: the only code with a step per record or per character.

A kernel is a plain loop over NumPy arrays, which Numba compiles. It runs without Python's global
interpreter lock. Callers (`records`, `formats`) check the arguments and write the error texts. A
kernel allocates no memory, checks every byte that it reads, and returns a count or the number of a
problem. Kernels are imported at first use. A platform wheel has their machine code, as a clone has
after `make setup` (`ahead.py`). Otherwise Numba compiles them, and `jit.py` caches the code.
"""
