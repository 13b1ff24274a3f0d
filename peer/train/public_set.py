"""The public set of images that sites predict for each other; its digest ensures that all sites have the same."""

from __future__ import annotations

import hashlib

import torch
from torch import Tensor

from models.spec import SIZE_MAX
from peer.train.column_channels import encode_row
from peer.train.data.datalist import Sample, inspect_datalist
from peer.train.errors import UnusableConfigurationError
from peer.train.images import Preparation
from peer.train.settings import TrainingSettings


def load_public_images(settings: TrainingSettings) -> Tensor:
    """Load the images ``(n, c, *space)`` of the ``training`` list of ``[data] public``, prepared like this site's own.

    Labels are not needed.

    Raises:
        UnusableConfigurationError: the set is missing, cannot be read, has more than
            ``SIZE_MAX`` images, or is not the one that the federation pins.
    """
    path = settings.data.public
    if path is None:
        raise UnusableConfigurationError(f"[data] public is missing: {settings.method} predicts a public set of images")
    columns = settings.task.columns
    datalist = inspect_datalist(path, columns=columns, with_labels=False)
    if datalist.problems:
        raise UnusableConfigurationError(f"[data] public: {path}: " + "; ".join(datalist.problems))
    samples = datalist.training
    if len(samples) > SIZE_MAX:
        raise UnusableConfigurationError(f"[data] public: {path} has {len(samples)} images; take at most {SIZE_MAX}")
    try:
        digest, pinned = digest_images(samples), settings.parameters["public_sha256"]
        if digest != pinned:
            raise UnusableConfigurationError(
                f"[data] public: {path} has the digest {digest}, but federation.toml pins {pinned}; copy the set that "
                f'the federation has agreed on, or pin this one at all sites with [method] public_sha256 = "{digest}"'
            )
        if columns:
            return torch.stack([encode_row(columns, sample.row) for sample in samples])
        prepare = Preparation.of(settings.task, settings.data)
        return torch.stack([prepare(sample.images) for sample in samples])
    except OSError as error:
        raise UnusableConfigurationError(f"[data] public: {error.filename} cannot be read: {error.strerror}") from error


def digest_images(samples: tuple[Sample, ...]) -> str:
    """Compute the hex SHA-256 over the SHA-256 of each image's files, in the datalist's order; names do not count.

    A table's row counts by the values of its columns.
    """
    digest = hashlib.sha256()
    for sample in samples:
        digest.update(repr(sample.row).encode() if sample.row else b"")
        for path in sample.images:
            digest.update(hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest()
