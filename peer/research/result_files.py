"""Constants of the result files, which the simulator writes and the report reads."""

from __future__ import annotations

FORMAT = 1
"""The version of ``experiment.json`` and of the files in a run's folder."""
UNDISTURBED = "all"
"""The name of the links of an undisturbed federation."""
CENTRALISED = "centralised"
"""The pooled bound, which no federation reaches: training on the data of all sites together."""
