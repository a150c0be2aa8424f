"""Databases as they were before, in SQL, and what was put into them."""
