"""How brokers are spoken to, by the names that Spark's Kafka source has for it: `kafka.ssl.…`,
`kafka.sasl.…`, `kafka.security.protocol`.

They hold for admin addresses too. Where none is given, those of a file hold that
`PENSTOCK_CLIENT_CONFIG` names on the driver, properties as Kafka's tools take them: so no secret
has to be in a program. Their values go to tasks with the read or the write; no text shows them.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Final

from penstock.base.errors import InvalidSetting
from penstock.client.security import CONFIG_VARIABLE, client_security, is_option
from penstock.client.security import environment_options as client_options
from penstock.security.files import UnusableFile
from penstock.spark.errors import InvalidOption

PREFIX: Final = "kafka."
HIDDEN: Final = "[hidden]"

Options = Mapping[str, str]


def taken_from(raw: Options) -> tuple[dict[str, str], dict[str, str]]:
    """The options of security, without their prefix, and all others.

    Raises:
        InvalidOption: one is not allowed, or what looks like one is none; no value is shown.
    """
    security: dict[str, str] = {}
    rest: dict[str, str] = {}
    for name, value in raw.items():
        own = name.lower().removeprefix(PREFIX)
        if name.lower().startswith(PREFIX) and is_option(own):
            security[own] = value
        elif own.startswith(("sasl.", "ssl.", "security.")):
            raise InvalidOption(name, HIDDEN, "there is no such option of security")
        else:
            rest[name] = value
    try:
        security = security or environment_options()
        client_security(security)
    except InvalidSetting as error:
        raise InvalidOption(PREFIX + error.name, HIDDEN, error.reason) from None
    return security, rest


def environment_options() -> dict[str, str]:
    """The options of the file that the environment names; none without it.

    Raises:
        InvalidSetting: it cannot be read.
    """
    try:
        return client_options()
    except UnusableFile as error:
        raise InvalidSetting(CONFIG_VARIABLE, os.environ[CONFIG_VARIABLE], str(error)) from None
