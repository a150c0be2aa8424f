"""Extents: where the bytes of an offset range lie, so that Spark reads them without the broker.

`GET /v1/topics/{topic}/partitions/{n}/extents?start=&end=` answers with runs of whole batches in
segment files, for `[start, min(end, high watermark))`; left out, `start` is the first offset and
`end` the high watermark. A range that does not lie in the log is 416. `machine_id` tells a
reader whether the files are on its own machine.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Final

from penstock.base.errors import InvalidError
from penstock.base.settings import INT_MAX, LONG_MAX

if TYPE_CHECKING:
    from starlette.requests import Request

    from penstock.broker.state import BrokerState

MACHINE_ID_FILES: Final = (Path("/etc/machine-id"), Path("/proc/sys/kernel/random/boot_id"))


class BadParameter(InvalidError):
    """A path or query parameter that is no number in its range."""

    code: ClassVar[str] = "invalid_request"


class OffsetsOutOfRange(InvalidError):
    """A range of offsets that the log does not hold."""

    code: ClassVar[str] = "offset_out_of_range"


@cache
def machine_id() -> str:
    """An identifier that processes of one machine share; empty when the system has none."""
    for path in MACHINE_ID_FILES:
        try:
            text = path.read_text(encoding="ascii").strip()
        except OSError:
            continue
        if text:
            return text
    return ""


def number(name: str, text: str, maximum: int) -> int:
    """Read a whole number from 0 to `maximum`.

    Raises:
        BadParameter: it is none; the message names the parameter, the bound and the text.
    """
    if not (text.isascii() and text.isdigit() and len(text) <= 19 and int(text) <= maximum):
        raise BadParameter(f"{name} = {text[:32]!r}: must be a whole number from 0 to {maximum}")
    return int(text)


async def partition_extents(state: BrokerState, request: Request) -> dict[str, Any]:
    topic = request.path_params["topic"]
    index = number("partition", request.path_params["partition"], INT_MAX)
    log = state.local_log(topic, index, "reading by files, as Spark's data source does,")
    query = request.query_params
    start = log.log_start_offset
    end = log.high_watermark
    if "start" in query:
        start = number("start", query["start"], LONG_MAX)
    if "end" in query:
        end = number("end", query["end"], LONG_MAX)
    if end < start:
        raise BadParameter(f"start = {start} is above end = {end}")
    if not log.log_start_offset <= start <= log.high_watermark:
        raise OffsetsOutOfRange(
            f"{log.topic_partition}: offset {start} is not within "
            f"[{log.log_start_offset}, {log.high_watermark}]"
        )
    end = min(end, log.high_watermark)
    extents = log.extents(start, end) if start < end else []
    return {
        "topic": topic,
        "topic_id": str(log.topic_id),
        "partition": index,
        "leader_epoch": log.leader_epoch,
        "log_start_offset": log.log_start_offset,
        "high_watermark": log.high_watermark,
        "last_stable_offset": log.last_stable_offset,
        "machine_id": machine_id(),
        "extents": [
            {
                "url": extent.path.absolute().as_uri(),
                "position": extent.position,
                "size_bytes": extent.size_bytes,
                "base_offset": extent.base_offset,
                "next_offset": extent.next_offset,
                "leader_epoch": extent.leader_epoch,
                "max_timestamp": extent.max_timestamp,
            }
            for extent in extents
        ],
    }
