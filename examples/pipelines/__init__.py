"""Pipelines to copy: a file each, and records to try it with."""
