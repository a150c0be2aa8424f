"""Value formats in Spark: decoders from the bytes of a record's value to columns of a frame.

`decoders.decoder(value_format)` returns a decoder that adds two columns to a frame: `_value`, a
struct of the value's fields, and `_error`, the reason if the value could not be decoded. No value
fails the query. Workers import only `decoders.py`, so this file imports nothing.
"""
