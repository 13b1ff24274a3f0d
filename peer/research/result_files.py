"""What the simulator that writes result files and the report that reads them agree on."""

from __future__ import annotations

FORMAT = 1
"""The version of ``experiment.json`` and of the files in a run's folder."""
EVERY_LINK = "all"
"""The name of the links of an undisturbed federation."""
CENTRALISED = "centralised"
"""The bound that no federation reaches: each architecture trained on everybody's data. Only a simulator can."""
