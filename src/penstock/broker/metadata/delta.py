"""Changes from one image of the metadata to the next.

An image knows which topics have changed since an earlier image, so the cost of a delta depends only
on the number of changes. If that is unknown, after a read from the database or many changes, all
topics are compared by identity. Unchanged topics are the same objects in both images.
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
    """Changes from a previous image to `image`.

    `changed` are new and changed topics. `gone` are removed topics, including those whose name a
    new topic has now. `whole` means that the previous image is unknown. Then `changed` has all
    topics, and `gone` none.
    """

    image: MetadataImage
    changed: Sequence[Topic]
    gone: Sequence[Topic] = ()
    whole: bool = False


def delta_of(before: MetadataImage | None, image: MetadataImage) -> ImageDelta:
    """Return the changes from image `before` to `image`; `before` is None if it is unknown."""
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
