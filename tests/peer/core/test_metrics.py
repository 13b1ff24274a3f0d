"""A metric is described once, and every program that shows it reads that."""

import typing

from peer.core.metrics import METRICS, METRICS_OF, TITLES, MetricName, metric_title, validation_metric
from peer.view.dashboard.chart import choose_tags


def test_every_metric_that_a_reference_may_name_has_a_record() -> None:
    assert typing.get_args(MetricName) == tuple(METRICS)
    assert {name for names in METRICS_OF.values() for name in names} == METRICS.keys()


def test_the_main_metric_of_each_task_is_the_first_chart_and_what_the_best_round_is_chosen_by() -> None:
    for main, *others in METRICS_OF.values():
        tags = [f"test/{name}" for name in (*others, main)]
        assert choose_tags(tags)[0] == [f"test/{main}"]
        assert validation_metric({f"validation_{name}": 0.5 for name in (*others, main)}) == f"validation_{main}"


def test_a_metric_without_a_record_is_named_by_its_key() -> None:
    assert (metric_title("f1_macro"), metric_title("pixel_error")) == ("macro F1", "pixel error")


def test_the_words_for_a_metric_are_the_same_on_every_split_and_for_further_figures() -> None:
    assert (metric_title("validation_c_index"), metric_title("c_index")) == ("validation C-index", "C-index")
    assert metric_title("validation_loss") == "validation loss"
    assert metric_title("c_index_uno") == "Uno's C-index"
    assert not METRICS.keys() & TITLES.keys()
