"""A backup is one file that is whole or not there; a restored site is one that peers and auditors recognise."""

from __future__ import annotations

import contextlib
import hashlib
import io
import itertools
import json
import shutil
import signal
import sqlite3
import stat
import subprocess
import sys
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from fakes.cli import refused, run, run_json
from fakes.databases import edit
from fakes.sites import append_rows, committed
from peer.audit import verification
from peer.audit.backup import MANIFEST, PLACE, back_up, restore
from peer.audit.folder_check import check_folder
from peer.audit.folder_permissions import check_permissions
from peer.core.messages import ChainHead
from peer.core.roster import RoundKey, Sha256, SiteName
from peer.core.site_memory import REMEMBERED, recover
from peer.daemon import startup
from peer.errors import EXIT_CODES, LockedError, StateError, UsageError
from peer.files import SUM_SECRETS_FOLDER
from peer.lab.demo.local_federation import LocalFederation
from peer.site.config.site_folder import SiteFolder
from peer.site.membership.amendment import body_digest
from peer.site.membership.chain import Chain
from peer.site.membership.folder import MembershipFolder
from peer.site.records.journal import Journal
from peer.site.records.ledger import Ledger
from peer.site.sums.secret_files import SumSecretFiles

pytestmark = pytest.mark.e2e

STATE = "round-000002/train"
KILLED = """
import os, sys
from peer.audit import backup
from peer.cli import backup as commands, main
count = kill_at = 0
def dying(function):
    def call(*arguments, **keywords):
        global count
        count += 1
        if count == kill_at:
            os.kill(os.getpid(), 9)
        return function(*arguments, **keywords)
    return call
os.fsync, os.rename, os.replace = dying(os.fsync), dying(os.rename), dying(os.replace)
for line in sys.stdin:
    child = os.fork()
    if not child:
        kill_at, sys.stdout = int(line), sys.stderr
        main(sys.argv[1:])
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""
"""For each number n of its input, runs a command that kills itself before its n-th durable step."""


@pytest.fixture
def asia(books: Any) -> SiteFolder:
    """A site that committed two rounds and sent two artifacts."""
    for round in (1, 2):
        books.send("asia", "europe", round=round)
    commit(books, 2)
    return books.loopback.folder("asia")  # type: ignore[no-any-return]


def commit(books: Any, round: int) -> None:
    """Write a committed round, its published artifact and its checkpoint."""
    folder = books.loopback.folder("asia")
    digest = f"{round:064x}"
    artifact = {"kind": "model", "owner": "asia", "sha256": digest, "bytes": 3, "steps": 0, "spec": {}}
    state = f"round-{round:06d}/train"
    with contextlib.closing(books.journal("asia")) as journal:
        journal.append(*committed(round, state))
        journal.append("published", round, {"artifact": artifact})
    home = folder.generation(1)
    (home / "artifacts" / f"{digest}.safetensors").write_bytes(b"own")
    (home / "checkpoints" / state).mkdir(parents=True)
    (home / "checkpoints" / state / "record.json").write_text("{}")


def assert_starts(folder: SiteFolder) -> None:
    """The folder passes every check of a start."""
    check_permissions(folder)
    federation, _, own = startup.load(folder)
    check_folder(folder, federation, own)


def regenerations(folder: SiteFolder) -> list[tuple[int, str]]:
    with contextlib.closing(Journal(folder.generation(1) / "journal.db", read_only=True)) as journal:
        return [(body["generation"], body["reported_by"]) for _, _, body in journal.rows(("regenerated",))]


def test_a_lost_site_goes_on_from_its_backup_as_a_new_generation(
    enrolled: LocalFederation, asia: SiteFolder, tmp_path: Path
) -> None:
    file = tmp_path / "asia.tar"
    (asia.generation(1) / "artifacts" / f"{'ab' * 32}.safetensors").write_bytes(b"superseded")
    (asia.generation(1) / "statistics.json").write_text("{}")
    document = run_json("--home", enrolled.home, "backup", file, "--site", "asia", "--with-key")
    assert (document["round"], document["generation"], document["ledger_rows"]) == (2, 1, 4)
    assert (document["bytes"], document["private_key"]) == (file.stat().st_size, True)
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    shutil.rmtree(asia.path)
    document = run_json("--home", enrolled.home, "restore", file, "--site", "trial/asia")
    assert (document["round"], document["lost_rounds"], document["aside"]) == (2, None, None)
    assert document["generation"] > 1
    assert_starts(asia)
    home = asia.generation(1)
    assert [path.read_bytes() for path in (home / "artifacts").iterdir()] == [b"own"]
    assert (home / "checkpoints" / STATE / "record.json").read_text() == "{}"
    assert (home / "statistics.json").read_text() == "{}"
    assert regenerations(asia) == [(document["generation"], "asia")]
    text = run("--home", enrolled.home, "egress", "verify", "--site", "asia").stdout
    assert "the operator restored a backup on" in text
    assert "The ledger is whole." in text


def started_generation(folder: SiteFolder) -> int:
    """The generation that the daemon goes on as."""
    home = folder.generation(1)
    present = {Sha256(path.stem) for path in (home / "artifacts").iterdir()}
    with contextlib.closing(Journal(home / "journal.db", read_only=True)) as journal:
        return journal.fold(lambda rows: recover(rows, present=present), REMEMBERED).generation


def lose_artifact(folder: SiteFolder, round: int) -> None:
    (folder.generation(1) / "artifacts" / f"{round:064x}.safetensors").unlink()


def test_an_artifact_that_the_daemon_retires_during_the_backup_costs_no_generation(
    asia: SiteFolder, books: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    commit(books, 3)
    lose_artifact(asia, 2)
    rmtree, tries = shutil.rmtree, itertools.count()

    def retire(path: Path, **options: Any) -> None:
        """Before the second try, the journal says what the first one did not know."""
        if path.name == "asia" and next(tries) == 1:
            append_rows(asia, ("retired", 2, {"kept": None}))
        rmtree(path, **options)

    monkeypatch.setattr(shutil, "rmtree", retire)
    back_up(asia, tmp_path / "asia.tar", with_key=True)
    restored = restore(tmp_path / "asia.tar", tmp_path / "elsewhere")
    assert restored.generation == started_generation(restored.folder) == regenerations(restored.folder)[0][0]


def test_a_site_whose_published_artifact_is_lost_says_as_which_generation_it_goes_on(
    asia: SiteFolder, tmp_path: Path
) -> None:
    lose_artifact(asia, 2)
    back_up(asia, tmp_path / "asia.tar", with_key=True)
    restored = restore(tmp_path / "asia.tar", tmp_path / "elsewhere")
    assert restored.generation == started_generation(restored.folder) == regenerations(restored.folder)[0][0] + 1


def test_a_backup_that_two_machines_restore_gets_a_generation_of_its_own_on_each(
    asia: SiteFolder, tmp_path: Path
) -> None:
    """Else both would sign artifacts of one generation and round: a proof of equivocation."""
    file = tmp_path / "asia.tar"
    back_up(asia, file, with_key=True)
    generations = {restore(file, tmp_path / f"machine-{number}").generation for number in range(3)}
    assert len(generations) > 1
    assert min(generations) > 1


def test_a_restored_site_can_go_back_before_its_last_round(asia: SiteFolder, books: Any, tmp_path: Path) -> None:
    commit(books, 3)
    back_up(asia, tmp_path / "asia.tar", with_key=True)
    shutil.rmtree(asia.path)
    restore(tmp_path / "asia.tar", asia.home)
    kept = {path.parent.name for path in asia.generation(1).glob("checkpoints/*/train")}
    assert kept == {"round-000002", "round-000003"}


def test_a_restored_backup_is_visible_to_an_auditor_unless_the_newer_ledger_survived(
    enrolled: LocalFederation, asia: SiteFolder, books: Any, tmp_path: Path
) -> None:
    file, witness = tmp_path / "asia.tar", tmp_path / "witness.json"
    back_up(asia, file, with_key=True)
    for round in (3, 4):
        books.send("asia", "europe", round=round)
        commit(books, round)
    words = ("egress", "witness", "--site", "europe", "--of", "asia", "--out", witness)
    assert run("--home", enrolled.home, *words).exit_code == 0
    document = run_json("--home", enrolled.home, "restore", file, "--force")
    assert (document["lost_rounds"], document["ledger_kept"]) == ([3, 4], True)
    assert_starts(asia)
    assert verification.verify(asia, [witness])["problems"] == []

    shutil.rmtree(asia.path)
    assert run_json("--home", enrolled.home, "restore", file)["ledger_kept"] is False
    result = run("--home", enrolled.home, "egress", "verify", "--site", "asia", "--witness", witness)
    assert EXIT_CODES[result.exit_code].name == "LedgerBroken"
    assert "the tail was cut: a witness has seen 6 rows, here are 4" in result.stderr
    assert "the journal says that an older backup was restored on" in result.stderr


def test_a_ledger_that_does_not_continue_the_backup_s_is_not_kept(asia: SiteFolder, books: Any, tmp_path: Path) -> None:
    back_up(asia, tmp_path / "asia.tar", with_key=True)
    for path in asia.path.glob("egress.db*"):
        path.unlink()
    for round in range(1, 5):
        books.send("asia", "europe", round=round)
    assert not restore(tmp_path / "asia.tar", asia.home, force=True).ledger_kept
    assert verification.verify(asia)["rows"] == 4


def test_a_site_that_exists_is_moved_aside_only_by_force_and_never_while_it_runs(
    enrolled: LocalFederation, asia: SiteFolder, tmp_path: Path
) -> None:
    file = tmp_path / "asia.tar"
    back_up(asia, file)
    assert "--force to move it aside" in refused("StateError", "--home", enrolled.home, "restore", file)
    with asia.locked(), pytest.raises(LockedError):
        restore(file, asia.home, force=True)
    key = (asia.pki / "site.key").read_bytes()
    for number in asia.generations():
        SumSecretFiles(asia.generation(number) / SUM_SECRETS_FOLDER).draw(1)
    document = run_json("--home", enrolled.home, "restore", file, "--force")
    aside = Path(document["aside"])
    assert list(aside.glob("gen-*/journal.db"))
    assert not list(aside.glob("gen-*/sums")), "the secrets of its sums unmask what it sent"
    assert (aside / "pki" / "site.key").read_bytes() == key
    assert aside.name.startswith("asia.before-")
    assert document["private_key"], "the keys of the former folder are used"
    assert_starts(asia)
    assert run_json("--home", enrolled.home, "restore", file, "--force")["generation"] > 2, (
        "after every one that peers saw"
    )
    shutil.rmtree(asia.path)
    assert "those after round 2" in run("--home", enrolled.home, "restore", file).stdout


@pytest.mark.parametrize("with_key", [True, False])
def test_a_backup_has_the_chain_and_round_keys_only_with_the_key(
    asia: SiteFolder, tmp_path: Path, with_key: bool
) -> None:
    membership = MembershipFolder(asia.membership)
    membership.approve(1, b"the body that asia approved")
    membership.save_round_keys({Sha256("ab" * 32): RoundKey(bytes(32))})
    back_up(asia, tmp_path / "asia.tar", with_key=with_key)
    restored = MembershipFolder(restore(tmp_path / "asia.tar", tmp_path / "elsewhere").folder.membership)
    assert restored.approvals() == membership.approvals()
    assert restored.round_keys() == (membership.round_keys() if with_key else {})


def test_a_restored_backup_keeps_what_the_site_approved_since(asia: SiteFolder, tmp_path: Path) -> None:
    back_up(asia, tmp_path / "asia.tar", with_key=True)
    MembershipFolder(asia.membership).approve(1, b"the body that asia approved")
    restore(tmp_path / "asia.tar", asia.home, force=True)
    assert set(MembershipFolder(asia.membership).approvals()) == {1}


KEYS = {Sha256(digit * 64): RoundKey(bytes([int(digit)]) * 32) for digit in "12"}


def test_a_site_that_was_enrolled_anew_gets_back_what_it_approved(asia: SiteFolder, tmp_path: Path) -> None:
    membership = MembershipFolder(asia.membership)
    membership.approve(1, b"the body that asia approved")
    membership.approve(2, b"what it approved then")
    membership.save_round_keys(dict([*KEYS.items()][:1]))
    membership.accept(SiteName("europe"))
    back_up(asia, tmp_path / "asia.tar", with_key=True)
    shutil.rmtree(asia.membership)
    membership.save_joined(ChainHead(1, Sha256("ab" * 32)))
    membership.approve(2, b"what it approved later")
    membership.save_round_keys(dict([*KEYS.items()][1:]))
    restored = restore(tmp_path / "asia.tar", asia.home, force=True)
    assert restored.broken == ()
    digests = (b"the body that asia approved", b"what it approved later")
    assert membership.approvals() == {number: body_digest(body) for number, body in enumerate(digests, 1)}
    assert membership.round_keys() == KEYS
    assert membership.accepted() == {"europe"}
    assert membership.joined() == ChainHead(1, Sha256("ab" * 32))


def test_broken_files_of_the_former_folder_are_replaced_and_named(
    enrolled: LocalFederation, asia: SiteFolder, tmp_path: Path
) -> None:
    membership = MembershipFolder(asia.membership)
    membership.approve(1, b"the body that asia approved")
    membership.save_chain(Chain.of(enrolled.federation))
    back_up(asia, tmp_path / "asia.tar", with_key=True)
    membership.accept(SiteName("europe"))
    for name in ("chain.json", "approvals.json"):
        (asia.membership / name).write_text("garbage")
    document = run_json("--home", enrolled.home, "restore", tmp_path / "asia.tar", "--force")
    assert document["broken"] == ["chain.json", "approvals.json"]
    assert membership.approvals() == {1: body_digest(b"the body that asia approved")}
    assert membership.chain(enrolled.federation).links == ()
    assert membership.accepted() == {"europe"}
    (asia.membership / "approvals.json").write_text("garbage")
    shown = run("--home", enrolled.home, "restore", tmp_path / "asia.tar", "--force").stdout
    assert "approvals.json of the former folder cannot be read" in " ".join(shown.split())


def test_without_its_key_a_backup_has_no_secret_and_says_what_to_do(
    enrolled: LocalFederation, asia: SiteFolder, tmp_path: Path
) -> None:
    file, home = tmp_path / "asia.tar", tmp_path / "elsewhere"
    assert "is not in the file: see --with-key" in run("--home", enrolled.home, "backup", file, "--site", "asia").stdout
    with tarfile.open(file) as archive:
        names = archive.getnames()
    assert [name for name in names if name.startswith("pki/")] == ["pki/cert.pem", "pki/ca.pem"]
    assert names[-1] == MANIFEST
    text = run("--home", home, "restore", file).stdout
    assert "put site.key and round.key into its pki folder" in " ".join(text.split())
    for name in ("site.key", "round.key"):
        shutil.copy(asia.pki / name, home / "trial" / "asia" / "pki" / name)
    assert_starts(SiteFolder(home, "trial", asia.site))


@pytest.mark.parametrize(
    ("damage", "problem"),
    [
        (lambda content: content[:-20480], "its end is missing|has other content|unexpected end of data|bad checksum"),
        (lambda content: content[: len(content) // 3], "its end is missing|unexpected end of data"),
        (lambda content: b"", "empty file"),
        (lambda content: b"no backup" * 1000, "invalid header|truncated header|bad checksum"),
        (
            lambda content: content.replace(b"SQLite format 3", b"SQLite format 4"),
            "has other content than its manifest",
        ),
    ],
)
def test_a_damaged_backup_is_refused_and_changes_nothing(
    asia: SiteFolder, tmp_path: Path, damage: Callable[[bytes], bytes], problem: str
) -> None:
    file, home = tmp_path / "asia.tar", tmp_path / "elsewhere"
    back_up(asia, file)
    file.write_bytes(damage(file.read_bytes()))
    with pytest.raises(StateError, match=rf"asia\.tar is damaged, or no backup: .*({problem})"):
        restore(file, home)
    assert not list(home.glob("*/*"))


def test_the_secrets_of_sums_are_in_no_backup(asia: SiteFolder, tmp_path: Path) -> None:
    """With them, whoever gets the backup removes the masks of artifacts; without, the restored site takes no part."""
    secrets = SumSecretFiles(asia.generation(1) / SUM_SECRETS_FOLDER)
    secrets.draw(2)
    for with_key in (False, True):
        file = tmp_path / f"{with_key}.tar"
        back_up(asia, file, with_key=with_key)
        assert b"own_seed" not in file.read_bytes()
        with tarfile.open(file) as archive:
            assert not [name for name in archive.getnames() if SUM_SECRETS_FOLDER in Path(name).parts]
    assert not PLACE.fullmatch(str(secrets.folder.relative_to(asia.path) / "2.key"))


Members = list[tuple[tarfile.TarInfo, bytes]]


def rewrite(file: Path, change: Callable[[Members, dict[str, Any]], None]) -> None:
    """Change a backup's members, and its manifest, which is written last."""
    with tarfile.open(file) as archive:
        members = [(member, archive.extractfile(member).read()) for member in archive]  # type: ignore[union-attr]
    manifest = json.loads(members.pop()[1])
    change(members, manifest)
    content = json.dumps(manifest).encode()
    end = tarfile.TarInfo(MANIFEST)
    end.size = len(content)
    with tarfile.open(file, "w", format=tarfile.PAX_FORMAT) as archive:
        for member, body in [*members, (end, content)]:
            archive.addfile(member, io.BytesIO(body))


@pytest.mark.parametrize(
    "name",
    ["../../stolen", "/etc/stolen", "gen-0001/../x", "pki/other", "logs/daemon.log",
     "gen-0001/checkpoints/round-000001/train/.."],
)  # fmt: skip
def test_a_backup_writes_nowhere_but_in_its_site_s_folder(asia: SiteFolder, tmp_path: Path, name: str) -> None:
    def change(members: Members, manifest: dict[str, Any]) -> None:
        members[0][0].name = manifest["files"][0]["path"] = name

    file = tmp_path / "asia.tar"
    back_up(asia, file)
    rewrite(file, change)
    with pytest.raises(StateError, match="has no place in a site's folder"):
        restore(file, tmp_path / "elsewhere")


def link(members: Members, manifest: dict[str, Any]) -> None:
    members[0] = (tarfile.TarInfo(members[0][0].name), b"")
    members[0][0].type, members[0][0].linkname = tarfile.SYMTYPE, "/etc/passwd"
    manifest["files"][0]["bytes"] = 0


def double(members: Members, manifest: dict[str, Any]) -> None:
    members.append(members[0])
    manifest["files"].append(manifest["files"][0])


def sparse(members: Members, manifest: dict[str, Any]) -> None:
    members[0][0].pax_headers = {"GNU.sparse.major": "0", "GNU.sparse.minor": "1", "GNU.sparse.map": f"0,{1 << 40}"}
    members[0][0].pax_headers |= {"GNU.sparse.size": str(1 << 40), "GNU.sparse.name": members[0][0].name}
    manifest["files"][0]["bytes"] = 1 << 40


def far(members: Members, manifest: dict[str, Any]) -> None:
    manifest["generation"] = 10**30


def trigger(members: Members, manifest: dict[str, Any]) -> None:
    index = next(index for index, (member, _) in enumerate(members) if member.name.endswith("journal.db"))
    header, body = members[index][1][:18], members[index][1][20:]
    database = sqlite3.connect(":memory:")
    database.deserialize(header + b"\x01\x01" + body)  # no write-ahead log, which memory cannot have
    database.execute("CREATE TRIGGER spy AFTER INSERT ON row BEGIN DELETE FROM row; END")
    members[index] = (members[index][0], database.serialize())
    members[index][0].size = manifest["files"][index]["bytes"] = len(members[index][1])
    manifest["files"][index]["sha256"] = hashlib.sha256(members[index][1]).hexdigest()


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (link, "is no regular file, or has gaps"),
        (double, "its files are not those of its manifest"),
        (sparse, "is no regular file, or has gaps"),
        (far, "its manifest.json: Input should be less than or equal to 1000000"),
        (trigger, "journal.db has triggers or views"),
    ],
)
def test_a_backup_of_odd_members_is_refused_before_it_takes_the_disk(
    asia: SiteFolder, tmp_path: Path, change: Callable[[Members, dict[str, Any]], None], reason: str
) -> None:
    file, home = tmp_path / "asia.tar", tmp_path / "elsewhere"
    back_up(asia, file)
    rewrite(file, change)
    with pytest.raises(StateError, match=reason):
        restore(file, home)
    assert not list(home.glob("*/*"))


def test_what_does_not_fit_is_refused(enrolled: LocalFederation, asia: SiteFolder, tmp_path: Path) -> None:
    file = tmp_path / "asia.tar"
    back_up(asia, file)
    with pytest.raises(StateError, match=r"asia\.tar exists"):
        back_up(asia, file)
    with pytest.raises(UsageError, match="is a backup of trial/asia, not of europe"):
        restore(file, tmp_path / "elsewhere", "europe")
    with pytest.raises(UsageError, match=r"nowhere\.tar does not exist"):
        restore(tmp_path / "nowhere.tar", tmp_path / "elsewhere")
    edit(asia.generation(1) / "journal.db", "UPDATE row SET round = 9 WHERE seq = 1")
    assert "row 1 was changed" in refused(
        "StateError", "--home", enrolled.home, "backup", "--out", tmp_path / "b", "--site", "asia"
    )
    for words in ((), (tmp_path / "b", "--out", tmp_path / "b")):
        assert "name it once, with --out FILE" in refused("UsageError", "backup", *words, "--site", "asia")
    assert [path.name for path in tmp_path.iterdir() if "asia.tar" in path.name or path.name == "b"] == ["asia.tar"]


def test_a_site_that_never_ran_can_be_backed_up(enrolled: LocalFederation, tmp_path: Path) -> None:
    europe = enrolled.folder("europe")
    assert back_up(europe, tmp_path / "europe.tar", with_key=True).generation == 0
    shutil.rmtree(europe.path)
    assert restore(tmp_path / "europe.tar", enrolled.home).generation == 0
    assert_starts(europe)


def test_the_copies_of_journal_and_ledger_are_of_one_moment(asia: SiteFolder, tmp_path: Path) -> None:
    """A writer adds to the ledger, then tells the journal, as fast as it can."""
    writer = subprocess.Popen(
        [sys.executable, "-c", WRITER, str(asia.generation(1) / "journal.db"), str(asia.egress_db)],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert writer.stdout is not None
    try:
        for number in range(8):
            assert writer.stdout.readline()
            file = tmp_path / f"{number}.tar"
            back_up(asia, file, with_key=True)
            restored = restore(file, tmp_path / f"home-{number}").folder
            with contextlib.closing(Ledger(restored.egress_db, read_only=True)) as ledger:
                head = ledger.head.count
            with contextlib.closing(Journal(restored.generation(1) / "journal.db", read_only=True)) as journal:
                told = max(body["reason"] for _, _, body in journal.rows(("refused",)))
            assert int(told) in (head, head - 1)
    finally:
        writer.kill()
        writer.communicate()


WRITER = """
import sys
from pathlib import Path
from peer.site.records.journal import Journal
from peer.site.records.ledger import Ledger
journal, ledger = Journal(Path(sys.argv[1])), Ledger(Path(sys.argv[2]))
while True:
    facts = {"peer": "europe", "purpose": "train", "kind": "model", "round": 2, "generation": 1, "bytes": 1}
    row = ledger.intend(sha256="ab" * 32, **facts)
    journal.append("refused", 2, {"origin": "europe", "reason": f"{row:09d}"})
    print(row, flush=True)
"""


def run_until_it_survives(words: list[str], after_each_kill: Callable[[], None]) -> int:
    """Run the command again and again, killed before a later durable step each time."""
    command = [sys.executable, "-c", KILLED, *words]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as runner:
        assert runner.stdin is not None
        assert runner.stdout is not None
        for kill_at in range(1, 200):
            print(kill_at, file=runner.stdin, flush=True)
            code = int(runner.stdout.readline())
            if code != -signal.SIGKILL:
                assert code == 0
                runner.stdin.close()
                return kill_at
            after_each_kill()
    raise AssertionError("it never ended")


def test_a_killed_backup_leaves_no_file_and_a_killed_restoration_no_half_site(
    enrolled: LocalFederation, asia: SiteFolder, tmp_path: Path
) -> None:
    file, home = tmp_path / "asia.tar", tmp_path / "elsewhere"

    def no_half_file() -> None:
        if file.exists():  # killed after the last step that matters
            shutil.rmtree(home, ignore_errors=True)
            restore(file, home)
            shutil.rmtree(home)
            file.unlink()

    words = ["--home", str(enrolled.home), "backup", str(file), "--site", "asia", "--with-key"]
    assert run_until_it_survives(words, no_half_file) > 2
    assert [path.name for path in tmp_path.iterdir() if "asia.tar" in path.name] == ["asia.tar"]

    def no_half_site() -> None:
        folder = SiteFolder(home, "trial", asia.site)
        if folder.path.exists():
            assert_starts(folder)
            shutil.rmtree(folder.path)

    assert run_until_it_survives(["--home", str(home), "restore", str(file)], no_half_site) > 5
    assert_starts(SiteFolder(home, "trial", asia.site))
    assert not list(home.glob(".unfinished*"))


def test_a_restoration_killed_between_the_two_renames_can_be_repeated(asia: SiteFolder, tmp_path: Path) -> None:
    file = tmp_path / "asia.tar"
    back_up(asia, file)
    words = ["--home", str(asia.home), "restore", str(file), "--force"]

    def something_is_whole() -> None:
        folders = [path for path in asia.path.parent.iterdir() if path.name.startswith("asia")]
        assert any((path / "pki" / "site.key").exists() for path in folders)
        if not asia.path.exists():
            (aside,) = folders
            aside.rename(asia.path)
        for path in asia.path.parent.glob("asia.before-*"):
            shutil.rmtree(path)

    run_until_it_survives(words, something_is_whole)
    assert_starts(asia)
