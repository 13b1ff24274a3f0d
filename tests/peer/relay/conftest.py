"""The fixtures of a small federation on loopback."""

from fakes.local_network import authority, foreign_authority, network, wanted

__all__ = ["authority", "foreign_authority", "network", "wanted"]
