"""The small hospital of the training tests, whose model these tests export."""

from fakes.hospital import facts, make_setting, signals

__all__ = ["facts", "make_setting", "signals"]
