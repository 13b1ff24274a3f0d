"""Peer-to-peer daemon for model-heterogeneous federated learning."""

from __future__ import annotations


def __getattr__(name: str) -> str:
    """``__version__``, on demand: importing ``importlib.metadata`` takes most of a command's
    start-up time.
    """
    if name != "__version__":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("mhfl-peer")
    except PackageNotFoundError:  # a source tree that was never installed
        return "0.0.0"
