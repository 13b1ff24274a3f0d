"""Samples of the sites by split and class."""

from fakes.json_documents import change_documents
from fakes.report_folders import TWO
from peer.lab.report import site_samples
from peer.lab.report.results import read


def test_samples_by_split_and_class(make) -> None:
    table = site_samples.table(read(make(methods=TWO, classes=3)), "sites", name="t")
    heads = [f"{column.group}: {column.name}" for column in table.columns]
    assert heads[:2] == ["samples: training", "samples: test"]
    assert "class, test: 2" in heads
    assert "samples: validation" not in heads, "nobody has validation samples"
    assert [cell.value for cell in table.rows[0].cells[:2]] == [108, 36]


def test_a_class_that_a_site_lacks_is_empty_there(make) -> None:
    folder = make(methods=TWO, classes=3, insight=False)
    for document in change_documents(folder, "runs/*/result.json"):
        del document["sites"]["asia"]["classes"]["test"]["2"]
    table = site_samples.table(read(folder), "sites", name="t")
    counts = {row.label: row.cells[-1].value for row in table.rows}
    assert (counts["africa"], counts["asia"]) == (12, None)
