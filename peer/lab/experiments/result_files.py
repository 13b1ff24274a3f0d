"""Names that the simulator, the report and its command share."""

from __future__ import annotations

FORMAT = 1
"""The version of ``experiment.json`` and of the files in a run's folder."""
UNDISTURBED = "all"
"""The name of the links of an undisturbed federation."""
CENTRALISED = "centralised"
"""The pooled bound, which no federation reaches: training on the data of all sites together."""
SHARE_OF_ROOM = "share of room, %"
"""The column beside each Mean, in tables of experiments that have ``local`` and the pooled bound."""
ATTACK_SUCCESS = "attack_success"
"""The share of other classes' images that become class 0 with a backdoor's trigger, at a model's own site."""
