"""Bytes, steps and sizes of networks."""

import pytest

from fakes.report_folders import SETTING, TWO
from peer.lab.report import costs
from peer.lab.report.measurements import Measurements
from peer.lab.report.results import read


def test_bytes_by_site_by_round_and_together(make) -> None:
    measured = Measurements(read(make(methods=TWO)))
    assert costs.sent(measured, SETTING).loc["Local"].tolist() == [0.0] * 4
    table = costs.traffic_table(measured, SETTING, name="t")
    rows = {row.label: [cell.value for cell in row.cells] for row in table.rows}
    sent, received, in_a_round, by_all, steps, seconds = rows["FedSKD"]
    assert sent == received == pytest.approx(6_400_000 / 2**20)
    assert in_a_round == pytest.approx(sent / 12)
    assert by_all == pytest.approx(4 * sent)
    assert (steps, seconds) == (240, 3.5)


def test_networks_with_an_unknown_cost(make) -> None:
    table = costs.footprint(read(make(methods=TWO)), SETTING, name="t")
    cells = {row.label: row.cells for row in table.rows}
    assert [cells["africa"][column].text for column in (0, 1)] == ["resnet10", "width 8"]
    assert cells["africa"][2].value == pytest.approx(1.234567)
    assert cells["africa"][3].value == pytest.approx(98.765432)
    assert cells["asia"][3].value is None
