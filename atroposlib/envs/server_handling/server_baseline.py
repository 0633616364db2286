"""Atropos's import path of the server settings."""

from atroposlib.config.server import APIServerConfig, ServerBaseline, ServerManagerConfig

__all__ = ["APIServerConfig", "ServerBaseline", "ServerManagerConfig"]
