"""Peer-to-peer daemon for model-heterogeneous federated learning."""

from importlib.metadata import PackageNotFoundError, version

try:
    __version__ = version("mhfl-peer")
except PackageNotFoundError:  # a source tree that was never installed
    __version__ = "0.0.0"
