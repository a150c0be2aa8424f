"""The configuration that each topic's partitions run with, kept up to date with the image.

The store is opened before the broker exists and asks for configurations by topic name;
`TopicConfigs` answers from whatever image the broker has, and with the broker's own defaults
while there is none. A topic's configuration is computed once for as long as neither the topic's
nor the brokers' values change, so asking costs a look-up.
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
    """Give `config_of` to the store, then `bind` it to the broker that holds the image."""

    def __init__(self, settings: BrokerSettings) -> None:
        self._settings = settings
        self._image_of: Callable[[], MetadataImage | None] = lambda: None
        self._dynamic: Mapping[str, Mapping[str, str]] = {}
        self._levels = Levels(file=(settings,), cluster={}, broker={})
        self._known: dict[str, tuple[Mapping[str, str], LogConfig]] = {}
        self._image: MetadataImage | None = None
        self._current: dict[str, LogConfig] = {}

    def bind(self, image_of: Callable[[], MetadataImage | None]) -> None:
        """Take images from here on from `image_of`."""
        self._image_of = image_of

    def config_of(self, topic: str) -> LogConfig:
        """The configuration of a topic, whether or not it exists."""
        image = self._image_of()
        if image is not self._image:
            self._image = image
            self._current = {}
        # Asked several times for each append: with the same image the answer is the same.
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
            logger.warning("topic %s: %s; the broker's default is used", topic, error)
            left = {name: value for name, value in configs.items() if name != error.name}
            if len(left) == len(configs):
                return LogConfig()
            return self._load(topic, left)
