"""Metrics of TLS, and of reloaded files."""

from __future__ import annotations

from typing import Final

from penstock.base.metrics import Metric

HANDSHAKES_FAILED: Final = Metric(
    name="penstock_tls_handshakes_failed_total",
    kind="counter",
    doc="TLS handshakes that did not come to an end.",
    labels=("listener",),
)
REFUSED: Final = Metric(
    name="penstock_unauthenticated_connections_refused_total",
    kind="counter",
    doc="Connections closed at once, due to a limit of their address or of all connections.",
    labels=("listener", "limit"),
)
CERTIFICATE_ENDS: Final = Metric(
    name="penstock_tls_certificate_ends_timestamp_seconds",
    kind="gauge",
    doc="When the certificate in use ends, in seconds since the epoch.",
    labels=("listener",),
)
RELOADS: Final = Metric(
    name="penstock_security_files_reloaded_total",
    kind="counter",
    doc="Reloads of changed files (certificates, users, keys of tokens).",
    labels=("file",),
)
RELOADS_FAILED: Final = Metric(
    name="penstock_security_files_not_reloaded_total",
    kind="counter",
    doc="Times that changed files were no good, and the former ones stayed in use.",
    labels=("file",),
)
