"""Databases of release 0.1 in SQL, and the contents that they were filled with."""
