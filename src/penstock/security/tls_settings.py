"""TLS settings that clients, brokers and agents have in common, with Kafka's names.

Source: Kafka's `SslConfigs`; KIP-651.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from penstock.base.settings import setting

PROTOCOLS: Final = ("TLSv1.2", "TLSv1.3")


@dataclass(frozen=True, slots=True, kw_only=True)
class TlsSettings:
    """Files of a keystore and a truststore, in PEM."""

    ssl_keystore_location: str = setting(
        "", "File with the private key and the certificate chain, own certificate first. A change"
        " applies to new connections within seconds. If the new file is invalid, the previous one"
        " stays in use.",
    )  # fmt: skip
    ssl_key_location: str = setting(
        "", "File with the private key, if the keystore has only certificates."
    )
    ssl_key_password: str = setting("", "Password of the private key.", secret=True)
    ssl_truststore_location: str = setting(
        "", "File with the CA certificates that verify the other side of a connection.",
    )  # fmt: skip
