"""What figures are called, in which unit they are shown, and with how many digits."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Unit:
    """How a metric is shown.

    Attributes:
        name: of the metric.
        suffix: of the unit, if it has one.
        digits: behind the point.
        factor: from what is measured to what is shown.
        higher: whether more is better.
    """

    name: str
    suffix: str = ""
    digits: int = 3
    factor: float = 1.0
    higher: bool = True

    @property
    def axis(self) -> str:
        """Name and unit, as an axis has them."""
        return f"{self.name}, {self.suffix}" if self.suffix else self.name


UNITS: dict[str, Unit] = {
    "auc": Unit("AUC"),
    "accuracy": Unit("ACC"),
    "f1_macro": Unit("MF1"),
    "dice": Unit("Dice"),
    "pixel_accuracy": Unit("pixel ACC"),
    "psnr": Unit("PSNR", "dB", digits=2),
    "ssim": Unit("SSIM"),
}
METRICS: dict[str, tuple[str, ...]] = {
    "classification": ("auc", "accuracy", "f1_macro"),
    "time_series": ("auc", "accuracy", "f1_macro"),
    "segmentation": ("dice", "pixel_accuracy"),
    "super_resolution": ("psnr", "ssim"),
}
"""What the tables of a task show, the one by which it is judged first."""


def unit(metric: str, published: str | None = None) -> Unit:
    """How a metric is shown; beside published figures as those are, in per cent or with four digits."""
    found = UNITS.get(metric, Unit(metric))
    if published is None or found.suffix:
        return found
    if published == "percent":
        return Unit(found.name, "%", digits=2, factor=100.0)
    return Unit(found.name, digits=4)
