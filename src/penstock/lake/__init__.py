"""Iceberg tables: schemas, data files, and commits that store each batch once.

Modules of this package need the extra `iceberg`, except for `target`.
"""
