"""The methods, one file each. Their names and stages are those of ``peer.core.plan.PLANS``."""

from peer.methods.fedskd import FEDSKD
from peer.methods.local import LOCAL
from peer.methods.method import Method

METHODS: dict[str, Method] = {
    "local": LOCAL,
    "fedskd": FEDSKD,
}
