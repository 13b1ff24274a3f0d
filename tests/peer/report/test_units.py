"""How figures are shown."""

from __future__ import annotations

from peer.report.units import unit


def test_shares_are_shown_as_the_paper_beside_them_does() -> None:
    assert unit("auc").axis == "AUC"
    assert (unit("auc", "percent").axis, unit("auc", "percent").factor, unit("auc", "percent").digits) == (
        "AUC, %",
        100,
        2,
    )
    assert (unit("dice", "fraction").axis, unit("dice", "fraction").digits) == ("Dice", 4)


def test_decibels_stay_decibels() -> None:
    assert unit("psnr", "percent") == unit("psnr")
    assert unit("psnr").axis == "PSNR, dB"


def test_an_unknown_metric_has_its_own_name() -> None:
    assert unit("dice_2").axis == "dice_2"
