"""Changes from one image of the metadata to the next.

The control plane notes which topics it changes, so a delta costs what changed. If that is unknown,
after a read from the database or many changes, images are compared by identity: unchanged topics
are the same objects in both.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import compress
from operator import is_not
from typing import TYPE_CHECKING

from msgspec import Struct

if TYPE_CHECKING:
    from penstock.control import MetadataImage, Topic


class ImageDelta(Struct, frozen=True, kw_only=True):
    """Changes that lead to `image`.

    `changed` are new and changed topics; `gone` are removed topics, also those whose name another
    topic has now. `whole` means that the previous image is unknown: `changed` has all topics,
    `gone` none.
    """

    image: MetadataImage
    changed: Sequence[Topic]
    gone: Sequence[Topic] = ()
    whole: bool = False


def delta_of(before: MetadataImage | None, image: MetadataImage) -> ImageDelta:
    """Return the changes from one image to another; None is an unknown previous image."""
    new = image.topics
    if before is None:
        return ImageDelta(image=image, changed=tuple(new.values()), whole=True)
    old = before.topics
    names = image.changed_since(before)
    if names is None:
        differ = compress(new, map(is_not, new.values(), map(old.get, new)))
        names = [*differ, *(name for name in old if name not in new)]
    pairs = [(old.get(name), new.get(name)) for name in names]
    return ImageDelta(
        image=image,
        changed=[now for was, now in pairs if now is not None and now != was],
        gone=[
            was
            for was, now in pairs
            if was is not None and (now is None or now.topic_id != was.topic_id)
        ],
    )
