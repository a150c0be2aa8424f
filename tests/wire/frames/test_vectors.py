"""The codec and both machines against the vectors, which were made without them."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from penstock.host.client_machine import ClientMachine, ClientState, ClientTerms, Disconnect
from penstock.host.credits import NO_CREDIT, Credit
from penstock.host.errors import ProtocolViolation
from penstock.host.port import ACCEPTED as TAKEN
from penstock.host.port import Chunks, Failed, Introduction
from penstock.host.publication import Publication, batch, single
from penstock.host.server_machine import (
    Close,
    Deliver,
    ServerMachine,
    ServerState,
    ServerTerms,
)
from penstock.wire.frames import (
    DATA,
    FLAG_PAYLOAD_CRC,
    FLAG_PAYLOAD_IN_RING,
    Frame,
    FrameType,
    Header,
    MalformedFrame,
    check_payload,
    decode,
    encode,
)
from tests.wire.frames.vectors import (
    CONVERSATIONS,
    FOLDER,
    FRAME_BYTES_MAX,
    FRAMES,
    REFUSED,
    fields_of,
    header_of,
)

SCRIPT = Path(__file__).resolve().parents[3] / "scripts" / "host_vectors.py"
MALFORMED = {
    "frame_length": "frame length .* over the limit",
    "header_length": "header length .*: must be",
    "flags": "flags .* are known",
    "payload_crc_unannounced": "without its flag",
    "ring_payload_on_stream": "flagged as in the ring",
    "header_crc": "header checksum",
    "payload_crc": "payload checksum",
    "header": "header of .* bytes",
}
VIOLATED = {
    "frame_type": "frame type",
    "data_fields": "has one chunk",
    "chunk_count": r"chunks in a DATA_BATCH|0 bytes of lengths",
    "descriptors": "bytes of .* for .* chunks of 4 bytes each",
    "payload_size": "in a payload of|of a payload of",
    "event_count": "events in the chunks",
    "event_limit": "events in one frame",
    "sequence": "under way already, or out of range",
    "format": "chunk format",
    "target": "partition .*, log sequence .*: at most",
    "ring": "there is no ring",
}
STEP_MS = 200.0
NOBODY = memoryview(b"")
GIVEN: dict[str, int] = CONVERSATIONS["terms"]
TERMS = ServerTerms(
    credit=Credit(GIVEN["chunk_slots"], GIVEN["raw_events"], GIVEN["payload_bytes"]),
    frame_bytes_max=GIVEN["frame_bytes_max"],
    idle_timeout_ms=GIVEN["idle_timeout_ms"],
    ping_interval_ms=10_000,
    retry_after_ms=GIVEN["retry_after_ms"],
)


def named(vectors: list[dict[str, Any]]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("vector", vectors, ids=[each["name"] for each in vectors])


def read(data: bytes, limit: int = FRAME_BYTES_MAX) -> Frame:
    frame, size = decode(data, 0, limit)
    assert frame is not None
    assert size == len(data)
    return frame


def test_the_vectors_are_what_the_script_writes() -> None:
    spec = importlib.util.spec_from_file_location("host_vectors", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    script: ModuleType = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    texts: dict[str, str] = script.texts()
    assert sorted(path.name for path in FOLDER.iterdir()) == sorted(texts)
    stale = [name for name, text in texts.items() if (FOLDER / name).read_text("utf-8") != text]
    assert stale == [], "run python scripts/host_vectors.py"


def test_there_is_a_vector_of_every_type_class_and_flag() -> None:
    types = {each["header"]["type"] for each in FRAMES["frames"]}
    assert len(types) == 10
    assert {each["flags"] for each in FRAMES["frames"]} == {0, 1, 2, 3}
    assert {each["class"] for each in REFUSED["malformed"]} == set(MALFORMED)
    assert {each["class"] for each in REFUSED["violations"]} == set(VIOLATED)


# Frames


@named(FRAMES["frames"])
def test_a_frame_is_read_as_described(vector: dict[str, Any]) -> None:
    frame = read(bytes.fromhex(vector["hex"]))
    assert fields_of(frame.header) == header_of(vector["header"])
    assert frame.flags == vector["flags"]
    payload = bytes.fromhex(vector.get("payload", ""))
    if frame.flags & FLAG_PAYLOAD_IN_RING:
        assert not frame.payload
    else:
        assert frame.payload == payload
    if frame.flags & FLAG_PAYLOAD_CRC:
        assert f"{frame.payload_crc:08x}" == vector["payload_crc"]
        check_payload(memoryview(payload), frame.payload_crc)


@named([each for each in FRAMES["frames"] if each["canonical"]])
def test_a_frame_is_written_as_described(vector: dict[str, Any]) -> None:
    payload = bytes.fromhex(vector.get("payload", ""))
    in_ring = bool(vector["flags"] & FLAG_PAYLOAD_IN_RING)
    head = encode(
        header_of(vector["header"]),
        [payload[:2], payload[2:]],
        in_ring=in_ring,
        checksum=bool(vector["flags"] & FLAG_PAYLOAD_CRC),
    )
    assert (head + (b"" if in_ring else payload)).hex() == vector["hex"]


@named(REFUSED["malformed"])
def test_bytes_that_are_no_frame_are_refused(vector: dict[str, Any]) -> None:
    with pytest.raises(MalformedFrame, match=MALFORMED[vector["class"]]):
        decode(bytes.fromhex(vector["hex"]), 0, REFUSED["frame_bytes_max"])


@pytest.mark.parametrize("size", range(16))
def test_a_length_is_not_judged_before_the_prelude_is_whole(size: int) -> None:
    for vector in REFUSED["malformed"]:
        assert decode(bytes.fromhex(vector["hex"])[:size], 0, FRAME_BYTES_MAX) == (None, 16)


# The agent


def opened() -> ServerMachine:
    machine = ServerMachine(TERMS, now_ms=0.0)
    machine.receive(Frame(Header(type="HELLO", version_min=1, version_max=1), NOBODY))
    machine.introduced(Introduction(producer_id=4711))
    machine.take_output()
    return machine


@named(REFUSED["violations"])
def test_frames_that_contradict_themselves_end_a_connection(vector: dict[str, Any]) -> None:
    machine = opened()
    *before, last = [read(bytes.fromhex(each)) for each in vector["hex"]]
    for frame in before:
        machine.receive(frame)
    with pytest.raises(ProtocolViolation, match=VIOLATED[vector["class"]]):
        machine.receive(last)
    assert isinstance(machine.violated("why"), Close)
    answer = read(b"".join(machine.take_output()))
    assert answer.header == Header(type="FAILED", reason="why")
    assert machine.state is ServerState.CLOSED


class AgentSide:
    """Plays the agent's part: what the machine does not say by itself, a step makes it say."""

    def __init__(self, *, draining: bool) -> None:
        self._draining = draining
        self.restart()

    def restart(self) -> None:
        self.machine = ServerMachine(TERMS, now_ms=0.0, draining=self._draining)
        self.violation = ""
        self._chunks: dict[int, Chunks] = {}
        self._topics = 0
        self._output = b""

    def hear(self, data: bytes) -> None:
        frame = read(data)
        self._topics = len(frame.header.topics) or self._topics
        try:
            effect = self.machine.receive(frame)
        except ProtocolViolation as error:
            self.violation = str(error)
            return
        if isinstance(effect, Deliver):
            self._chunks[effect.chunks.first_sequence] = effect.chunks

    def say(self, header: Header, size: int) -> bytes:
        self._output += b"".join(self.machine.take_output())
        if not self._output:
            self._cause(header)
            self._output += b"".join(self.machine.take_output())
        said, self._output = self._output[:size], self._output[size:]
        return said

    def _cause(self, header: Header) -> None:
        match FrameType.Name(header.type):
            case "HELLO_ACK":
                partitions = dict(zip(["flights"], header.partition_counts, strict=False))
                introduction = Introduction(producer_id=header.producer_id, partitions=partitions)
                self.machine.introduced(introduction)
            case "ACCEPTED":
                for first in sorted(self._chunks):
                    self.machine.completed(self._chunks.pop(first), TAKEN)
                self.machine.flush()
            case "FAILED" if not header.count:
                assert header.reason in self.violation
                self.machine.violated(header.reason)
            case "FAILED":
                verdict = Failed(header.reason, header.retryable, header.retry_after_ms)
                self.machine.completed(self._chunks.pop(header.first_sequence), verdict)
            case "CREDIT_UPDATE":
                self.machine.grant(
                    Credit(header.chunk_slots, header.raw_events, header.payload_bytes)
                )
            case "DRAIN":
                self.machine.drain(header.deadline_ms, header.reason)
            case "PING":
                self.machine.tick(header.token)


CUT_OFF = ("refusal", "health-draining", "violation")
"""Where the agent ends the conversation."""


@named(CONVERSATIONS["conversations"])
def test_an_agent_holds_its_part_of_a_conversation(vector: dict[str, Any]) -> None:
    agent = AgentSide(draining=vector.get("draining", False))
    for step in vector["steps"]:
        if "close" in step:
            assert (agent.machine.state is ServerState.CLOSED) == vector["name"].startswith(CUT_OFF)
            agent.machine.disconnected()
            agent.restart()
        elif step["from"] == "producer":
            agent.hear(bytes.fromhex(step["hex"]))
        else:
            data = bytes.fromhex(step["hex"])
            assert agent.say(header_of(step["header"]), len(data)).hex() == step["hex"], step
        if agent.machine.state is ServerState.OPEN and "credit" in step:
            assert list(agent.machine.window.available) == step["credit"], step["note"]
            assert sorted(agent.machine.in_flight) == [int(each) for each in step["in_flight"]]


# The producer


class ProducerSide:
    """Plays the producer's part with publications that the steps describe."""

    def __init__(self, hello: Header) -> None:
        terms = ClientTerms(topics=tuple(hello.topics), client_name=hello.client_name)
        self.machine = ClientMachine(terms)
        self._known: dict[int, Publication] = {}
        self._now_ms = 0.0

    def say(self, header: Header, payload: bytes) -> bytes:
        self._now_ms += STEP_MS
        match FrameType.Name(header.type):
            case "HELLO":
                self.machine.connected(self._now_ms)
            case "PING":
                self._now_ms = float(header.token)
                assert self.machine.tick(self._now_ms) == []
            case "DATA" | "DATA_BATCH":
                self.machine.publish(self._publication(header, payload), self._now_ms)
        return b"".join(self.machine.take_output())

    def hear(self, data: bytes) -> None:
        self.machine.receive(read(data), self._now_ms)

    def _publication(self, header: Header, payload: bytes) -> Publication:
        first = header.first_sequence
        if first in self._known:
            return self._known[first]
        topic = header.topic
        partition = header.partition if header.HasField("partition") else -1
        if header.type == DATA:
            made = single(payload, event_count=header.event_count, topic=topic, partition=partition)
        else:
            sizes = memoryview(header.lengths).cast("I")
            ends = [sum(sizes[: index + 1]) for index in range(len(sizes))]
            pieces = [payload[end - size : end] for size, end in zip(sizes, ends, strict=True)]
            made = batch(pieces, topic=topic, partition=partition)
        if header.HasField("log_sequence"):
            made.log_sequence = header.log_sequence
        self._known[first] = made
        return made


HONEST = ("publish-and-drain", "failed-and-sent-again", "more-credit", "lost-and-sent-again")


@named([each for each in CONVERSATIONS["conversations"] if each["name"] in HONEST])
def test_a_producer_holds_its_part_of_a_conversation(vector: dict[str, Any]) -> None:
    steps = vector["steps"]
    producer = ProducerSide(header_of(steps[0]["header"]))
    for step in steps:
        if "close" in step:
            producer.machine.disconnected(step["note"])
        elif step["from"] == "producer":
            payload = bytes.fromhex(step.get("payload", ""))
            assert producer.say(header_of(step["header"]), payload).hex() == step["hex"], step
        else:
            producer.hear(bytes.fromhex(step["hex"]))
        assert list(producer.machine.window.available) == step["credit"], step["note"]
        assert sorted(producer.machine.in_flight) == [int(each) for each in step["in_flight"]]
    assert producer.machine.window.granted == NO_CREDIT


def test_a_refused_producer_knows_why() -> None:
    (vector,) = (each for each in CONVERSATIONS["conversations"] if each["name"] == "refusal")
    machine = ClientMachine(ClientTerms())
    machine.connected(0.0)
    answer = vector["steps"][1]
    assert machine.receive(read(bytes.fromhex(answer["hex"])), 0.0) == [
        Disconnect(answer["header"]["reason"], refused=True, retryable=False)
    ]
    assert machine.state is ClientState.HANDSHAKE
