"""The cluster's metadata as this broker has them: the newest image, and what changed in it."""

from penstock.broker.metadata.cluster import ClusterMetadata
from penstock.broker.metadata.delta import ImageDelta, delta_of

__all__ = ["ClusterMetadata", "ImageDelta", "delta_of"]
