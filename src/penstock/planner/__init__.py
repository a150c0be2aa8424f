"""The planner: pure calculations that size, cost and check, each figure with its formula.

    inputs (settings, with units) ──> one function per plan ──> Plan ──> table, JSON, plot, form

Every plan is a function from typed inputs to a `Plan`, whose figures say by which formula and from
which source they come. Nothing here does I/O but for tables that come with it (`tables.py`):
whoever calls reads files, hosts and topics first. Inputs are declared like settings, so that a
command line, a file and a form are made from one declaration.
"""
