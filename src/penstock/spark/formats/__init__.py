"""Value formats in Spark: from the bytes of a record's value to columns of a frame.

`decoders.decoder(value_format)` loads and checks what a format names, and the decoder it gives adds
two columns to a frame: `_value`, a struct of the value's fields, and `_error`, which says what is
wrong with a value that could not be decoded. No value ever fails the query.

Workers import `binary.py` from here and nothing beside it, so nothing is imported in this file.
"""
