"""The small hospital of the tests of training, whose model is taken away here."""

from __future__ import annotations

from fakes.hospital import facts, make_setting, signals

__all__ = ["facts", "make_setting", "signals"]
