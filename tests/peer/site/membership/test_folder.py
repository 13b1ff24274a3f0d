"""What a site keeps of the chain: it survives a restart, and a file of another form is never overwritten."""

import json
from pathlib import Path

import pytest

from peer.core.limits import FORKS_KEPT_MAX
from peer.core.messages import ChainHead
from peer.core.roster import SiteName
from peer.errors import CertificateError, MembershipError, StateError
from peer.site.membership.folder import CHAIN_FILE, FILES, KEYS_FILE, MembershipFolder, amendment_from_json
from peer.site.membership.forks import Fork
from peer.site.membership.round_keys import amendment_tag
from tests.fakes.chains import AmendedFederation, newcomer, round_key, tampered

FEDERATION = AmendedFederation("africa", "asia", "europe")
CHAIN = FEDERATION.extend(FEDERATION.extend(FEDERATION.chain(), add=(newcomer("america"),)), settings={"rounds": 200})


@pytest.fixture
def folder(tmp_path: Path) -> MembershipFolder:
    return MembershipFolder(tmp_path / "membership")


def test_a_site_without_a_file_has_the_genesis(folder: MembershipFolder) -> None:
    chain = folder.chain(FEDERATION.config)
    assert (chain.head.number, folder.forks(chain), folder.notices(), folder.approvals()) == (0, (), (), {})
    assert (folder.accepted(), folder.round_keys()) == (frozenset(), {})
    assert not folder.path.exists()


def test_a_chain_is_read_back(folder: MembershipFolder) -> None:
    folder.save_chain(CHAIN)
    assert folder.chain(FEDERATION.config) == CHAIN


def test_newcomers_are_those_of_the_chain_and_a_site_whose_bundle_says_so(folder: MembershipFolder) -> None:
    own, config = SiteName("oceania"), FEDERATION.config
    assert folder.newcomers(config, own) == frozenset()
    folder.save_chain(CHAIN)
    assert folder.newcomers(config, own) == {"america"}
    folder.save_joined(ChainHead(3, CHAIN.head.digest))
    assert folder.newcomers(config, own) == {"america", own}


def test_a_chain_that_was_changed_is_refused(folder: MembershipFolder) -> None:
    folder.save_chain(CHAIN)
    path = folder.path / CHAIN_FILE
    document = json.loads(path.read_bytes())
    document["amendments"][1]["body"] = tampered(CHAIN.links[1].signed).body.decode()
    path.write_text(json.dumps(document))
    with pytest.raises(StateError, match=r"chain.json cannot be used: amendment 2 is not signed by the founder"):
        folder.chain(FEDERATION.config)


@pytest.mark.parametrize("name", FILES)
def test_a_file_of_a_later_version_is_refused(folder: MembershipFolder, name: str) -> None:
    folder.path.mkdir()
    (folder.path / name).write_text(f'{{"{FILES[name]}": 2}}')
    (folder.path / name).chmod(0o600)
    read = {
        "chain.json": lambda: folder.chain(FEDERATION.config),
        "forks.json": lambda: folder.forks(CHAIN),
        "notices.json": folder.notices,
        "approvals.json": folder.approvals,
        "accepted.json": folder.accepted,
        "round_keys.json": folder.round_keys,
        "joined.json": folder.joined,
    }
    with pytest.raises(StateError, match="another form than version 1") as refused:
        read[name]()
    assert "update mhfl-peer" in refused.value.remedy


@pytest.mark.parametrize(
    "content", ["", "[]", '{"mhfl_chain": 1, "amendments": 3}', '{"mhfl_chain": 1, "amendments": [3]}']
)
def test_a_broken_file_is_refused(folder: MembershipFolder, content: str) -> None:
    folder.path.mkdir()
    (folder.path / CHAIN_FILE).write_text(content)
    (folder.path / CHAIN_FILE).chmod(0o600)
    with pytest.raises(StateError, match=r"chain\.json"):
        folder.chain(FEDERATION.config)


def test_a_second_digest_is_approved_only_instead(folder: MembershipFolder) -> None:
    folder.approve(3, b"one")
    folder.approve(3, b"one")
    with pytest.raises(MembershipError, match=r"has approved another amendment 3.*--instead"):
        folder.approve(3, b"two")
    assert folder.approvals()[3].startswith("7692c3")
    folder.approve(3, b"two", instead=True)
    folder.approve(10, b"one")
    assert {number: digest[:6] for number, digest in folder.approvals().items()} == {3: "3fc4cc", 10: "7692c3"}


def test_a_proof_of_a_fork_is_kept_once(folder: MembershipFolder) -> None:
    other = FEDERATION.extend(CHAIN.until(1), settings={"rounds": 300}).links[1].signed
    fork = Fork(2, CHAIN.links[1].signed, other, ("the founder",))
    assert folder.save_fork(fork, kept=fork.own)
    assert not folder.save_fork(fork, kept=fork.own)
    assert folder.forks(CHAIN) == (fork,)
    switched = CHAIN.until(1).extended(other)
    assert folder.forks(switched) == ()
    assert folder.save_fork(fork, kept=fork.other)
    assert folder.forks(switched) == (Fork(2, other, fork.own, ("the founder",)),)


def test_so_many_proofs_are_kept(folder: MembershipFolder) -> None:
    for rounds in range(FORKS_KEPT_MAX + 2):
        other = FEDERATION.extend(CHAIN.until(1), settings={"rounds": 300 + rounds}).links[1].signed
        folder.save_fork(Fork(2, CHAIN.links[1].signed, other, ()), kept=CHAIN.links[1].signed)
    assert len(folder.forks(CHAIN)) == FORKS_KEPT_MAX


def test_notices_and_newcomers_are_read_back(folder: MembershipFolder) -> None:
    notices = (FEDERATION.notice("asia"), FEDERATION.notice("europe"))
    folder.save_notices(notices)
    folder.accept(SiteName("america"))
    folder.accept(SiteName("antarctica"))
    assert folder.notices() == notices
    assert folder.accepted() == {"america", "antarctica"}


def test_round_keys_are_kept_secret(folder: MembershipFolder) -> None:
    keys = {amendment_tag(round_key(seed), FEDERATION.config.digest): round_key(seed) for seed in (1, 2)}
    for tag, key in keys.items():
        folder.save_round_keys({tag: key})
    assert folder.round_keys() == keys
    path = folder.path / KEYS_FILE
    assert path.stat().st_mode & 0o777 == 0o600
    path.chmod(0o644)
    with pytest.raises(CertificateError, match="others can read"):
        folder.round_keys()


def test_an_entry_of_another_form_is_refused() -> None:
    for entry in (3, {}, {"body": "{}"}, {"body": "{}", "by": [{"certificate_der": "!", "signature": ""}]}):
        with pytest.raises(ValueError, match="body and signatures"):
            amendment_from_json(entry)


def test_of_a_backup_and_the_folder_that_it_replaces_the_longer_chain_is_kept(tmp_path: Path) -> None:
    one, notice = CHAIN.until(1), FEDERATION.notice("europe")
    for number, (backup, former) in enumerate([(one, CHAIN), (CHAIN, one)]):
        restored = MembershipFolder(tmp_path / f"backup-{number}")
        replaced = MembershipFolder(tmp_path / f"former-{number}")
        restored.save_chain(backup)
        replaced.save_chain(former)
        restored.save_notices([FEDERATION.notice("asia"), notice])
        replaced.save_notices([notice])
        assert restored.take_over(replaced, FEDERATION.config) == ()
        assert restored.chain(FEDERATION.config).head.number == 2
        assert len(restored.notices()) == 2
