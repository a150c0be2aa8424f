"""Decoder of Avro's binary encoding: a kernel runs a program, made from the schemas, on each value.

    decoded, errors = run(program(writer, reader), values)

An Avro datum must fill its value, so bytes after it are an error. A value that cannot be decoded
becomes null, and its error names the field. `avro_program.py` makes the programs.

Source: the Avro 1.12 specification, "Binary Encoding".
"""

from __future__ import annotations

from functools import lru_cache
from typing import Final

import numpy as np
import pyarrow as pa

from penstock.formats.avro import Record, WriterSchema
from penstock.formats.avro_program import Program, program
from penstock.formats.leaves import Leaves
from penstock.formats.values import Values
from penstock.kernels import avro as kernel

_PROGRAMS_MAX: Final = 64


def decode(schema: Record, values: Values) -> tuple[pa.StructArray, pa.StringArray]:
    """Decode values that were written with the same schema, as `run` does."""
    return run(_program(schema), values)


def run(made: Program, values: Values) -> tuple[pa.StructArray, pa.StringArray]:
    """Decode values to structs, and return an error text for each value that cannot be decoded.

    Both arrays have one element per value, in order. For a null value both elements are null.
    """
    leaves = Leaves(root=made.root, rows=len(values), size_bytes=values.size_bytes)
    left = np.zeros(kernel.NESTING_MAX, np.int64)
    row, full = 0, 0
    while row < len(values):
        row, full = kernel.read_avro(
            made.steps, made.texts, leaves.table, leaves.valid, leaves.words, leaves.octets,
            leaves.marks, values.data, values.starts, values.ends, values.problems, row, left,
        )  # fmt: skip
        if row < len(values):
            leaves.grow(full)
    return leaves.array(), values.texts(made.words)


@lru_cache(_PROGRAMS_MAX)
def _program(schema: Record) -> Program:
    return program(WriterSchema(root=schema, records={}), schema)
