"""Cluster metadata of this broker: the newest image, and its changes."""

from penstock.broker.metadata.cluster import ClusterMetadata
from penstock.broker.metadata.delta import ImageDelta, delta_of

__all__ = ["ClusterMetadata", "ImageDelta", "delta_of"]
