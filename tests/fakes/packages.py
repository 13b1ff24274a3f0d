"""What a test that installs packages leaves behind in its process."""


def forget_packages() -> None:
    """Look up methods and metrics of packages anew: a process keeps what it has found once."""
    from peer.lab.statistics.further_metrics import find_further_metric
    from peer.methods.registry import find_plan

    find_plan.cache_clear()
    find_further_metric.cache_clear()
