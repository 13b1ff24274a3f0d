"""The notebook API: a site's rounds, metrics, transfers and events as records, its model, and predictions.

Every call reads the site's folder, whether or not the daemon runs. A call takes no lock and writes nothing there, and
asks the daemon for its status only. A record is a plain dictionary whose values are strings, numbers, booleans or
``None``; several names in one string are separated by spaces. ``pandas.DataFrame`` accepts a list of records. Times are
Unix seconds, and durations end in ``_s``. Every error is a ``peer.errors.PeerError``, which names the remedy.

>>> site = open_site("asia", home=home)
>>> site.name, site.federation.method.name
('asia', 'fedskd')
>>> [(record["round"], record["contributors"]) for record in site.rounds()]
[(1, 'asia'), (2, 'asia')]
>>> [record["value"] for record in site.metrics() if record["name"] == "train_steps"]
[2.0, 2.0]
>>> model = site.model()  # loads torch and MONAI, which no call before does
>>> model.training
False
>>> [record["predicted"] in (0, 1) for record in site.predict([datalist])]
[True, True]
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from peer.core.cross_evaluation_memory import evaluation_records
from peer.errors import DaemonDown, DataError, ModelError, PeerError
from peer.site.config.schema import FederationConfig, SiteConfig
from peer.site.config.site_folder import SiteFolder, find_site, home_folder
from peer.site.records import folder_documents
from peer.site.records.history import CommittedRound, History
from peer.site.records.members import members_of

if TYPE_CHECKING:
    from peer.train.inference.export.predictor import Predictor
    from peer.train.inference.model_state import ModelState, Round
    from peer.train.inference.notebook import Input
    from peer.train.trainer import Trainer

Record: TypeAlias = dict[str, Any]


def open_site(name: str | None = None, *, home: str | Path | None = None) -> SiteHandle:
    """Open a site of this machine for reading.

    Args:
        name: ``site`` or ``federation/site``; optional if the state folder holds exactly one site.
        home: the state folder; default: ``MHFL_HOME`` or the command line's default.

    Raises:
        UsageError: no site or several sites match; the message lists the sites in the state folder.

    Example:
        >>> open_site("asia", home=home)
        Site('trial/asia')
    """
    return SiteHandle(find_site(home_folder(None if home is None else Path(home)), name))


class SiteHandle:
    """A site's folder. Every call reads it again, so that a notebook can follow a running site."""

    def __init__(self, folder: SiteFolder) -> None:
        """Call ``open_site`` instead, which finds the folder."""
        self.folder = folder
        self._cached_trainer: tuple[tuple[object, ...], Trainer] | None = None

    def __repr__(self) -> str:
        return f"Site('{self.folder.federation}/{self.folder.site}')"

    @property
    def name(self) -> str:
        return self.folder.site

    @cached_property
    def federation(self) -> FederationConfig:
        """The settings in federation.toml with defaults. Raises ``ConfigError`` if the file is invalid."""
        return FederationConfig.load(self.folder.federation_toml)

    @cached_property
    def config(self) -> SiteConfig:
        """The settings in site.toml with defaults. Raises ``ConfigError`` if the file is invalid."""
        return SiteConfig.load(self.folder.site_toml)

    # --- records ----------------------------------------------------------------------------------------------------
    def status(self) -> Record:
        """Return the site's current status: the nested document of `mhfl-peer status --json`.

        The daemon provides it. While the daemon is down, ``daemon`` is ``"down"``, and the rest comes from the journal.
        """
        with contextlib.suppress(DaemonDown):
            socket = self.folder.control_socket()
            if socket.exists():
                from peer.net.transport.control import ControlClient

                status: Record = ControlClient(socket).show("status")
                return status
        return dict(folder_documents.status_when_down(self.folder))

    def rounds(self) -> list[Record]:
        """Return the finished rounds, oldest first.

        Returns:
            ``generation``, ``round``, ``time`` (of the commit), ``duration_s`` (of training),
            ``threads``; ``contributors``, ``contributor_count``, ``sources`` (whose artifacts were
            used), ``missing`` (as ``site:reason``), ``below_quorum``, ``skipped`` (rounds before it
            that the site did not take part in); ``artifact_sha256``, ``aggregate_sha256``,
            ``agrees`` and ``differs`` (sites whose mean is bit-identical, or is not).

        Example:
            >>> record = site.rounds()[-1]
            >>> record["generation"], record["round"], record["contributor_count"], record["missing"]
            (1, 2, 1, 'europe:silent')
        """
        return [_round(committed) for committed in self._rounds()]

    def metrics(self) -> list[Record]:
        """Return every metric of every finished round: training losses and steps, and metrics of the site's own splits.

        Returns:
            ``generation``, ``round``, ``time`` (of the commit), ``name``, ``value``. In pandas,
            ``DataFrame(site.metrics()).pivot_table(index="round", columns="name", values="value")``
            gives a table.

        Example:
            >>> {record["name"] for record in site.metrics()} >= {"train_steps", "auc"}
            True
        """
        return [
            {**_place(committed), "time": committed.time_s, "name": name, "value": float(value)}
            for committed in self._rounds()
            for name, value in committed.metrics.items()
        ]

    def evaluation(self) -> list[Record]:
        """Return the cross-site evaluation (Global Test) of the site's models, oldest first: one record per metric or
        reason.

        Returns:
            ``generation``, ``round``, ``site`` (whose test split), ``name``, ``value``,
            ``samples``, ``reason``. If a site returned no metrics, ``reason`` says why, and ``name``,
            ``value`` and ``samples`` are ``None``.

        Example:
            >>> [(record["site"], record["name"], record["reason"]) for record in site.evaluation()][-1]
            ('europe', None, 'federation.toml has no global_test')
        """
        records = []
        sites, global_test = members_of(self.folder, self.federation.roster.names), self.federation.global_test
        history = History(self.folder, rounds=True, kinds=("evaluated", "report", "lapsed")).read_all()
        for generation, rows in history.rows_of.items():
            plain_rows = ((row.kind, row.round, row.body) for row in rows)
            rounds = history.rounds_of[generation]
            for record in evaluation_records(plain_rows, own=self.folder.site, sites=sites, global_test=global_test):
                committed = rounds.get(record["round"])
                place = {"generation": committed and committed.row.generation, "round": record["round"]}
                records += [
                    {**place, **cell} for site, cells in record["cells"].items() for cell in _cells(site, cells)
                ]
        return records

    def transfers(self) -> list[Record]:
        """Return every artifact that the site received or sent, ordered by time.

        Returns:
            ``time``, ``direction`` (``in`` or ``out``), ``peer``, ``purpose``, ``kind``, ``round``,
            ``sha256``, ``bytes``, ``outcome``. Sent artifacts come from the egress ledger; ``leak_auc``
            is the AUC of the site's own attack, ``None`` where it was not measured, ``epsilon`` what
            had left of a person's privacy with it, ``None`` without noise, ``masked`` whether it left
            under masks, ``None`` of what was received.

        Example:
            >>> [(record["direction"], record["peer"], record["bytes"]) for record in site.transfers()]
            [('out', 'europe', 2048)]
        """
        records: list[Record] = folder_documents.document(self.folder, "transfers", {})
        for record in records:
            leak = record.pop("leak")
            record["leak_auc"] = None if leak is None else leak["auc"]
            spent = record.pop("spent")
            record["epsilon"] = None if spent is None else spent["epsilon"]
        return records

    def events(self) -> list[Record]:
        """Return the whole journal, oldest first, without the bytes of manifests.

        Returns:
            ``seq``, ``time``, ``kind``, ``round`` and ``body``, a dictionary whose keys depend on
            the kind; ``pandas.json_normalize`` flattens it.

        Example:
            >>> [record["round"] for record in site.events() if record["kind"] == "committed"]
            [1, 2]
        """
        records: list[Record] = folder_documents.document(
            self.folder, "events", {"last": sys.maxsize, "everything": True}
        )
        return records

    # --- the model --------------------------------------------------------------------------------------------------
    def model(self, round: Round = None) -> Predictor:
        """Return the site's model after a finished round: a copy, on the CPU and in evaluation mode, that you may
        change.

        The ``torch.nn.Module`` maps prepared images ``(b, c, *space)`` at ``site.config.data.input_size`` to logits
        ``(b, classes)`` or ``(b, classes, *space)``, or to larger images. ``.dam`` is the site's own network, which
        also returns its features. Under dFLMoE, the model is the mixture of experts with the heads that the site holds.

        Args:
            round: by default the newest. ``"best"`` is the evaluated round that was best on the site's
                validation data. The site keeps the weights of other rounds for two rounds.

        Raises:
            StateError: no round is finished, this round's weights were deleted, or site.toml was
                changed since.
            ModelError: the model cannot be built or loaded here.

        Example:
            >>> import torch
            >>> site.model()(torch.zeros(1, 1, 8)).shape
            torch.Size([1, 2])
        """
        from peer.train.inference import model_state

        with model_state.open_trained(self.folder, round) as (_, state), self._wrap_errors("the model"):
            from peer.train.inference.notebook import load_model

            return load_model(state.setting, state.checkpoint, state.sources)

    def predict(self, inputs: Sequence[Input], *, round: Round = None, device: str = "cpu") -> list[Record]:
        """Predict in this process, with the same results as `mhfl-peer predict`. The model is cached for the next call.

        Args:
            inputs: paths of images, folders of images and datalists; and arrays or tensors ``(c,
                *space)`` with the content of an image file, which are resized and normalised like
                files.
            round: as for ``model``.
            device: the device to compute on; by default the CPU, because the site may be training
                on the GPU.

        Returns:
            A record for each image: ``file`` (for an array, its index in the inputs) and ``problem``
            (empty, or why there is no prediction). Classification adds ``predicted`` and probabilities
            ``class_0``, ``class_1`` …; segmentation adds ``labels``, an array ``(*space)`` on the
            image's own grid; super-resolution adds ``image``, an array ``(c, *space)``.

        Raises:
            DataError: no image could be predicted; the message gives the first reason.
            StateError, ModelError: as for ``model``.

        Example:
            >>> import numpy
            >>> (record,) = site.predict([numpy.arange(8.0)[None]])
            >>> record["file"], record["problem"], round(record["class_0"] + record["class_1"], 5)
            ('0', '', 1.0)
        """
        _check_several(inputs)
        from peer.train.inference import model_state

        with model_state.open_trained(self.folder, round) as (_, state), self._wrap_errors("the prediction"):
            from peer.train.inference.notebook import predict_inputs

            records = predict_inputs(self._trainer(state, device), inputs)
        if records and all(record["problem"] for record in records):
            first = records[0]
            raise DataError(f"nothing could be predicted: {first['file']}: {first['problem']}", "see each `problem`")
        return records

    # --- private ----------------------------------------------------------------------------------------------------
    def _rounds(self) -> list[CommittedRound]:
        return History(self.folder, rounds=True).read_all().rounds

    def _trainer(self, state: ModelState, device: str) -> Trainer:
        """Return a trainer with the networks of this state; the last one is cached."""
        from peer.train.inference.notebook import load_trainer

        key = (state.generation, state.checkpoint, state.sources, device)
        if self._cached_trainer is None or self._cached_trainer[0] != key:
            setting = state.setting
            training = {**setting.site["training"], "device": device}
            setting = dataclasses.replace(setting, site={**setting.site, "training": training})
            self._cached_trainer = None  # two models at once might not fit into memory
            self._cached_trainer = key, load_trainer(setting, state.checkpoint, state.sources)
        return self._cached_trainer[1]

    @contextlib.contextmanager
    def _wrap_errors(self, subject: str) -> Iterator[None]:
        """Convert an exception of the training code into a ``ModelError`` that names the site."""
        from peer.train.errors import reason_of

        try:
            yield
        except PeerError:
            raise
        except Exception as error:
            raise ModelError(f"{subject} of {self.name} failed: {reason_of(error)}") from error


def _check_several(inputs: object) -> None:
    """Raise ``TypeError`` for a single input, which would be taken for its letters, bytes, keys, or rows."""
    if isinstance(inputs, str | os.PathLike):
        raise TypeError(f"predict takes several inputs: give a list, such as [{str(inputs)!r}]")
    if hasattr(inputs, "shape"):
        raise TypeError("predict takes several inputs: give a list, such as [array], or list(batch)")
    if isinstance(inputs, bytes | bytearray | Mapping) or not isinstance(inputs, Iterable):
        raise TypeError(f"predict takes a list of paths and arrays, not one {type(inputs).__name__}")


def _place(committed: CommittedRound) -> Record:
    return {"generation": committed.row.generation, "round": committed.row.round}


def _round(committed: CommittedRound) -> Record:
    agrees = sorted(committed.agrees.items())
    row = committed.row
    missing = sorted(row.missing.items())
    return {
        **_place(committed),
        "time": committed.time_s,
        "duration_s": row.duration_s,
        "threads": row.threads,
        "contributors": " ".join(row.contributors),
        "contributor_count": len(row.contributors),
        "sources": " ".join(source.site for source in row.sources),
        "missing": " ".join(f"{site}:{reason.replace(' ', '_')}" for site, reason in missing),
        "below_quorum": row.below_quorum,
        "skipped": " ".join(map(str, row.skipped or ())),
        "artifact_sha256": row.artifact_sha256,
        "aggregate_sha256": row.aggregate_sha256,
        "agrees": " ".join(site for site, same in agrees if same),
        "differs": " ".join(site for site, same in agrees if not same),
    }


def _cells(site: str, cell: Record) -> Iterator[Record]:
    """Yield the records of one round on one site's test split."""
    if "metrics" not in cell:
        yield {"site": site, "name": None, "value": None, "samples": None, "reason": cell["reason"]}
    for name, value in cell.get("metrics", {}).items():
        samples = cell["counts"].get("samples")
        yield {"site": site, "name": name, "value": float(value), "samples": samples, "reason": ""}
