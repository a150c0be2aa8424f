"""Foreign clients of the schema registry, by name."""

import warnings

from compat.registry.port import Link, RegistryClient, RegistryProblem

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # warnings at import are the foreign client's own
    from compat.registry.confluent import ConfluentPython
    from compat.registry.remote import ConfluentGo, ConfluentJavaScript, Franz

CLIENTS: dict[str, type[RegistryClient]] = {
    client.name: client for client in (ConfluentPython, ConfluentGo, Franz, ConfluentJavaScript)
}


def able(*operations: str) -> list[str]:
    """Return the names of the clients that have all these operations and properties."""
    return [name for name, kind in CLIENTS.items() if kind.able.issuperset(operations)]


__all__ = ["CLIENTS", "Link", "RegistryClient", "RegistryProblem", "able"]
