"""Security options of the source and the sink, with the names that Spark's Kafka source uses.

These are `kafka.ssl.…`, `kafka.sasl.…` and `kafka.security.protocol`. They apply to brokers and to
admin addresses. If none is set, the options of the properties file apply that
`PENSTOCK_CLIENT_CONFIG` names on the driver, so that programs need not contain secrets. Values are
sent to tasks with the read or the write, and are never shown.
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
    """Return the security options, without the prefix `kafka.`, and separately all other options.

    If there are no security options, those of the properties file are returned.

    Raises:
        InvalidOption: a security option is unknown or invalid; the message hides its value.
    """
    security: dict[str, str] = {}
    rest: dict[str, str] = {}
    for name, value in raw.items():
        own = name.lower().removeprefix(PREFIX)
        if name.lower().startswith(PREFIX) and is_option(own):
            security[own] = value
        elif own.startswith(("sasl.", "ssl.", "security.")):
            raise InvalidOption(name, HIDDEN, "unknown security option")
        else:
            rest[name] = value
    try:
        security = security or environment_options()
        client_security(security)
    except InvalidSetting as error:
        raise InvalidOption(PREFIX + error.name, HIDDEN, error.reason) from None
    return security, rest


def environment_options() -> dict[str, str]:
    """Return the options of the file that PENSTOCK_CLIENT_CONFIG names; none if it is not set.

    Raises:
        InvalidSetting: the file cannot be read.
    """
    try:
        return client_options()
    except UnusableFile as error:
        raise InvalidSetting(CONFIG_VARIABLE, os.environ[CONFIG_VARIABLE], str(error)) from None
