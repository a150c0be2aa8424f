"""Checks of the other files that a pipeline names: schemas, SQL, Python and the keyring.

Python files are not run, because they may import packages that only the cluster has. The checks
find a step's function in the syntax tree, and compare the number of its parameters with the step's
inputs.
"""

from __future__ import annotations

import ast
from dataclasses import replace
from pathlib import Path
from typing import Final

from penstock.security.data.file_ring import KeyPlace, ring_at
from penstock.security.data.key_ring import KeyRingUnusable
from penstock.spark.pipeline.document import PipelineInvalid, Problem, read, read_text
from penstock.spark.pipeline.draft import Draft, Section
from penstock.spark.pipeline.kinds import nearest
from penstock.spark.pipeline.locations import Key, dotted
from penstock.spark.pipeline.spec import PipelineSpec, Source, Step

_FUNCTIONS: Final = (ast.FunctionDef, ast.AsyncFunctionDef)


def check(draft: Draft) -> None:
    for source in draft.sources.values():
        if source.get("schema_file"):
            _exists(draft, (*source.key, "schema_file"), source.get("schema_file"))
    for step in draft.steps.values():
        if step.get("sql_file"):
            _exists(draft, (*step.key, "sql_file"), step.get("sql_file"))
        if step.get("python"):
            _python(draft, step)


def sql_text(draft: Draft, step: Section) -> str | None:
    """Return a step's SQL, from `sql_file` or `sql`; None if it is missing or cannot be read."""
    file: Path | None = step.get("sql_file")
    if file is None:
        text = step.get("sql")
        return None if text is None else str(text)
    try:
        return read_text(file, "") if file.is_file() else None
    except PipelineInvalid as invalid:
        _unreadable(draft, (*step.key, "sql_file"), invalid)
        return None


def _unreadable(draft: Draft, key: Key, invalid: PipelineInvalid) -> None:
    problems = [replace(problem, where=dotted(key)) for problem in invalid.problems]
    draft.problems.extend(problem for problem in problems if problem not in draft.problems)


def _exists(draft: Draft, key: Key, file: Path) -> bool:
    if file.is_file():
        return True
    siblings = tuple(sorted(path.name for path in file.parent.glob(f"*{file.suffix}"))[:1000])
    close = nearest(file.name, siblings)
    fix = f"there is {close} beside it" if close else "paths are relative to the pipeline's file"
    draft.refuse(key, f"there is no file {file}", fix)
    return False


def _python(draft: Draft, step: Section) -> None:
    file, function = step.get("python")
    key = (*step.key, "python")
    if not _exists(draft, key, file):
        return
    try:
        tree = ast.parse(read_text(file, ""))
    except PipelineInvalid as invalid:
        _unreadable(draft, key, invalid)
        return
    except (SyntaxError, ValueError) as error:
        line = error.lineno if isinstance(error, SyntaxError) else None
        said = error.msg if isinstance(error, SyntaxError) else str(error)
        draft.problems.append(
            Problem(file=file, line=line, where=dotted(key), message=said, fix="fix the syntax")
        )
        return
    names = _names(tree)
    if function not in names:
        close = nearest(function, tuple(names))
        given = step.raw["python"].rpartition(":")[0]
        fix = f"write {given}:{close}" if close else f"define {function} at the top of the file"
        draft.refuse(key, f"{given} has no function {function}", fix)
    found = names.get(function)
    inputs = step.get("inputs")
    if isinstance(found, _FUNCTIONS) and inputs:
        _parameters(draft, step, found, len(inputs))


def _names(tree: ast.Module) -> dict[str, ast.stmt]:
    found: dict[str, ast.stmt] = {}
    for node in tree.body:
        if isinstance(node, _FUNCTIONS):
            found[node.name] = node
        elif isinstance(node, (ast.Import, ast.ImportFrom)):
            found |= {(name.asname or name.name): node for name in node.names}
        elif isinstance(node, ast.Assign):
            found |= {name.id: node for name in node.targets if isinstance(name, ast.Name)}
    return found


def _parameters(
    draft: Draft, step: Section, function: ast.FunctionDef | ast.AsyncFunctionDef, inputs: int
) -> None:
    arguments = function.args
    most = len(arguments.posonlyargs) + len(arguments.args)
    least = most - len(arguments.defaults)
    if isinstance(function, ast.AsyncFunctionDef):
        fix = "write def without async"
        draft.refuse((*step.key, "python"), f"{function.name} is a coroutine", fix)
    elif inputs < least or (inputs > most and arguments.vararg is None):
        draft.refuse(
            (*step.key, "inputs"),
            f"{function.name} takes {most} frames (line {function.lineno} of its file), "
            f"but {inputs} are given",
            "name one view for each parameter",
        )


def keys_of(spec: PipelineSpec) -> KeyPlace | None:
    """Return the location of a pipeline's keyring; None if the file names none."""
    if spec.run.keys is None:
        return None
    return KeyPlace(ring=spec.run.keys, master=spec.run.master_key)


def check_keys(spec: PipelineSpec) -> None:
    """Check that the pipeline's keyring can be opened, if a protection needs it.

    Raises:
        PipelineInvalid: the keyring is missing or readable by others, or its master key does not
            fit.
    """
    place = keys_of(spec)
    parts: list[Source | Step] = [*spec.sources.values(), *spec.steps.values()]
    if place is None or not any(
        protection.needs_keys for part in parts for protection in part.protections
    ):
        return
    try:
        ring_at(place)
    except KeyRingUnusable as error:
        problem = read(spec.file).problem(("run", "keys"), str(error))
        raise PipelineInvalid((problem,)) from error
