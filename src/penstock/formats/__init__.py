"""Value formats: decoding of a record's value into columns of Arrow, without Spark.

Describing a format is light; its readers (`readers.py`) load NumPy and Arrow.
"""

from penstock.formats.errors import InvalidFormat
from penstock.formats.value_format import ValueFormat

__all__ = ["InvalidFormat", "ValueFormat"]
