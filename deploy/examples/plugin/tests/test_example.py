"""The package fits mhfl-peer, and sends what its method says; to be run where the package is installed."""

import subprocess

from mhfl_example.network import TwoConvolutions
from mhfl_example.stages import body


def test_mhfl_peer_finds_nothing_wrong() -> None:
    subprocess.run(["mhfl-peer", "plugin", "check", "mhfl-example"], check=True)


def test_all_but_the_head_is_sent() -> None:
    network = TwoConvolutions(spatial_dims=2, in_channels=1, classes=2)
    assert set(network.state_dict()) - set(body(network, {})) == {"fc.weight", "fc.bias"}
