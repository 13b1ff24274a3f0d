"""The refusals of other sites that this site's configuration foresees."""

from collections.abc import Callable
from typing import Any

import pytest

from peer.daemon import startup
from peer.site.config.schema import NamedParameters
from peer.site.config.site_folder import SiteFolder
from peer.view.preflight.finding import Finding
from peer.view.preflight.receivers import check_receivers

WEIGHTS = {"weights": "encoder.pt", "weights_sha256": "ab" * 32}
MONAI = "monai.networks.nets."


def findings(folder: SiteFolder, method: str, *, shared: str | None = None, **model: Any) -> list[Finding]:
    federation, site, own = startup.load(folder)
    shared_model = NamedParameters(name=shared) if shared else None
    federation = federation.model_copy(update={"method": NamedParameters(name=method), "shared_model": shared_model})
    site = site.model_copy(update={"model": site.model.model_copy(update=model)})
    return list(check_receivers(federation, site, own.name))


def test_a_network_that_all_take_is_no_finding(folder: SiteFolder) -> None:
    assert findings(folder, "fedskd") == []
    assert findings(folder, "fedskd", name=f"{MONAI}DenseNet121", head="class_layers.out") == []
    assert findings(folder, "fedskd", **WEIGHTS) == [], "weights alone travel with the model"
    assert findings(folder, "local", name="mine:Net") == [], "nothing is sent"
    assert findings(folder, "mh_pflid", name="mine:Net") == [], "a messenger is sent"


@pytest.mark.parametrize("method", ["fedskd", "fedvisit", "fedvisit_twin", "dflmoe_models"])
def test_a_class_that_others_must_allow_is_named_with_the_key(folder: SiteFolder, method: str) -> None:
    federation, _, own = startup.load(folder)
    (finding,) = findings(folder, method, name="mine:Net")
    others = ", ".join(federation.roster.others(own.name))
    assert (finding.verdict, finding.message) == (
        "warning",
        f"{others} refuse mine:Net unless their site.toml lists it in allow_models",
    )
    assert 'allow_models = ["mine:Net"]' in finding.remedy


@pytest.mark.parametrize("method", ["fedskd", "dflmoe"])
def test_the_package_of_an_installed_network_is_named(
    folder: SiteFolder, distribution: Callable[..., None], method: str
) -> None:
    distribution("clinic-nets", "1.2", "mhfl_peer.models", clinic_net="clinic:net")
    (finding,) = findings(folder, method, name="clinic_net")
    assert finding.message.endswith("refuse clinic_net unless they have clinic-nets==1.2 too")
    assert "get clinic-nets==1.2 from its authors and install that file" in finding.remedy


@pytest.mark.parametrize("method", ["fedavg", "fedskd"])
def test_the_one_network_of_all_sites_needs_no_permission(folder: SiteFolder, method: str) -> None:
    assert findings(folder, method, shared="mine:Net", name="mine:Net") == []
    (finding,) = findings(folder, method, shared="resnet10", **WEIGHTS, freeze=("layer1",))
    assert "unless their [model] has the same weights, and the same freeze or adapters" in finding.message


def test_the_head_of_a_class_needs_no_permission(folder: SiteFolder) -> None:
    (finding,) = findings(folder, "dflmoe", name="mine:Net")
    assert finding.verdict == "ok"


@pytest.mark.parametrize(
    ("name", "parameters", "reason"),
    [
        ("Transchex", {}, "is not one that another site may name here"),
        ("DenseNet121", {"pretrained": True}, "may not set 'pretrained'"),
    ],
)
def test_a_network_that_nobody_takes_is_a_failure(
    folder: SiteFolder, name: str, parameters: dict[str, Any], reason: str
) -> None:
    (finding,) = findings(folder, "fedskd", name=MONAI + name, parameters=parameters)
    assert finding.verdict == "failure"
    assert finding.message.startswith(f"every other site refuses [model] {MONAI}{name}: ")
    assert reason in finding.message


def test_the_weights_that_receivers_need_are_named_by_digest(folder: SiteFolder) -> None:
    (finding,) = findings(folder, "fedskd", **WEIGHTS, freeze=("layer1",))
    assert finding.verdict == "warning"
    assert "unless they have encoder.pt too" in finding.message
    assert f"[base_weights] {'ab' * 32}" in finding.remedy
    assert findings(folder, "dflmoe", **WEIGHTS, freeze=("layer1",)) == [], "a head is sent"
