"""Settings of TLS that clients, brokers and agents have in common, under Kafka's names.

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
        " is in force for new connections within seconds; a bad file leaves the former one in use.",
    )  # fmt: skip
    ssl_key_location: str = setting(
        "", "File with the private key alone, where the keystore has only certificates."
    )
    ssl_key_password: str = setting("", "Password of the private key.", secret=True)
    ssl_truststore_location: str = setting(
        "", "File with the certificates of authorities by which clients and other brokers are"
        " verified.",
    )  # fmt: skip
