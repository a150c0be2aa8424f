"""Configuration of each topic's partitions, kept up to date with the image.

The store is opened before the broker exists and requests configurations by topic name, from the
image or the broker's defaults. Results are cached until the values change.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Final

from penstock.base.errors import InvalidSetting
from penstock.broker.configs import Levels, topic_config
from penstock.broker.settings import BrokerSettings
from penstock.control import MetadataImage
from penstock.storage.config import LogConfig

logger = logging.getLogger(__name__)

_NONE: Final[Mapping[str, str]] = {}


class TopicConfigs:
    """Source of topic configurations for the log store; before `bind`, of the defaults only."""

    def __init__(self, settings: BrokerSettings) -> None:
        self._settings = settings
        self._image_of: Callable[[], MetadataImage | None] = lambda: None
        self._dynamic: Mapping[str, Mapping[str, str]] = {}
        self._levels = Levels(file=(settings,), cluster={}, broker={})
        self._known: dict[str, tuple[Mapping[str, str], LogConfig]] = {}
        self._image: MetadataImage | None = None
        self._current: dict[str, LogConfig] = {}

    def bind(self, image_of: Callable[[], MetadataImage | None]) -> None:
        self._image_of = image_of

    def config_of(self, topic: str) -> LogConfig:
        """Return the configuration in effect for a topic; for an unknown topic the defaults."""
        image = self._image_of()
        if image is not self._image:
            self._image = image
            self._current = {}
        # Called several times for each append; cached for the same image.
        config = self._current.get(topic)
        if config is None:
            config = self._find(topic, image)
            if image is not None and topic in image.topics:
                self._current[topic] = config
        return config

    def _find(self, topic: str, image: MetadataImage | None) -> LogConfig:
        configs = _NONE
        if image is not None:
            if image.broker_configs is not self._dynamic:
                self._take_dynamic(image)
            found = image.topics.get(topic)
            if found is not None:
                configs = found.configs
            elif topic in self._known:
                del self._known[topic]
        known = self._known.get(topic)
        if known is not None and (known[0] is configs or known[0] == configs):
            return known[1]
        config = self._load(topic, configs)
        if configs is not _NONE:
            self._known[topic] = (configs, config)
        return config

    def _take_dynamic(self, image: MetadataImage) -> None:
        if image.broker_configs != self._dynamic:
            self._levels = Levels(
                file=(self._settings,),
                cluster=image.broker_configs.get("", {}),
                broker=image.broker_configs.get(str(self._settings.node_id), {}),
            )
            self._known.clear()
        self._dynamic = image.broker_configs

    def _load(self, topic: str, configs: Mapping[str, str]) -> LogConfig:
        try:
            return topic_config(self._levels, configs)
        except InvalidSetting as error:
            # Stored by a version with other bounds: the topic must still open.
            logger.warning("topic %s: %s; using the broker's default", topic, error)
            left = {name: value for name, value in configs.items() if name != error.name}
            if len(left) == len(configs):
                return LogConfig()
            return self._load(topic, left)
