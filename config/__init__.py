"""Configuration: the one place that reads the environment."""

from config.settings import Settings

__all__ = ["Settings"]
