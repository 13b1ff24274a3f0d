"""Peer-to-peer daemon for model-heterogeneous federated learning."""

__version__ = "0.4.0.dev0"
