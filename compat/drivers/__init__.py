"""The foreign clients, by name."""

import warnings

from compat.drivers.port import (
    Driver,
    GroupDescription,
    KafkaProblem,
    Member,
    Record,
    by_position,
    eventually,
    patient,
)

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # what a foreign client warns of at import is its own affair
    from compat.drivers.aio import Aio
    from compat.drivers.confluent import Confluent
    from compat.drivers.kafkapython import KafkaPython
    from compat.drivers.kcat import Kcat
    from compat.drivers.remote import FranzGo, Java, KafkaJS

DRIVERS: dict[str, type[Driver]] = {
    driver.name: driver for driver in (Confluent, Aio, KafkaPython, Kcat, KafkaJS, Java, FranzGo)
}

__all__ = [
    "DRIVERS",
    "Driver",
    "GroupDescription",
    "KafkaProblem",
    "Member",
    "Record",
    "by_position",
    "eventually",
    "patient",
]
