"""Protection of single fields: masks, tokens, and encryption with one key per subject.

Public names are imported when they are first used, because this loads PyArrow and OpenSSL.
"""

from typing import TYPE_CHECKING

from penstock.base.extras import required

if TYPE_CHECKING:
    from penstock.security.data.columns import (
        decrypt_column,
        encrypt_column,
        mask_column,
        tokenize_column,
    )
    from penstock.security.data.encoder import (
        Encrypt,
        FieldEncoder,
        FieldsUnreadable,
        ProtectedClient,
        Tokenize,
    )
    from penstock.security.data.file_ring import FileKeyRing, KeyPlace, ring_at
    from penstock.security.data.key_ring import KeyRing
    from penstock.security.data.masks import Mask, TokenForm, token
    from penstock.security.data.sealing import open_value, seal_value

_HOMES = {
    "Encrypt": "encoder",
    "FieldEncoder": "encoder",
    "FieldsUnreadable": "encoder",
    "FileKeyRing": "file_ring",
    "KeyPlace": "file_ring",
    "KeyRing": "key_ring",
    "Mask": "masks",
    "ProtectedClient": "encoder",
    "TokenForm": "masks",
    "Tokenize": "encoder",
    "decrypt_column": "columns",
    "encrypt_column": "columns",
    "ring_at": "file_ring",
    "mask_column": "columns",
    "open_value": "sealing",
    "seal_value": "sealing",
    "token": "masks",
    "tokenize_column": "columns",
}

__all__ = [
    "Encrypt",
    "FieldEncoder",
    "FieldsUnreadable",
    "FileKeyRing",
    "KeyPlace",
    "KeyRing",
    "Mask",
    "ProtectedClient",
    "TokenForm",
    "Tokenize",
    "decrypt_column",
    "encrypt_column",
    "mask_column",
    "open_value",
    "ring_at",
    "seal_value",
    "token",
    "tokenize_column",
]


def __getattr__(name: str) -> object:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(required(f"penstock.security.data.{home}", "client"), name)
