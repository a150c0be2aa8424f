r"""Writer of the C source of module `_native`, which calls the kernels' machine code from Python.

Numba's calling convention, on which this module depends:

    int32 kernel(result *, error **, arguments…)     0 unless an exception was raised
    array     owner, parent, number of items, size of an item, data, shape…, strides…
    tuple     its elements
    boolean   a byte

A wrapper checks the types of its arguments by Python's buffer protocol and releases the GIL.
The C source uses the stable ABI of Python 3.11, so the module runs with all later versions.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

from numba import types
from numba.np.numpy_support import as_dtype

_PREAMBLE: Final = """\
#define Py_LIMITED_API 0x030B0000
#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdint.h>
#include <string.h>

typedef struct { Py_buffer views[%d]; int count; } Buffers;

static void let_go(Buffers *held) {
    while (held->count > 0) PyBuffer_Release(&held->views[--held->count]);
}

static Py_buffer *buffer(Buffers *held, PyObject *given, int dims, const char *kinds, int size,
                         int writable) {
    Py_buffer *view = &held->views[held->count];
    int flags = PyBUF_C_CONTIGUOUS | PyBUF_FORMAT | (writable ? PyBUF_WRITABLE : 0);
    if (PyObject_GetBuffer(given, view, flags) < 0) return NULL;
    held->count++;
    const char *kind = view->format ? view->format : "B";
    if (view->ndim != dims || view->itemsize != size || strlen(kind) != 1
        || !strchr(kinds, *kind)) {
        PyErr_Format(PyExc_TypeError, "a kernel needs an array of %%d dimensions and type %%s of"
                     " %%d bytes; the array has %%d, %%s and %%zd", dims, kinds, size, view->ndim,
                     kind, view->itemsize);
        return NULL;
    }
    return view;
}

static int elements(PyObject *given, Py_ssize_t count) {
    if (PyTuple_Check(given) && PyTuple_Size(given) == count) return 1;
    PyErr_Format(PyExc_TypeError, "a kernel needs a tuple of %%zd elements", count);
    return 0;
}

static int counted(Py_ssize_t given, Py_ssize_t count) {
    if (given == count) return 1;
    PyErr_Format(PyExc_TypeError, "a kernel needs %%zd arguments, not %%zd", count, given);
    return 0;
}

static uint64_t unsigned_number(PyObject *given) {
    PyObject *whole = PyNumber_Index(given);
    if (!whole) return (uint64_t)-1;
    uint64_t value = PyLong_AsUnsignedLongLong(whole);
    Py_DecRef(whole);
    return value;
}

static PyObject *failed(void) {
    PyErr_SetString(PyExc_IndexError, "a kernel would access bytes outside of an array");
    return NULL;
}
"""
PREFIX: Final = "penstock_"
"""Prefix of the kernels' symbols in the object file."""
_KINDS: Final = {
    "uint8": "B", "uint16": "H", "int32": "il", "int64": "lq", "uint64": "LQ", "float64": "d",
    "boolean": "?",
}  # fmt: skip
_NUMBERS: Final = {
    "int64": ("int64_t", "PyLong_AsLongLong", "PyLong_FromLongLong"),
    "uint64": ("uint64_t", "unsigned_number", "PyLong_FromUnsignedLongLong"),
    "boolean": ("uint8_t", "PyObject_IsTrue", "PyBool_FromLong"),
}
"""Numba's types of numbers: the type in C, and the functions from and to Python's objects."""


class Wrapper:
    """C function that calls one kernel.

    Args:
        name: symbol of the kernel in the object file.
        signature: types of its arguments and its result, as Numba has them.
    """

    def __init__(self, name: str, signature: Any) -> None:
        self._name = name
        self._result = signature.return_type
        self._arguments: tuple[Any, ...] = signature.args
        self._reads: list[str] = []
        self._kinds: list[str] = []
        self._passed: list[str] = []
        for number, kind in enumerate(self._arguments):
            self._add(kind, f"given[{number}]")
        self.buffers = sum("buffer(" in line for line in self._reads)

    def source(self) -> str:
        """Return the text of the function and the declaration of its kernel."""
        declared = ", ".join(["void *", "void **", *self._kinds])
        passed = ", ".join(["&result", "&error", *self._passed])
        count = len(self._arguments)
        lines = [
            f"extern int32_t {PREFIX}{self._name}({declared});",
            f"static PyObject *call_{self._name}(PyObject *module, PyObject *const *given,"
            " Py_ssize_t count) {",
            "    Buffers held; held.count = 0; void *error = NULL; int32_t status;",
            f"    {self._result_type()} result; memset(&result, 0, sizeof result);",
            f"    if (!counted(count, {count})) return NULL;",
            *(f"    {line}" for line in self._reads),
            "    Py_BEGIN_ALLOW_THREADS",
            f"    status = {PREFIX}{self._name}({passed});",
            "    Py_END_ALLOW_THREADS",
            "    let_go(&held);",
            "    if (status != 0) return failed();",
            f"    return {self._returned()};",
            "stop:",
            "    let_go(&held);",
            "    return NULL;",
            "}",
        ]
        return "\n".join(lines)

    def _add(self, kind: Any, given: str) -> None:
        if isinstance(kind, types.Array):
            self._add_array(kind, given)
        elif isinstance(kind, types.BaseTuple):
            items = tuple(kind)
            self._reads.append(f"if (!elements({given}, {len(items)})) goto stop;")
            for number, item in enumerate(items):
                self._add(item, f"PyTuple_GetItem({given}, {number})")
        else:
            written, reader, _ = _NUMBERS[_name(kind)]
            value = f"value{len(self._reads)}"
            self._reads.append(
                f"{written} {value} = ({written}){reader}({given});"
                f" if ({value} == ({written})-1 && PyErr_Occurred()) goto stop;"
            )
            self._kinds.append(written)
            self._passed.append(value)

    def _add_array(self, kind: Any, given: str) -> None:
        view = f"view{len(self._reads)}"
        size = as_dtype(kind.dtype).itemsize
        self._reads.append(
            f"Py_buffer *{view} = buffer(&held, {given}, {kind.ndim},"
            f' "{_KINDS[_name(kind.dtype)]}", {size}, {int(kind.mutable)});'
            f" if (!{view}) goto stop;"
        )
        self._kinds += ["void *", "void *", "int64_t", "int64_t", "void *"]
        self._passed += ["NULL", "NULL", f"{view}->len / {size}", str(size), f"{view}->buf"]
        for field in ("shape", "strides"):
            self._kinds += ["int64_t"] * kind.ndim
            self._passed += [f"{view}->{field}[{axis}]" for axis in range(kind.ndim)]

    def _result_type(self) -> str:
        if isinstance(self._result, types.BaseTuple):
            fields = (f"{_NUMBERS[_name(kind)][0]} f{at};" for at, kind in enumerate(self._result))
            return f"struct {{ {' '.join(fields)} }}"
        return "void *" if self._result is types.none else _NUMBERS[_name(self._result)][0]

    def _returned(self) -> str:
        if isinstance(self._result, types.BaseTuple):
            made = [
                f"{_NUMBERS[_name(kind)][2]}(result.f{at})" for at, kind in enumerate(self._result)
            ]
            return f'Py_BuildValue("({"N" * len(made)})", {", ".join(made)})'
        if self._result is types.none:
            return "Py_NewRef(Py_None)"
        return f"{_NUMBERS[_name(self._result)][2]}(result)"


def _name(kind: Any) -> str:
    return "boolean" if kind is types.boolean else str(kind)


def module_source(digest: str, kernels: Sequence[tuple[str, Any]]) -> str:
    """Return the C source of the module, for the names and signatures of kernels."""
    wrappers = [(name, Wrapper(name, signature)) for name, signature in kernels]
    views = max(wrapper.buffers for _, wrapper in wrappers)
    return "\n".join(_parts(digest, views, wrappers))


def _parts(digest: str, views: int, wrappers: Sequence[tuple[str, Wrapper]]) -> Iterator[str]:
    yield _PREAMBLE % views
    for _, wrapper in wrappers:
        yield wrapper.source()
    yield "static PyMethodDef methods[] = {"
    for name, _ in wrappers:
        yield f'    {{"{name}", (PyCFunction)(void (*)(void))call_{name}, METH_FASTCALL, NULL}},'
    yield "    {NULL, NULL, 0, NULL}\n};"
    yield "static int filled(PyObject *module) {"
    yield f'    return PyModule_AddStringConstant(module, "SOURCES", "{digest}");'
    yield "}"
    yield "static PyModuleDef_Slot slots[] = {{Py_mod_exec, filled}, {0, NULL}};"
    yield 'static PyModuleDef module = {PyModuleDef_HEAD_INIT, "_native", NULL, 0, methods, slots};'
    yield "PyMODINIT_FUNC PyInit__native(void) { return PyModuleDef_Init(&module); }"
    yield ""
