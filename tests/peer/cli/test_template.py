"""The template of site.toml is the example, and fits every number of dimensions."""

from pathlib import Path
from typing import Any

import pytest

from peer.cli.models import FAMILIES, family
from peer.cli.template import site_toml
from peer.site.config.schema import SiteConfig

EXAMPLE = Path(__file__).parents[3] / "deploy" / "examples" / "site.toml"


def written(folder: Path, *place: Any, **options: Any) -> SiteConfig:
    """The configuration of a site whose file is the template."""
    (folder / "site.toml").write_text(site_toml(*place, **options))
    return SiteConfig.load(folder / "site.toml")


def test_template_is_the_example() -> None:
    assert site_toml(3) == EXAMPLE.read_text()


@pytest.mark.parametrize("dims", [1, 2, 3])
def test_template_fits_the_task(dims: int, tmp_path: Path) -> None:
    assert len(written(tmp_path, dims).data.input_size) == dims


@pytest.mark.parametrize("kind", sorted(FAMILIES))
def test_the_network_is_one_of_the_task(kind: str, tmp_path: Path) -> None:
    model = written(tmp_path, 1 if kind == "time_series" else 2, kind=kind).model.name
    assert family(model) in FAMILIES[kind]


@pytest.mark.parametrize(
    ("address", "listen"),
    [
        (None, "127.0.0.1:7443"),
        ("127.0.0.1:9000", "127.0.0.1:9000"),
        ("localhost:9000", "127.0.0.1:9000"),
        ("[::1]:9000", "[::1]:9000"),
        ("gpu.europe.example:7444", "0.0.0.0:7444"),
        ("[2001:db8::7]:7443", "[::]:7443"),
    ],
)
def test_the_site_listens_where_the_roster_says_that_it_is(address: str | None, listen: str, tmp_path: Path) -> None:
    assert written(tmp_path, 2, address).listen == listen


def test_a_site_whose_address_is_a_relay_s_parks_there(tmp_path: Path) -> None:
    site = written(tmp_path, 3, "relay gate relay.clinic.example:8443")
    assert (site.listen, site.connect.relays) == ("127.0.0.1:7443", ("gate relay.clinic.example:8443",))


def test_a_given_listen_wins_over_the_address_and_keeps_the_relay(tmp_path: Path) -> None:
    for address in (None, "gpu.europe.example:7444", "relay gate relay.clinic.example:8443"):
        site = written(tmp_path, 2, address, listen="0.0.0.0:7450")
        assert (site.listen, site.metrics.listen) == ("0.0.0.0:7450", "127.0.0.1:9471")
    assert site.connect.relays == ("gate relay.clinic.example:8443",)


@pytest.mark.parametrize(
    ("port", "metrics_port"), [(7443, 9464), (7444, 9465), (443, 9464), (5001, 10022), (9464, 9485), (9999, 10020)]
)
def test_sites_of_one_machine_have_their_own_metrics_ports(port: int, metrics_port: int, tmp_path: Path) -> None:
    assert written(tmp_path, 2, f"127.0.0.1:{port}").metrics.listen == f"127.0.0.1:{metrics_port}"


@pytest.mark.parametrize("discovery", [False, True])
def test_a_site_announces_itself_where_the_roster_lacks_addresses(discovery: bool, tmp_path: Path) -> None:
    assert written(tmp_path, 2, "127.0.0.1:7443", discovery=discovery).discovery.zeroconf is discovery
