"""Write survival_reference.json: persons, and what lifelines and scikit-survival compute of them.

Run it where both are installed, as no test does: ``python tests/peer/survival_reference.py``. In "separate" events have
whole times and censorings half ones, since the libraries order the two differently where they are tied; "mixed" ties
both.
"""

import json
from pathlib import Path
from typing import Any

import numpy as np

PATH = Path(__file__).with_suffix(".json")


def draw(seed: int, *, separate: bool, persons: int = 40) -> dict[str, Any]:
    random = np.random.default_rng(seed)
    events = random.integers(2, size=persons)
    times = random.integers(1, 20, size=persons) + (0.5 * (1 - events) if separate else 0.0)
    times[0], events[0] = 21.0, 0
    curves = np.cumprod(random.uniform(0.6, 1, size=(persons, 4)), axis=1).round(3)
    return {
        "times": times.tolist(),
        "events": events.tolist(),
        "group": random.integers(2, size=persons).tolist(),
        "risks": (random.integers(8, size=persons) / 4).tolist(),
        "curves": curves.tolist(),
        "ends": [4.0, 8.0, 12.0, 16.0],
    }


def compute(data: dict[str, Any]) -> dict[str, Any]:
    import pandas
    from lifelines import CoxPHFitter, KaplanMeierFitter
    from lifelines.statistics import logrank_test
    from lifelines.utils import concordance_index
    from sksurv import metrics
    from sksurv.util import Surv

    times, events, group, risks, curves, ends = (np.array(data[key]) for key in data)
    one, second = Surv.from_arrays(events == 1, times), group == 1
    curve = KaplanMeierFitter(alpha=0.1).fit(times, events)
    limits = curve.confidence_interval_.iloc[1:]
    risk = np.log(-np.log(curves[:, 2]))
    until = pandas.DataFrame({"risk": risk, "time": np.minimum(times, ends[2]), "event": events * (times <= ends[2])})
    observed = 1 - float(curve.predict(ends[2]))
    brier = metrics.brier_score(one, one, curves, ends)[1]
    return {
        "km_times": curve.timeline[1:].tolist(),
        "km_survival": curve.survival_function_.iloc[1:, 0].tolist(),
        "km_at_risk": curve.event_table["at_risk"].iloc[1:].tolist(),
        "km_lower_90": limits.iloc[:, 0].tolist(),
        "km_upper_90": limits.iloc[:, 1].tolist(),
        "slope_12": float(CoxPHFitter().fit(until, "time", "event", fit_options={"precision": 1e-12}).params_["risk"]),
        "observed_expected_12": observed / float((1 - curves[:, 2]).mean()),
        "log_rank": logrank_test(times[second], times[~second], events[second], events[~second]).p_value,
        "harrell": concordance_index(times, -risks, events),
        "harrell_sksurv": metrics.concordance_index_censored(events == 1, times, risks)[0],
        "uno_12": metrics.concordance_index_ipcw(one, one, risks, tau=12)[0],
        "auc": metrics.cumulative_dynamic_auc(one, one, risks, ends)[0].tolist(),
        "brier": brier.tolist(),
        "ibs": metrics.integrated_brier_score(one, one, curves, ends),
    }


def main() -> None:
    from importlib.metadata import version

    content: dict[str, Any] = {name: version(name) for name in ("lifelines", "scikit-survival")}
    for name in ("separate", "mixed"):
        data = draw(len(name), separate=name == "separate")
        content |= {f"{name}.{key}": value for key, value in (data | compute(data)).items()}
    rows = (f"  {json.dumps(key)}: {json.dumps(value)}" for key, value in content.items())
    PATH.write_text("{\n" + ",\n".join(rows) + "\n}\n")


if __name__ == "__main__":
    main()
