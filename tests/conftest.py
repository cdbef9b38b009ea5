"""Fixtures for every layer: nothing that a test starts may be left behind."""

from ringcast.actors.testing.pytest_plugin import leak_oracle

__all__ = ["leak_oracle"]
