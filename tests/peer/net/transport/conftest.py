"""The fixtures of a small federation on loopback."""

from fakes.local_network import authority, foreign_authority, network, wanted
from fakes.two_sites import africa, europe

__all__ = ["africa", "authority", "europe", "foreign_authority", "network", "wanted"]
