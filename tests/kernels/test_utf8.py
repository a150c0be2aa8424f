"""The kernel accepts the same UTF-8 as Python."""

from __future__ import annotations

import numpy as np
from hypothesis import example, given
from hypothesis import strategies as st

from penstock.kernels.utf8 import is_utf8

# Bytes at the edges of what may lead and follow.
EDGES = st.lists(
    st.sampled_from(bytes.fromhex("00 7f 80 8f 90 9f a0 bf c1 c2 df e0 ec ed ef f0 f3 f4 f5 ff")),
    max_size=6,
)


def plainly(content: bytes) -> bool:
    try:
        content.decode()
    except UnicodeDecodeError:
        return False
    return True


@given(st.binary() | EDGES.map(bytes) | st.text().map(lambda text: text.encode("utf-8", "replace")))
@example(b"\xed\xa0\x80")
@example("\U0010ffff".encode() * 3)
def test_a_text_is_what_python_can_read(content: bytes) -> None:
    within = np.frombuffer(b"\xf0" + content + b"\x80\x80\x80", np.uint8)
    assert is_utf8(within, 1, 1 + len(content)) == plainly(content)
