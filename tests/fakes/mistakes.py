"""A site, and what people do wrong with its files and commands."""

import contextlib
import json
import os
import re
import shutil
import socket
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from fakes.cli import run
from fakes.drafts import draft, site_text
from fakes.sites import append_rows
from peer.cli.amendments import make_proposal
from peer.cli.governance import SiteChain
from peer.core.roster import SiteName
from peer.daemon import startup
from peer.daemon.dispatch import now
from peer.errors import PeerError
from peer.lab.demo.local_federation import LocalFederation
from peer.site.config import toml
from peer.site.config.schema import FederationConfig
from peer.site.config.site_folder import SiteFolder, find_site
from peer.site.identity import certificates
from peer.site.identity.certificates import Identity
from peer.site.records.ledger import Ledger
from peer.view.preflight import local
from peer.view.preflight.finding import Finding

FOUNDED = datetime(2026, 11, 22, 10, tzinfo=UTC)
SITES = {"site": [{"name": name, "address": f"{name}.example:7443"} for name in ("asia", "europe")]}
ITEMS: tuple[dict[str, Any], ...] = tuple({"image": f"{index}.npy", "label": index % 2} for index in range(6))
TRAINING, TEST = ITEMS[:4], ITEMS[4:]


@dataclass
class Bench:
    """A site whose files a mistake is made in."""

    loopback: LocalFederation
    tmp: Path
    monkeypatch: pytest.MonkeyPatch
    ca: Path

    @property
    def folder(self) -> SiteFolder:
        return self.loopback.folder("asia")

    def load(self) -> str:
        """The error of `start`, and of `check`, about the site's files."""
        return error_of(PeerError, startup.load, self.folder)

    def start(self) -> str:
        """The error of a `start` that gets as far as the folder's content."""
        return error_of(PeerError, startup.run, self.folder, startup.Options(quiet=True))

    def cli(self, *words: object) -> str:
        self.monkeypatch.chdir(self.tmp)
        result = run("--home", self.loopback.home, *words)
        assert result.exit_code not in (0, 1), result.output
        return result.stderr

    def in_plain_words(self, message: str) -> str:
        """The message without what differs from machine to machine."""
        for path, name in ((self.loopback.home, "/var/lib/mhfl"), (self.tmp, "/srv/trial")):
            message = message.replace(str(path), name)
        message = re.sub(r"127\.0\.0\.1:\d+", "127.0.0.1:7443", message)
        message = re.sub(r"\d{4}-\d\d-\d\d \d\d:\d\d", lambda match: _since_founding(match[0]), message)
        message = re.sub(r"user \d+", "user 1001", message)
        message = re.sub("; there are resnet10, .*", "; there are …", message)
        return re.sub(r"process \d+", "process 4711", message).strip().removeprefix("mhfl-peer: ")


def _since_founding(time: str) -> str:
    """The time as if the federation had been founded on a certain day."""
    days = round((datetime.strptime(time, "%Y-%m-%d %H:%M").replace(tzinfo=UTC) - now()) / timedelta(days=1))
    return f"{FOUNDED + timedelta(days=days):%Y-%m-%d %H:%M}"


def error_of(kind: type[Exception], call: Callable[..., Any], *arguments: Any, **options: Any) -> str:
    """What the call says that ends with this error."""
    with pytest.raises(kind) as caught:
        call(*arguments, **options)
    return str(caught.value)


Make = Callable[[Bench], str]


def site(**tables: Any) -> Make:
    def make(bench: Bench) -> str:
        base: dict[str, Any] = {"listen": "127.0.0.1:7443", "data": {"input_size": [8]}, "training": {"device": "cpu"}}
        for key, value in tables.items():
            base[key] = {**base.get(key, {}), **value} if isinstance(value, Mapping) else value
        bench.folder.site_toml.write_text(toml.text(base))
        return bench.load()

    return make


def site_bytes(content: bytes) -> Make:
    def make(bench: Bench) -> str:
        bench.folder.site_toml.write_bytes(content)
        return bench.load()

    return make


def federation(**keys: Any) -> Make:
    text = draft(**{"name": "trial", **SITES, **keys})
    return lambda bench: error_of(PeerError, FederationConfig.parse, text, "draft.toml")


def data(*training: Any, test: Any = TEST, keys: Mapping[str, Any] | None = None, text: str = "") -> Make:
    """A mistake in the datalist, or in its first entries."""

    def make(bench: Bench) -> str:
        for item in ITEMS:
            (bench.folder.path / str(item["image"])).write_text(str(item["image"]))
        content = {"training": [*training, *TRAINING[len(training) :]], "test": test} if keys is None else keys
        (bench.folder.path / "datalist.json").write_text(text or json.dumps(content))
        return checked_data(bench)

    return make


def checked_data(bench: Bench) -> str:
    federation_config, site_config, _ = startup.load(bench.folder)
    return in_one_line(local.check_data(federation_config, site_config)[0])


def in_one_line(finding: Finding) -> str:
    assert finding.verdict != "ok", finding
    return f"{finding.verdict}: {finding.message}; {finding.remedy}"


def datalist_at(name: str, *, folder: bool = False, content: str = "") -> Make:
    def make(bench: Bench) -> str:
        path = bench.folder.path / name
        if folder:
            path.mkdir()
        elif content:
            path.write_text(content)
        bench.folder.site_toml.write_text(site_text(datalist=name))
        return checked_data(bench)

    return make


def model(**table: Any) -> Make:
    def make(bench: Bench) -> str:
        from peer.train.errors import UnusableConfigurationError
        from peer.train.network import build_spec

        sizes = {"spatial_dims": 2, "in_channels": 1, "classes": 2}
        return error_of(UnusableConfigurationError, build_spec, {**sizes, "hyper": {}, **table}, "[model]")

    return make


def cuda_absent(bench: Bench) -> str:
    import torch

    from peer.train.device import choose_device
    from peer.train.errors import UnusableConfigurationError

    bench.monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    return error_of(UnusableConfigurationError, choose_device, "cuda")


def cli(*words: object) -> Make:
    return lambda bench: bench.cli(*words)


def port_busy(bench: Bench) -> str:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        return in_one_line(local.check_port("listen", address, key="listen"))


def foreign_address(bench: Bench) -> str:
    return in_one_line(local.check_port("listen", "192.0.2.7:7443", key="listen"))


def same_metrics_port(bench: Bench) -> str:
    metrics = {"listen": "127.0.0.1:9464"}
    for name in ("asia", "europe"):
        bench.loopback.folder(name).site_toml.write_text(site_text(metrics=metrics, listen="127.0.0.1:0"))
    _, site_config, _ = startup.load(bench.folder)
    return in_one_line(*local.check_neighbours(bench.folder, site_config))


def disk_full(bench: Bench) -> str:
    bench.monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=1 << 20))
    return in_one_line(next(local.check_disk(bench.folder, bench.loopback.federation, None)))


def key_open(bench: Bench) -> str:
    (bench.folder.pki / "site.key").chmod(0o644)
    return bench.load()


def at_another_time(days: int) -> Make:
    def make(bench: Bench) -> str:
        folder, ca = bench.folder, bench.loopback.federation.ca_certificate
        then = now() + timedelta(days=days)
        return error_of(PeerError, Identity.load, folder.pki, name=folder.site, ca_certificate=ca, now=then)

    return make


def other_site(bench: Bench) -> str:
    shutil.copytree(bench.loopback.folder("europe").pki, bench.folder.pki, dirs_exist_ok=True)
    return bench.load()


def started_twice(bench: Bench) -> str:
    with bench.folder.locked():
        return bench.start()


def journal_damaged(bench: Bench) -> str:
    append_rows(bench.folder, ("began", 0, {"generation": 1}))
    (bench.folder.generation(1) / "journal.db").write_bytes(b"no database" * 1000)
    return bench.start()


def journal_empty(bench: Bench) -> str:
    append_rows(bench.folder, ("began", 0, {"generation": 1}))
    with contextlib.closing(Ledger(bench.folder.egress_db)) as ledger:
        ledger.intend(peer="europe", purpose="train", kind="model", round=3, generation=1, sha256="ab" * 32, bytes=9)
    journal = bench.folder.generation(1) / "journal.db"
    journal.unlink()
    journal.touch()
    return bench.start()


def amend(bench: Bench, *words: object) -> str:
    return bench.cli("federation", "amend", "--yes", "--ca", bench.ca, "--site", "asia", *words)


def name_used(bench: Bench) -> str:
    (bench.tmp / "europe.csr").write_bytes(certificates.signing_request(certificates.new_key(), SiteName("europe")))
    return amend(bench, "--add", "europe=europe.example:7443", "--request", "europe.csr")


def round_past(bench: Bench) -> str:
    append_rows(bench.folder, ("opened", 2, {"sources": [], "jumped": False}))
    return amend(bench, "--set", "pace.wait_max_s=600", "--from-round", "2")


def too_few_left(bench: Bench) -> str:
    return amend(bench, "--expel", "europe")


def proposed(bench: Bench) -> None:
    """An amendment without a signature, for the chain as it is now."""
    unsigned = make_proposal(SiteChain.open(bench.folder), {}, {"hold": True}, None)
    (bench.tmp / "hold.json").write_bytes(unsigned.encode())


def unsigned(bench: Bench) -> str:
    proposed(bench)
    return bench.cli("federation", "enact", "hold.json", "--site", "asia")


def not_next(bench: Bench) -> str:
    proposed(bench)
    words = ("federation", "amend", "--yes", "--ca", bench.ca, "--site", "asia", "--rounds", "5")
    amended = run("--home", bench.loopback.home, *words)
    assert amended.exit_code == 0, amended.output
    return bench.cli("federation", "enact", "hold.json", "--site", "asia")


def output_exists(bench: Bench) -> str:
    (bench.tmp / "asia.backup").touch()
    return bench.cli("backup", "asia.backup", "--site", "asia")


def other_user(bench: Bench) -> str:
    user = os.geteuid()
    bench.loopback.home.chmod(0)
    os.seteuid(user or 65534)  # root may read everything
    try:
        return error_of(PeerError, find_site, bench.loopback.home, "asia")
    finally:
        os.seteuid(user)
        bench.loopback.home.chmod(0o700)


def frozen(bench: Bench) -> str:
    with bench.folder.locked():
        return bench.cli("pause", "--site", "asia")


SECTIONS: dict[str, dict[str, Make]] = {
    "site.toml": {
        "`[training] batchsize = 8`": site(training={"batchsize": 8}),
        "`[trainig]`": site(trainig={"threads": 1}),
        "`input_size [8]`, without `=`": site_bytes(b"[data]\ninput_size [8]\n"),
        '`batch_size = "8"`': site(training={"batch_size": "8"}),
        "`batch_size = 0`": site(training={"batch_size": 0}),
        "`input_size = 32`": site(data={"input_size": 32}),
        "no `input_size`": site_bytes(b"[data]\n"),
        "three sizes for one dimension": site(data={"input_size": [8, 8, 8]}),
        "`input_size = [0]`": site(data={"input_size": [0]}),
        "`training = 3`": site(training=3),
        '`name = "resnet-10"`': site(model={"name": "resnet-10"}),
        '`name = "resnet100"`': model(name="resnet100"),
        "`[model.parameters] widht = 8`": model(name="resnet10", hyper={"widht": 8}),
        '`device = "gpu"`': site(training={"device": "gpu"}),
        '`device = "cuda"`, no GPU': cuda_absent,
        '`precision = "fp16"`': site(training={"precision": "fp16"}),
        '`normalise = "z-score"`': site(data={"normalise": "z-score"}),
        "`validation_share = 1.0`": site(data={"validation_share": 1.0}),
        '`receivers = ["eurpe"]`': site(egress={"receivers": ["eurpe"]}),
        '`kinds = ["weights"]`': site(egress={"kinds": ["weights"]}),
        '`kinds = ["head"]` where the method sends models': site(egress={"kinds": ["head"]}),
        '`listen = "127.0.0.1"`': site(listen="127.0.0.1"),
        "`listen = 7443`": site(listen=7443),
        '`[metrics] listen = "0.0.0.0:9464"`': site(metrics={"listen": "0.0.0.0:9464"}),
        "saved as Latin-1": site_bytes(b'[data]\nroot = "/K\xf6ln"\n'),
    },
    "federation.toml": {
        '`name = "Köln Bund"`': federation(name="Köln Bund"),
        '`rounds = "10"`': federation(rounds="10"),
        '`name = "fedsdk"` for the method': federation(method="fedsdk"),
        "no `[[site]]`": federation(site=[]),
    },
    "Data": {
        "a datalist that is not there": datalist_at("lost.json"),
        "a folder": datalist_at("images", folder=True),
        "a CSV": datalist_at("list.csv", content="a,b\n"),
        "a text that is not JSON": data(text="image,label"),
        '`"label": "benign"`': data({**ITEMS[0], "label": "benign"}),
        '`"label": "3"`': data({**ITEMS[0], "label": "3"}),
        '`"label": 10` of two classes': data({**ITEMS[0], "label": 10}),
        '`"label": 1.0`': data({**ITEMS[0], "label": 1.0}),
        '`"label": -1`': data({**ITEMS[0], "label": -1}),
        "no label": data({"image": "0.npy"}),
        "no test split": data(test=[]),
        "no training split": data(keys={"test": ITEMS}),
        "`train` for `training`": data(keys={"train": ITEMS, "test": []}),
        "one image in both splits": data(test=[ITEMS[0]]),
        "files that are not there": data({"image": "lost.npy", "label": 1}),
    },
    "This machine": {
        "a port that is taken": port_busy,
        "another machine's address": foreign_address,
        "two sites with one metrics port": same_metrics_port,
        "a key that others can read": key_open,
        "another site's certificate": other_site,
        "a clock two days behind": at_another_time(-2),
        "an expired certificate": at_another_time(400),
        "another user than the daemon's": other_user,
        "a full disk": disk_full,
        "started twice": started_twice,
        "a daemon that is stopped or hung": frozen,
        "a damaged journal": journal_damaged,
        "an empty journal beside a ledger": journal_empty,
    },
    "Members": {
        "a name that a site had": name_used,
        "a round that is past": round_past,
        "one member of two expelled": too_few_left,
        "an amendment that nobody signed": unsigned,
        "a proposal that another amendment overtook": not_next,
        "`federation amend --leave` without a notice": lambda bench: amend(bench, "--leave"),
    },
    "The command line": {
        "`mhfl-peer statsu`": cli("statsu"),
        "`status --wach`": cli("status", "--wach"),
        "`start --site`": cli("start", "--site"),
        "`status` in a home with two sites": cli("status"),
        "`status --site mars`": cli("status", "--site", "mars"),
        "`pause` without a daemon": cli("pause", "--site", "asia"),
        "a home without sites": cli("--home", "empty", "status"),
        "an output that exists": output_exists,
    },
}
"""What somebody did, and how the program is brought to its message; the page says what the message is."""
MISTAKES = {f"{section}: {name}": make for section, mistakes in SECTIONS.items() for name, make in mistakes.items()}
