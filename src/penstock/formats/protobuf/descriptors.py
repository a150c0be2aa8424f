"""Loader of message descriptors from Protobuf schema files.

A compiled descriptor set (`protoc --include_imports --descriptor_set_out`) is parsed. A `.proto`
file is compiled first, by the compiler of the package grpcio-tools; its imports are searched in its
own directory.
"""

from __future__ import annotations

import importlib
import tempfile
from pathlib import Path
from typing import Any, Final

from google.protobuf import descriptor_pb2
from google.protobuf.descriptor import Descriptor
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message import DecodeError

from penstock.formats.errors import InvalidFormat

COMPILED: Final = frozenset({".desc", ".binpb", ".pb"})
_WELL_KNOWN: Final = (
    "any", "duration", "empty", "field_mask", "source_context", "struct", "timestamp", "wrappers",
    "type", "api",
)  # fmt: skip


def load_message(path: Path, content: bytes, name: str | None) -> Descriptor:
    """Return the descriptor of the message with the full name `name`.

    If `name` is None, the file must define exactly one top-level message.

    Raises:
        InvalidFormat: the file does not compile, or has no such message.
    """
    if path.suffix == ".proto":
        content = _compiled(path)
    elif path.suffix not in COMPILED:
        raise InvalidFormat(
            "schema_file", path, f"must end in .proto or one of {', '.join(sorted(COMPILED))}"
        )
    files = descriptor_pb2.FileDescriptorSet()
    try:
        files.ParseFromString(content)
    except DecodeError as error:
        raise InvalidFormat("schema_file", path, "is not a compiled descriptor set") from error
    pool = _pool(path, files)
    names = _messages(files)
    if name is None:
        name = _only(path, files)
    if name not in names:
        known = ", ".join(sorted(names)[:20]) or "none"
        raise InvalidFormat("message", name, f"is not in {path.name}, which has: {known}")
    return pool.FindMessageTypeByName(name)


def _pool(path: Path, files: descriptor_pb2.FileDescriptorSet) -> DescriptorPool:
    pool = DescriptorPool()
    there = {file.name for file in files.file}
    for short in _WELL_KNOWN:
        module = importlib.import_module(f"google.protobuf.{short}_pb2")
        own = module.DESCRIPTOR
        if own.name not in there:
            pool.AddSerializedFile(own.serialized_pb)
    for file in files.file:
        try:
            pool.AddSerializedFile(file.SerializeToString())
        except TypeError as error:
            raise InvalidFormat(
                "schema_file", path,
                f"{file.name} cannot be loaded ({error}); compile it with --include_imports",
            ) from error  # fmt: skip
    return pool


def _messages(files: descriptor_pb2.FileDescriptorSet) -> set[str]:
    names: set[str] = set()
    for file in files.file:
        waiting = [(file.package, message) for message in file.message_type]
        while waiting:
            above, message = waiting.pop()
            full = f"{above}.{message.name}" if above else message.name
            names.add(full)
            waiting += [(full, inner) for inner in message.nested_type]
    return names


def _only(path: Path, files: descriptor_pb2.FileDescriptorSet) -> str:
    last = files.file[-1] if files.file else descriptor_pb2.FileDescriptorProto()
    names = [
        f"{last.package}.{message.name}" if last.package else message.name
        for message in last.message_type
    ]
    if len(names) != 1:
        raise InvalidFormat(
            "message", "", f"is required: {path.name} has {', '.join(names) or 'no messages'}"
        )
    return names[0]


def _compiled(path: Path) -> bytes:
    try:
        protoc: Any = importlib.import_module("grpc_tools.protoc")
        tools: Any = importlib.import_module("grpc_tools")
    except ImportError as error:
        raise InvalidFormat(
            "schema_file", path,
            "needs the package grpcio-tools to be compiled: pip install 'penstock[pipelines]', or "
            "give a descriptor set made by protoc --include_imports --descriptor_set_out",
        ) from error  # fmt: skip
    here = path.resolve()
    well_known = Path(tools.__file__).parent / "_proto"
    with tempfile.TemporaryDirectory() as directory:
        made = Path(directory) / "schema.binpb"
        arguments = [
            "protoc", f"-I{here.parent}", f"-I{well_known}", "--include_imports",
            f"--descriptor_set_out={made}", str(here),
        ]  # fmt: skip
        if protoc.main(arguments) != 0:
            raise InvalidFormat(
                "schema_file", path, "does not compile; the compiler's messages are above"
            )
        return made.read_bytes()


def indexes_of(message: Descriptor) -> tuple[int, ...]:
    """Return the positions of a message and its parents in their file, outermost first."""
    indexes: list[int] = []
    current: Descriptor | None = message
    while current is not None:
        above = current.containing_type
        siblings = (
            list(current.file.message_types_by_name.values())
            if above is None
            else list(above.nested_types)
        )
        indexes.append([sibling.full_name for sibling in siblings].index(current.full_name))
        current = above
    return tuple(reversed(indexes))
