"""Planner: pure calculations that size, cost and check, with a formula for each figure.

    inputs (settings, with units) ──> one function per plan ──> Plan ──> table, JSON, plot, form

Every plan is a function from typed inputs to a `Plan`, whose figures have a formula and a source.
The planner reads no files except its own tables (`inputs.py`): the caller reads files, hosts and
topics first. Inputs are declared like settings, so that a command line, a file and a form share one
declaration.
"""
