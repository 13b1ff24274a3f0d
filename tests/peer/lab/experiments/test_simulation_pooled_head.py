"""The pooled head in the simulator: four hospitals predict alike, as the ridge regression of all their patients."""

from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn.linear_model import Ridge

from peer.lab.experiments.collect import execute
from peer.lab.experiments.experiment import Experiment
from peer.lab.experiments.pool import gather
from peer.lab.experiments.runs import build_runs
from peer.train.column_channels import encode_row
from peer.train.data.datalist import inspect_datalist
from peer.train.metrics import classification

pytestmark = [pytest.mark.e2e, pytest.mark.data]
PRESET = Path(__file__).parents[4] / "deploy/examples/experiments/_heart-disease.toml"
SITES = ("cleveland", "hungary", "switzerland", "va-long-beach")


def test_four_hospitals_predict_as_the_regression_of_all_their_patients(tmp_path: Path) -> None:
    text = (
        PRESET.read_text().replace("rounds = 12", "rounds = 2").replace("seeds = [10, 11, 12, 13, 14]", "seeds = [10]")
    )
    path = tmp_path / "pooled.toml"
    path.write_text(f'name = "pooled"\n{text}[models.one]\n"*" = {{name = "linear"}}\n[methods]\npooled_head = {{}}\n')
    experiment = Experiment.load(path)
    (run,) = build_runs(experiment, gather(experiment, tmp_path / "data"), tmp_path / "runs")
    run.write()
    result = execute(run.folder)
    columns = [column.to_column() for column in experiment.task.column]
    lists = {
        site: inspect_datalist(run.folder / f"sites/{site}/datalist.json", task="tabular", classes=2, columns=columns)
        for site in SITES
    }

    def scaled(split: str, *sites: str) -> np.ndarray:
        rows = [encode_row(columns, each.row)[:, 0] for site in sites for each in getattr(lists[site], split)]
        features = torch.stack(rows).double().numpy()
        return np.pad(features, ((0, 0), (0, 1)), constant_values=1.0) / np.sqrt(features.shape[1] + 1)

    targets = [each.label - 0.5 for site in SITES for each in lists[site].training]
    model = Ridge(alpha=1.0, fit_intercept=False, solver="cholesky").fit(scaled("training", *SITES), targets)
    arrays = np.load(run.folder / "predictions.npz")
    for other in SITES:
        expected = 1 / (1 + np.exp(-4 * model.predict(scaled("test", other))))
        for name in SITES:
            assert np.array_equal(arrays[f"p/{name}/{other}"], arrays[f"p/{SITES[0]}/{other}"])
        predicted = arrays[f"p/{SITES[0]}/{other}"]
        np.testing.assert_allclose(predicted[:, 1], expected, atol=1e-5)
        centralised = classification(np.stack([1 - expected, expected], 1), arrays[f"y/{other}"])
        assert result["matrix"][SITES[0]][other]["auc"] == pytest.approx(centralised["auc"], abs=1e-3)
