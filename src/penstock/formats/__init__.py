"""Value formats: decode record values into Arrow columns, without Spark.

Importing this package is fast. Its readers (`readers.py`) import NumPy and Arrow.
"""

from penstock.formats.value_format import InvalidFormat, ValueFormat

__all__ = ["InvalidFormat", "ValueFormat"]
