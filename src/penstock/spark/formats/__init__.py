"""Value formats: from the bytes of a record's value to columns."""

from penstock.spark.formats.value_format import ValueFormat

__all__ = ["ValueFormat"]
