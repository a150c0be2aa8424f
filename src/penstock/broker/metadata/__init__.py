"""Cluster metadata of this broker: the newest metadata image, and the changes from the last one."""

from penstock.broker.metadata.cluster import ClusterMetadata, ImageDelta, delta_of

__all__ = ["ClusterMetadata", "ImageDelta", "delta_of"]
