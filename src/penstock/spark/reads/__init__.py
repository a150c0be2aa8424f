"""Reads of the log by Spark: offsets, tasks, and bytes of files and objects."""
