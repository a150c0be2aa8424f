"""Transforms of rows between a source or sink and its topics, as expressions over columns."""

from penstock.connect.transforms.steps import build_transforms
from penstock.connect.transforms.transform import Transform

__all__ = ["Transform", "build_transforms"]
