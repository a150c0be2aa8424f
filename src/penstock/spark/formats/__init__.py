"""Value formats in Spark: from the bytes of a record's value to columns of a frame.

`decoders.decoder(value_format)` returns a decoder that adds two columns to a frame: `_value`, a
struct of the value's fields, and `_error`, the reason for a value that could not be decoded. No
value fails the query. Workers import only `binary.py`, so this file imports nothing.
"""
