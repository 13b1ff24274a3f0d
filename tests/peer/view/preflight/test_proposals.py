"""Proposals for the input size, the scale and the ports."""

from collections.abc import Callable
from typing import Any

import pytest

from peer.lab.demo.local_federation import free_ports
from peer.view.preflight.proposals import propose_address, propose_input_size, propose_scale


def survey(shapes: dict[str, int], orientations: dict[str, int] | None = None, **more: Any) -> dict[str, Any]:
    return {"splits": {"training": {"shapes": shapes, "orientations": orientations or {}, "label_shapes": {}, **more}}}


@pytest.mark.parametrize(
    ("shapes", "dims", "channels", "size"),
    [
        ({"28x28": 5}, 2, 1, [28, 28]),
        ({"600x450x3": 5}, 2, 3, [256, 192]),
        ({"3x64x48": 5}, 2, 3, [64, 48]),
        ({"240x240x155": 2, "240x240x150": 3}, 3, 1, [96, 96, 64]),
        ({"100x90": 3, "512x512": 1}, 2, 1, [96, 96]),
        ({"1000": 3}, 1, 1, [1000]),
        ({"64x64x64": 3}, 2, 1, None),
        ({}, 2, 1, None),
    ],
)
def test_the_median_sides_scaled_down(shapes: dict[str, int], dims: int, channels: int, size: list[int] | None) -> None:
    assert propose_input_size(survey(shapes), dims=dims, in_channels=channels, orientation=None) == size


def test_sides_are_turned_with_the_volumes() -> None:
    stored = survey({"16x20x24": 3}, {"PIR": 3})
    assert propose_input_size(stored, dims=3, in_channels=1, orientation="stored") == [16, 20, 24]
    assert propose_input_size(stored, dims=3, in_channels=1, orientation="RAS") == [24, 16, 20]


def test_the_scale_is_that_of_the_targets() -> None:
    assert propose_scale(survey({"16x16": 2}, label_shapes={"64x64": 2})) == 4
    assert propose_scale(survey({"16x16": 2}, label_shapes={"48x48": 2})) is None
    assert propose_scale(survey({"16x16": 2})) is None


def test_a_port_that_is_taken_is_replaced(taken: Callable[[str], None]) -> None:
    (port,) = free_ports(1)
    address = f"127.0.0.1:{port}"
    assert propose_address(address, ()) == address
    assert propose_address("0.0.0.0:0", {0}) == "0.0.0.0:0"
    assert propose_address(address, {port}) not in (address, f"127.0.0.1:{port - 1}")
    taken(address)
    assert propose_address(address, ()) != address
