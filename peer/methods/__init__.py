"""The methods, one file each. Their names and stages are those of ``peer.core.plan.PLANS``."""

from peer.methods.averaging import FEDAVG, FEDBN, FEDPROX, LG_FEDAVG
from peer.methods.dflmoe import DFLMOE, DFLMOE_AVERAGED, DFLMOE_MODELS
from peer.methods.fedcross import FEDCROSS
from peer.methods.feddal import FEDDAL
from peer.methods.fedskd import FEDSKD
from peer.methods.local import LOCAL
from peer.methods.method import Method
from peer.methods.mh_pflid import MH_PFLID
from peer.methods.proxyfl import PROXYFL

METHODS: dict[str, Method] = {
    "local": LOCAL,
    "fedskd": FEDSKD,
    "mh_pflid": MH_PFLID,
    "feddal": FEDDAL,
    "dflmoe": DFLMOE,
    "dflmoe_models": DFLMOE_MODELS,
    "dflmoe_averaged": DFLMOE_AVERAGED,
    "fedcross": FEDCROSS,
    "proxyfl": PROXYFL,
    "fedavg": FEDAVG,
    "fedprox": FEDPROX,
    "fedbn": FEDBN,
    "lg_fedavg": LG_FEDAVG,
}
