"""Planner: pure functions that size clusters, compute costs and check hosts.

    inputs (settings, with units) ──> one function per plan ──> Plan ──> table, JSON, plot, form

Each plan is a function from typed inputs to a `Plan`. Each figure of a plan has its formula and its
source. The planner reads no files except its own tables (`quantities.py`). Its caller reads files,
hosts and topics first. Inputs are declared like settings, so one declaration serves the command
line, files and forms.
"""
