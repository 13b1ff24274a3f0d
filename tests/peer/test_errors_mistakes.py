"""Mistakes that people made in trials: each message names the file and the key, what stands there, what was
expected, and what to type.

``deploy/mistakes.md`` shows the messages: ``pytest tests/peer/test_errors_mistakes.py --rewrite-scenarios`` writes it.
"""

from collections.abc import Mapping
from pathlib import Path

import pytest

from fakes.mistakes import MISTAKES, SECTIONS, Bench
from peer.lab.demo.local_federation import LocalFederation

PAGE = Path(__file__).parents[2] / "deploy" / "mistakes.md"


WITHOUT_MESSAGE: Mapping[str, tuple[str, str]] = {
    "a TOML file with a byte order mark, or with Windows line ends": (
        "is read as any other",
        "site/config/test_toml.py",
    ),
    "a datalist with a byte order mark, or in UTF-16": ("is read as any other", "train/data/test_datalist.py"),
    "umlauts and blanks in paths": ("work", "train/data/test_datalist.py"),
    "a path relative to the shell's folder": (
        "is relative to site.toml, and named in full",
        "site/config/test_schema.py",
    ),
    "bf16 without a GPU": ("is a warning of `check`, which says to take fp32", "view/preflight/test_training.py"),
    "one image that cannot be read": ("is named by `check`, with the reason", "view/preflight/test_training.py"),
    "more images that cannot be read than allowed": (
        "are named, with the key that allows them",
        "train/test_samples.py",
    ),
    "one class alone": ("is refused before training", "train/test_samples.py"),
    "regions that are not there": ("are named by the full `check`", "train/test_images.py"),
    "a bundle of another site": ("is refused, and the site's files stay", "site/identity/test_enrolment.py"),
    "federation.toml edited at one site": (
        "is refused by every peer, and `check` names it",
        "view/preflight/test_peers.py",
    ),
    "another model or other data in the midst": (
        "is refused until `--accept-change`",
        "site/records/test_kept_configuration.py",
    ),
    "a damaged ledger": ("is named with its row, and keeps `start` from running", "audit/test_verification.py"),
    "a folder that cannot be written": ("fails in `check`", "view/preflight/test_local.py"),
    "a network that lets nothing through": (
        "is a warning of `check`, for each direction",
        "view/preflight/test_peers.py",
    ),
    "a proxy that wants a password, or another one": (
        "is named with the key to set; no peer is blamed",
        "net/transport/test_proxy.py",
    ),
    "a proxy that opens the TLS": (
        "is named with its certificate's issuer, and is sent nothing",
        "net/transport/test_proxy.py",
    ),
    "a relay at another address, or under another name": (
        "is named with what answers there",
        "net/relay/test_relay.py",
    ),
    "a relay that leads to another site": ("is named, and is sent nothing", "net/relay/test_relay.py"),
    "a relay that does not list the site, or has nothing of it parked": (
        "is named, with which of the two",
        "net/transport/test_handshake.py",
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
    message = bench.in_plain_words(MISTAKES[name](bench))
    assert not set("\n|") & set(message)
    if rewrite:
        MESSAGES[name] = message
    else:
        written = row(name.partition(": ")[2], message)
        assert written in PAGE.read_text(), f"read what is new, then write the page with --rewrite-scenarios: {written}"


MESSAGES: dict[str, str] = {}


def row(name: str, message: str) -> str:
    """A row of the page's tables."""
    return f"| {name} | `` {message} `` |\n"


def test_the_page_has_each_mistake_once_and_names_tests_that_exist(rewrite: bool) -> None:
    rest = [f"| {name} | {end} | `tests/peer/{test}` |\n" for name, (end, test) in WITHOUT_MESSAGE.items()]
    if rewrite:
        parts = [INTRODUCTION]
        for section, mistakes in SECTIONS.items():
            rows = (row(name, MESSAGES[f"{section}: {name}"]) for name in mistakes)
            parts.append(f"## {section}\n\n| mistake | message |\n|---|---|\n{''.join(rows)}")
        parts.append(f"## Others\n\n| mistake | what it ends in | shown by |\n|---|---|---|\n{''.join(rest)}")
        PAGE.write_text("\n".join(parts))
    text = PAGE.read_text()
    assert text.startswith(INTRODUCTION)
    assert [line for line in rest if line not in text] == []
    rows = [line for line in text.splitlines() if line.startswith("| ") and not line.startswith("| mistake")]
    assert len(rows) == len(MISTAKES) + len(WITHOUT_MESSAGE)
    assert [test for _, test in WITHOUT_MESSAGE.values() if not (Path(__file__).parent / test).is_file()] == []
