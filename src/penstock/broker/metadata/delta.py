"""What changed from one image of the metadata to the next.

The control plane's rules note which topics they change, so that a delta costs what changed. Where
that is not known, because an image was read from the database or many changes came at once, images
are compared by identity: a topic that did not change is the same object in both.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import compress
from operator import is_not
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from penstock.control import MetadataImage, Topic


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageDelta:
    """The way to `image`.

    `changed` are topics as they are now, new ones included; `gone` are topics as they were, those
    included whose name another topic has now. `whole` says that it is not known what was there
    before: `changed` has all topics then, and `gone` none.
    """

    image: MetadataImage
    changed: Sequence[Topic]
    gone: Sequence[Topic] = ()
    whole: bool = False


def delta_of(before: MetadataImage | None, image: MetadataImage) -> ImageDelta:
    """What leads from one image to another; None is one of which nothing is known."""
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
