"""Compiled loops over bytes: the only code that takes a step per record or per character.

A kernel is a plain loop over NumPy arrays that Numba compiles to machine code, which runs without
the interpreter's lock. Callers (`records`, `formats`) check what they pass and say what a failure
means; a kernel allocates nothing, trusts no byte that it reads, and returns a count or the number
of a failure.

Modules of kernels are imported where they are first used, because importing Numba takes 0.3 s:
a broker that opens no records never does. `compiling.py` says where compiled code is kept.
"""
