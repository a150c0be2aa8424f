"""Settings of the export by OTLP, apart from the exporter, which is imported only if it is used."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import ClassVar, Final

from penstock.base.errors import InvalidSetting
from penstock.base.settings import setting
from penstock.base.urls import without_credentials

_ENDPOINT: Final = re.compile(r"https?://[^/?#\s@]+(?:/[^?#\s]*)?")


@dataclass(frozen=True, slots=True, kw_only=True)
class OtlpSettings:
    """Settings of the export by OTLP."""

    PREFIX: ClassVar = "otlp."

    endpoint: str = setting(
        "", "URL of an OTLP/HTTP receiver, such as http://127.0.0.1:4318. Metrics go to"
        " /v1/metrics below it, traces to /v1/traces. Empty: nothing is exported or traced.",
    )  # fmt: skip
    interval_ms: int = setting(30_000, "Interval of the export of metrics.", 100, 86_400_000)
    headers: tuple[str, ...] = setting(
        (), "Headers of the requests as name=value, such as authorization=Bearer ….", secret=True
    )
    sample_ratio: float = setting(
        0.01, "Share of new traces that are recorded, 0 to 1. Traces that clients have begun, and"
        " have marked as sampled, are always recorded.", 0, 1,
    )  # fmt: skip

    def __post_init__(self) -> None:
        if self.endpoint and not _ENDPOINT.fullmatch(self.endpoint):
            raise InvalidSetting(
                "otlp.endpoint",
                without_credentials(self.endpoint),
                "must be http://HOST:PORT or https://HOST:PORT",
            )
        for header in self.headers:
            if "=" not in header:
                raise InvalidSetting("otlp.headers", "…", "a header must read name=value")
