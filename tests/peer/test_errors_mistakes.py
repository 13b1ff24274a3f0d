"""Mistakes that people made in trials: each message names the file and the key, what stands there, what was
expected, and what to type.

``deploy/mistakes.md`` shows the messages: ``pytest tests/peer/test_errors_mistakes.py --rewrite-scenarios`` writes it.
"""

from collections.abc import Mapping
from pathlib import Path

import pytest

from fakes.mistakes import (
    ITEMS,
    Bench,
    Mistake,
    amend,
    at_another_time,
    cli,
    cuda_absent,
    data,
    datalist_at,
    disk_full,
    federation,
    foreign_address,
    frozen,
    journal_damaged,
    journal_empty,
    key_open,
    model,
    name_used,
    not_next,
    other_site,
    other_user,
    output_exists,
    port_busy,
    round_past,
    same_metrics_port,
    site,
    site_bytes,
    started_twice,
    too_few_left,
    unsigned,
)
from peer.demo.local_federation import LocalFederation

PAGE = Path(__file__).parents[2] / "deploy" / "mistakes.md"


SECTIONS: dict[str, tuple[Mistake, ...]] = {
    "site.toml": (
        Mistake(
            "`[training] batchsize = 8`",
            site(training={"batchsize": 8}),
            ("site.toml: training.batchsize: unknown key", "did you mean 'batch_size'?"),
        ),
        Mistake("`[trainig]`", site(trainig={"threads": 1}), ("site.toml: trainig: unknown key", "'training'?")),
        Mistake(
            "`input_size [8]`, without `=`",
            site_bytes(b"[data]\ninput_size [8]\n"),
            ("site.toml is not TOML", "at line 2", "correct the syntax"),
        ),
        Mistake(
            '`batch_size = "8"`',
            site(training={"batch_size": "8"}),
            ("training.batch_size: expected a whole number such as 8", 'found the text "8"'),
        ),
        Mistake("`batch_size = 0`", site(training={"batch_size": 0}), ("training.batch_size", "at least 1, found 0")),
        Mistake(
            "`input_size = 32`",
            site(data={"input_size": 32}),
            ("data.input_size: expected a list such as [224, 224], found 32",),
        ),
        Mistake(
            "no `input_size`",
            site_bytes(b"[data]\n"),
            ("data.input_size is missing; write, for example, input_size = [",),
        ),
        Mistake(
            "three sizes for one dimension", site(data={"input_size": [8, 8, 8]}), ("3 sizes for spatial_dims = 1",)
        ),
        Mistake("`input_size = [0]`", site(data={"input_size": [0]}), ("data.input_size[0]", "at least 1, found 0")),
        Mistake("`training = 3`", site(training=3), ("training: expected a table, [training] on a line of its own",)),
        Mistake(
            '`name = "resnet-10"`',
            site(model={"name": "resnet-10"}),
            ("model.name: 'resnet-10'", "'resnet10'?"),
        ),
        Mistake('`name = "resnet100"`', model(name="resnet100"), ("[model] resnet100: unknown model", "resnet10")),
        Mistake(
            "`[model.parameters] widht = 8`",
            model(name="resnet10", hyper={"widht": 8}),
            ("[model] resnet10 has no hyper-parameter 'widht'", "did you mean 'width'?"),
        ),
        Mistake('`device = "gpu"`', site(training={"device": "gpu"}), ("training.device: 'gpu'", "auto, cpu, cuda")),
        Mistake('`device = "cuda"`, no GPU', cuda_absent, ('[training] device = "cuda"', '0 usable GPUs; take "auto"')),
        Mistake(
            '`precision = "fp16"`',
            site(training={"precision": "fp16"}),
            ("training.precision: expected 'fp32' or 'bf16', found the text \"fp16\"",),
        ),
        Mistake(
            '`normalise = "z-score"`',
            site(data={"normalise": "z-score"}),
            ("data.normalise: expected 'none', 'zscore' or 'unit'", '"z-score"'),
        ),
        Mistake(
            "`validation_share = 1.0`",
            site(data={"validation_share": 1.0}),
            ("data.validation_share: expected less than 1, found 1.0",),
        ),
        Mistake(
            '`receivers = ["eurpe"]`',
            site(egress={"receivers": ["eurpe"]}),
            ("egress.receivers: 'eurpe' is not in the roster", "did you mean 'europe'?"),
        ),
        Mistake(
            '`kinds = ["weights"]`',
            site(egress={"kinds": ["weights"]}),
            ("egress.kinds[0]: expected 'model', 'head'", '"weights"'),
        ),
        Mistake(
            '`kinds = ["head"]` where the method sends models',
            site(egress={"kinds": ["head"]}),
            ("egress.kinds: fedskd sends a model, which is not listed",),
        ),
        Mistake('`listen = "127.0.0.1"`', site(listen="127.0.0.1"), ("listen: '127.0.0.1' is not host:port",)),
        Mistake("`listen = 7443`", site(listen=7443), ('listen: expected a text in quotes such as "127.0.0.1:7443"',)),
        Mistake(
            '`[metrics] listen = "0.0.0.0:9464"`',
            site(metrics={"listen": "0.0.0.0:9464"}),
            ("metrics.listen: 0.0.0.0:9464 can be reached by others", "take 127.0.0.1, or say `public = true`"),
        ),
        Mistake(
            "saved as Latin-1", site_bytes(b'[data]\nroot = "/K\xf6ln"\n'), ("not UTF-8 at byte 17; save it as UTF-8",)
        ),
    ),
    "federation.toml": (
        Mistake(
            '`name = "Köln Bund"`',
            federation(name="Köln Bund"),
            ("draft.toml: name: name 'Köln Bund' must be 1 to 32 lower-case", "such as 'koln-bund'"),
        ),
        Mistake('`rounds = "10"`', federation(rounds="10"), ('rounds: expected a whole number, found the text "10"',)),
        Mistake(
            '`name = "fedsdk"` for the method', federation(method="fedsdk"), ("method.name", "did you mean 'fedskd'?")
        ),
        Mistake("no `[[site]]`", federation(site=[]), ("site: expected a list of at least 1, found an empty list",)),
    ),
    "Data": (
        Mistake(
            "a datalist that is not there",
            datalist_at("lost.json"),
            ("failure: datalist /var/lib/mhfl/trial/asia/lost.json cannot be read: No such file", "correct [data]"),
        ),
        Mistake("a folder", datalist_at("images", folder=True), ("images is a folder; run `mhfl-peer data import",)),
        Mistake(
            "a CSV", datalist_at("list.csv", content="a,b\n"), ("list.csv is a table; run `mhfl-peer data import",)
        ),
        Mistake("a text that is not JSON", data(text="image,label"), ("datalist.json is not JSON",)),
        Mistake('`"label": "benign"`', data({**ITEMS[0], "label": "benign"}), ("training[0]", "benign")),
        Mistake('`"label": "3"`', data({**ITEMS[0], "label": "3"}), ("training[0]", "'3'")),
        Mistake(
            '`"label": 10` of two classes',
            data({**ITEMS[0], "label": 10}),
            ("datalist.json: labels are not 0 to 1: 0.npy has 10", "[task] classes"),
        ),
        Mistake('`"label": 1.0`', data({**ITEMS[0], "label": 1.0}), ("training[0]", "1.0")),
        Mistake('`"label": -1`', data({**ITEMS[0], "label": -1}), ("labels are not 0 to 1: 0.npy has -1",)),
        Mistake("no label", data({"image": "0.npy"}), ("training[0]: 0.npy has no 'label'; write a class number",)),
        Mistake("no test split", data(test=[]), ("warning: 4 training samples", "add a 'test' list")),
        Mistake("no training split", data(keys={"test": ITEMS}), ("has no list 'training'; write",)),
        Mistake("`train` for `training`", data(keys={"train": ITEMS, "test": []}), ("has no list 'training'; write",)),
        Mistake("one image in both splits", data(test=[ITEMS[0]]), ("0.npy", "test")),
        Mistake("files that are not there", data({"image": "lost.npy", "label": 1}), ("lost.npy",)),
    ),
    "This machine": (
        Mistake(
            "a port that is taken", port_busy, ("cannot listen on", "change `listen` in site.toml or stop what uses")
        ),
        Mistake("another machine's address", foreign_address, ("192.0.2.7:7443", "change `listen` in site.toml")),
        Mistake(
            "two sites with one metrics port", same_metrics_port, ("trial/europe has port 9464, too", "another port")
        ),
        Mistake(
            "a key that others can read",
            key_open,
            ("site.key is a secret that others can read (mode 0644)", "chmod 600"),
        ),
        Mistake(
            "another site's certificate", other_site, ("cert.pem: the certificate names europe, not asia", "bundle")
        ),
        Mistake(
            "a clock two days behind",
            at_another_time(-2),
            ("is not valid before", "and this machine's clock says", "set the clock right (NTP)"),
        ),
        Mistake(
            "an expired certificate",
            at_another_time(400),
            ("the certificate expired on", "ask the founder", "site join"),
        ),
        Mistake("another user than the daemon's", other_user, ("user 1001 may not read", "as the user of the daemon")),
        Mistake("a full disk", disk_full, ("failure: 1.0 MiB free at /var/lib/mhfl/trial/asia; free space",)),
        Mistake(
            "started twice", started_twice, ("is held by process", "stop it first: `mhfl-peer stop --site trial/asia`")
        ),
        Mistake(
            "a daemon that is stopped or hung", frozen, ("process 4711 holds asia and does not answer", "see its log")
        ),
        Mistake("a damaged journal", journal_damaged, ("journal.db is damaged", "restore")),
        Mistake(
            "an empty journal beside a ledger",
            journal_empty,
            ("journal.db is empty, but", "round 3", "deletes nothing"),
        ),
    ),
    "Members": (
        Mistake("a name that a site had", name_used, ("add: the name europe is used, or was; give the new site",)),
        Mistake("a round that is past", round_past, ("round 2 is past: a member is in round 2", "round 3 or later")),
        Mistake("one member of two expelled", too_few_left, ("schedule.kind: a derangement needs at least 2 sites",)),
        Mistake("an amendment that nobody signed", unsigned, ("is not signed by the founder's CA key; the founder",)),
        Mistake(
            "a proposal that another amendment overtook",
            not_next,
            ("amendment 1 is not next in the chain, which ends with 1; make it again from the newest chain",),
        ),
        Mistake(
            "`federation amend --leave` without a notice",
            lambda bench: amend(bench, "--leave"),
            ("asia has no notice of a member that leaves", "`mhfl-peer leave`"),
        ),
    ),
    "The command line": (
        Mistake("`mhfl-peer statsu`", cli("statsu"), ("no command 'statsu' (did you mean 'status'?)",)),
        Mistake("`status --wach`", cli("status", "--wach"), ("No such option '--wach'", "--watch", "status --help")),
        Mistake(
            "`start --site`", cli("start", "--site"), ("'--site' requires an argument; see `mhfl-peer start --help`",)
        ),
        Mistake("`status` in a home with two sites", cli("status"), ("trial/asia, trial/europe", "as --site")),
        Mistake("`status --site mars`", cli("status", "--site", "mars"), ("no site 'mars'", "there: trial/asia")),
        Mistake(
            "`pause` without a daemon",
            cli("pause", "--site", "asia"),
            ("the daemon of asia does not run; start it with",),
        ),
        Mistake(
            "a home without sites", cli("--home", "empty", "status"), ("no site lives under", "site init", "--home")
        ),
        Mistake("an output that exists", output_exists, ("asia.backup exists; remove it, or name another file",)),
    ),
}
MISTAKES = {f"{section}: {mistake.name}": mistake for section, row in SECTIONS.items() for mistake in row}


WITHOUT_MESSAGE: Mapping[str, tuple[str, str]] = {
    "a TOML file with a byte order mark, or with Windows line ends": ("is read as any other", "config/test_toml.py"),
    "a datalist with a byte order mark, or in UTF-16": ("is read as any other", "data/test_datalist.py"),
    "umlauts and blanks in paths": ("work", "data/test_datalist.py"),
    "a path relative to the shell's folder": ("is relative to site.toml, and named in full", "config/test_schema.py"),
    "bf16 without a GPU": ("is a warning of `check`, which says to take fp32", "preflight/test_training.py"),
    "one image that cannot be read": ("is named by `check`, with the reason", "preflight/test_training.py"),
    "more images that cannot be read than allowed": (
        "are named, with the key that allows them",
        "training/test_data.py",
    ),
    "one class alone": ("is refused before training", "training/test_data.py"),
    "regions that are not there": ("are named by the full `check`", "training/test_images.py"),
    "a bundle of another site": ("is refused, and the site's files stay", "identity/test_enrolment.py"),
    "federation.toml edited at one site": ("is refused by every peer, and `check` names it", "preflight/test_peers.py"),
    "another model or other data in the midst": (
        "is refused until `--accept-change`",
        "records/test_kept_configuration.py",
    ),
    "a damaged ledger": ("is named with its row, and keeps `start` from running", "audit/test_verification.py"),
    "a folder that cannot be written": ("fails in `check`", "preflight/test_local.py"),
    "a network that lets nothing through": ("is a warning of `check`, for each direction", "preflight/test_peers.py"),
    "a proxy that wants a password, or another one": (
        "is named with the key to set; no peer is blamed",
        "transport/test_proxy.py",
    ),
    "a proxy that opens the TLS": (
        "is named with its certificate's issuer, and is sent nothing",
        "transport/test_proxy.py",
    ),
    "a relay at another address, or under another name": ("is named with what answers there", "relay/test_relay.py"),
    "a relay that leads to another site": ("is named, and is sent nothing", "relay/test_relay.py"),
    "a relay that does not list the site, or has nothing of it parked": (
        "is named, with which of the two",
        "transport/test_handshake.py",
    ),
    "a Python package that is missing": ("is named with the command that installs it", "test_extras.py"),
    "Ctrl-C at any time of a start": ("ends it in peace", "../e2e/test_interrupt.py"),
}
"""What other mistakes end in, and the test under tests/peer that shows it."""
INTRODUCTION = """\
# The mistakes of a trial, each with its message

People who had never seen this program tried it with data of their own, and made these mistakes. The
messages are what the program prints, in one line each: where, what stands there, what was expected,
and what to type. `tests/peer/test_errors_mistakes.py` makes every mistake again, and writes this
page.

The site is asia, its home `/var/lib/mhfl`. A message that begins with `failure` or `warning` is a
line of `mhfl-peer check`.
"""


@pytest.fixture
def bench(enrolled: LocalFederation, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, founders_ca: Path) -> Bench:
    return Bench(enrolled, tmp_path, monkeypatch, founders_ca)


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_is_told_with_its_place_what_was_found_and_what_to_do(name: str, bench: Bench, rewrite: bool) -> None:
    mistake = MISTAKES[name]
    message = bench.in_plain_words(mistake.make(bench))
    assert not set("\n|") & set(message)
    assert [part for part in mistake.says if part not in message] == [], message
    if rewrite:
        MESSAGES[name] = message
    else:
        assert row(mistake.name, message) in PAGE.read_text(), "write the page again with --rewrite-scenarios"


MESSAGES: dict[str, str] = {}


def row(name: str, message: str) -> str:
    """A row of the page's tables."""
    return f"| {name} | `` {message} `` |\n"


def test_the_page_has_each_mistake_once_and_names_tests_that_exist(rewrite: bool) -> None:
    rest = [f"| {name} | {end} | `tests/peer/{test}` |\n" for name, (end, test) in WITHOUT_MESSAGE.items()]
    if rewrite:
        parts = [INTRODUCTION]
        for section, mistakes in SECTIONS.items():
            rows = (row(mistake.name, MESSAGES[f"{section}: {mistake.name}"]) for mistake in mistakes)
            parts.append(f"## {section}\n\n| mistake | message |\n|---|---|\n{''.join(rows)}")
        parts.append(f"## Others\n\n| mistake | what it ends in | shown by |\n|---|---|---|\n{''.join(rest)}")
        PAGE.write_text("\n".join(parts))
    text = PAGE.read_text()
    assert text.startswith(INTRODUCTION)
    assert [line for line in rest if line not in text] == []
    rows = [line for line in text.splitlines() if line.startswith("| ") and not line.startswith("| mistake")]
    assert len(rows) == len(MISTAKES) + len(WITHOUT_MESSAGE)
    assert [test for _, test in WITHOUT_MESSAGE.values() if not (Path(__file__).parent / test).is_file()] == []
