"""Columnar client that encrypts columns before writing and decrypts them after reading."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Protocol

from penstock.security.data.encoder import FieldEncoder


class ColumnarClient(Protocol):
    """The part of `penstock.client.Client` that is used."""

    @property
    def write_arrow(self) -> Callable[..., Any]: ...

    @property
    def read_arrow(self) -> Callable[..., Any]: ...

    @property
    def iter_arrow(self) -> Callable[..., Iterator[Any]]: ...


class ProtectedClient:
    """The columnar calls of a client, through an encoder.

    Args:
        client: a `penstock.client.Client`; it stays its owner's to close.
        unreadable: as in `FieldEncoder.decode`.
    """

    def __init__(
        self, client: ColumnarClient, encoder: FieldEncoder, *, unreadable: str = "raise"
    ) -> None:
        self._client = client
        self._encoder = encoder
        self._unreadable = unreadable

    def write_arrow(self, topic: str, data: Any, **options: Any) -> Any:
        """Write a table as `Client.write_arrow`, with the columns protected.

        Raises:
            NoSuchColumn, NoSubject, UnfitColumn, KeyRingUnusable: nothing of the batch is sent.
        """
        return self._client.write_arrow(topic, self._encoder.encode(data), **options)

    def read_arrow(self, topic: str, **options: Any) -> Any:
        """Read a table as `Client.read_arrow`, with the columns decrypted.

        Raises:
            FieldsUnreadable: values are damaged or another subject's.
        """
        read = self._client.read_arrow(topic, **options)
        return self._encoder.decode(read, unreadable=self._unreadable)

    def iter_arrow(self, topic: str, **options: Any) -> Iterator[Any]:
        """Iterate as `Client.iter_arrow`, with the columns decrypted.

        Raises:
            FieldsUnreadable: values are damaged or another subject's.
        """
        batches = self._client.iter_arrow(topic, **options)
        return self._encoder.decode_stream(batches, unreadable=self._unreadable)
