"""Builder of the kernels' machine code for a platform wheel or a clone.

    kernels --Numba--> intermediate code --LLVM--> kernels.o --┐
    signatures --wrapping.py--> native.c -------------------- cc --> _native.abi3.so

`python -m penstock.kernels.ahead FOLDER` writes kernels.o and native.c; `setup.py` runs it and the
C compiler. The code runs on any processor of the architecture, unless NUMBA_CPU_NAME names another
type. The build needs Numba, the wheel does not.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any, Final

from llvmlite import binding

ENVIRONMENT: Final = {
    "PENSTOCK_KERNELS_BUILD": "1",
    "NUMBA_CPU_NAME": "generic",
    "NUMBA_CPU_FEATURES": "",
}
"""Variables of a build; those that are set already stay."""
OBJECT: Final = "kernels.o"
SOURCE: Final = "native.c"
_OPTIMISATION: Final = 3


def build(folder: Path, names: Sequence[str] = ()) -> None:
    """Write the object file and the C source of the module `_native` into a folder.

    Args:
        folder: existing folder.
        names: modules of this package whose kernels are built; all if empty.
    """
    from penstock.kernels import compiling, sources, wrapping

    digest = sources.digest()  # first: a module of sources that change meanwhile is never loaded
    modules = [import_module(f"{__package__}.{name}") for name in names or sources.modules()]
    machine = binding.Target.from_default_triple().create_target_machine(
        cpu=os.environ["NUMBA_CPU_NAME"], opt=_OPTIMISATION, reloc="pic"
    )
    whole = binding.parse_assembly("")
    made: list[tuple[str, Any]] = []
    for module in modules:
        for kernel in _public(module):
            symbol = compiling.symbol(kernel.py_func)
            (result,) = kernel.overloads.values()
            whole.link_in(_alone(result, f"{wrapping.PREFIX}{symbol}", machine))
            made.append((symbol, result.signature))
    (folder / OBJECT).write_bytes(machine.emit_object(whole))
    (folder / SOURCE).write_text(wrapping.module_source(digest, made))


def _public(module: ModuleType) -> list[Any]:
    """Return the kernels that a module defines for callers outside of this package."""
    return [
        value
        for name, value in vars(module).items()
        if not name.startswith("_")
        and hasattr(value, "py_func")
        and value.py_func.__module__ == module.__name__
    ]


def _alone(result: Any, symbol: str, machine: Any) -> Any:
    """Return the intermediate code of a kernel, without Numba's wrappers and under a new name."""
    name = re.escape(result.fndesc.llvm_func_name)
    text = re.sub(rf'@"?{name}"?\(', f"@{symbol}(", result.library.get_llvm_str())
    module = binding.parse_assembly(text)
    for function in module.functions:
        if not function.is_declaration and function.name != symbol:
            function.linkage = "internal"
    passes = binding.create_new_module_pass_manager()
    passes.add_global_dead_code_eliminate_pass()
    passes.run(
        module, binding.create_pass_builder(machine, binding.create_pipeline_tuning_options())
    )
    return module


if __name__ == "__main__":
    for variable, value in ENVIRONMENT.items():
        os.environ.setdefault(variable, value)
    build(Path(sys.argv[1]))
