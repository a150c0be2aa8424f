"""Value formats: what the bytes of a record's value are, and how they become columns of Arrow.

Nothing in here imports Spark. What says a format is light; its readers (`readers.py`) load NumPy
and Arrow, and are imported by their own names.
"""

from penstock.formats.errors import InvalidFormat
from penstock.formats.value_format import ValueFormat

__all__ = ["InvalidFormat", "ValueFormat"]
