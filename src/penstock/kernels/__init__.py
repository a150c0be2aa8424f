"""Compiled loops over bytes: the only code with a step per record or per character.

A kernel is a plain loop over NumPy arrays that Numba compiles; it runs without the interpreter's
lock. Callers (`records`, `formats`) check arguments and explain failures; a kernel allocates
nothing, trusts no byte that it reads, and returns a count or the number of a failure. Importing
Numba takes 0.3 s, so kernels are imported at first use. `compiling.py` caches compiled code.
"""
