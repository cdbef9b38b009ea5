"""A class that users could add to a worker: for the tests of ``worker_extension_cls``."""

from __future__ import annotations

from typing import Any


class Extra:
    """Methods see the worker as ``self``."""

    title = "extra"

    def describe(self, prefix: str, *, shout: bool = False) -> str:
        text = f"{prefix} {self.title} on {type(self).__bases__[0].__name__} with {self._layers()} layers"
        return text.upper() if shout else text

    def _layers(self: Any) -> int:
        layers: int = self._loaded().config.num_layers
        return layers


class Hiding:
    """Not acceptable: the worker has such a method."""

    def execute_model(self) -> None: ...


NOT_A_CLASS = 5
