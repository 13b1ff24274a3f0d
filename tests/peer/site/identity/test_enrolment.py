"""From a draft to a joined site, and everything that is refused on the way."""

import json
import os
import stat
import tomllib
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.x509.oid import NameOID

from peer.core.roster import SiteName, federation_digest
from peer.errors import BundleError, CertificateError, ConfigError, DiskError, FederationMismatch, PeerError, StateError
from peer.site.config.schema import FederationConfig
from peer.site.config.site_folder import SiteFolder
from peer.site.identity import certificates, enrolment
from peer.site.identity.bundle import Bundle, seal
from peer.site.identity.certificates import Identity, fingerprint, key_pem, new_key, signing_request
from peer.site.identity.enrolment import Authority, EnrolmentRequest

NOW = datetime(2026, 7, 1, 12, tzinfo=UTC)
DRAFT = """\
# a comment that stays
name = "trial"
rounds = 3

[task]
kind = "classification"
spatial_dims = 3
in_channels = 1
classes = 2

[method]
name = "fedskd"

[[site]]
name = "europe"
address = "a.example:1"

[[site]]
name = "asia"
"""


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority.create(tmp_path / "ca", DRAFT, "draft.toml", now=NOW)


@pytest.fixture
def folder(tmp_path: Path) -> SiteFolder:
    return SiteFolder(tmp_path / "home", "trial", SiteName("europe"))


def make_request(folder: SiteFolder, authority: Authority, **options: Any) -> EnrolmentRequest:
    return enrolment.request(folder, authority.federation, authority.federation_toml, now=NOW, **options)


def admit(authority: Authority, request: EnrolmentRequest, **options: Any) -> Bundle:
    outcome = authority.admit(request.pem, fingerprint=request.fingerprint, **{"now": NOW, **options})
    return Bundle.decode(outcome.bundle)


def forge(key: Any) -> EnrolmentRequest:
    return EnrolmentRequest(signing_request(key, SiteName("europe")), fingerprint(key.public_key()), "new")


def own_key(folder: SiteFolder) -> Any:
    return certificates.read_key(folder.pki / "site.key")


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def refused(kind: type[PeerError], message: str) -> Any:
    return pytest.raises(kind, match=message)


def test_federation_is_founded(authority: Authority, tmp_path: Path) -> None:
    folder = tmp_path / "ca"
    assert {path.name: mode(path) for path in folder.iterdir()} == {
        "ca.key": 0o600, "ca.pem": 0o644, "round.key": 0o600, "federation.toml": 0o644, "admitted.json": 0o600,
    }  # fmt: skip
    assert mode(folder) == 0o700
    assert DRAFT in authority.federation_toml
    assert authority.federation.ca_certificate == (folder / "ca.pem").read_text()
    assert len(bytes.fromhex((folder / "round.key").read_text())) == 32
    assert authority.admissions() == {}
    assert os.listdir(tmp_path) == ["ca"]
    added = {
        "ca_certificate": (folder / "ca.pem").read_text(),
        "image_axes": "rows_columns",
        "stages": {"train": {"count": 10}},
    }
    pinned = {**tomllib.loads(DRAFT), **added}
    assert authority.federation.digest == federation_digest(pinned)


def test_pictures_have_rows_first_and_no_draft_can_say_otherwise(tmp_path: Path) -> None:
    authority = Authority.create(tmp_path / "ca", f'image_axes = "rows_columns"\n{DRAFT}', "draft.toml", now=NOW)
    assert authority.federation.image_axes == "rows_columns"
    with pytest.raises(ConfigError, match="image_axes"):
        FederationConfig.parse(f'image_axes = "columns_rows"\n{DRAFT}', "draft.toml")


STEPS = "5 steps for each of the 2 sites, as in FedSKD, arXiv 2503.18981."


@pytest.mark.parametrize(
    ("stages", "count", "line"),
    [
        ("", 10, f"[stages.train]\ncount = 10 # {STEPS}\n"),
        ("[stages.train]\nlearning_rate = 1e-3 # ours\n", 10, f"1e-3 # ours\ncount = 10 # {STEPS}\n"),
        ("[stages]\ntrain = {decay = 0.9}\n", 10, "train = {decay = 0.9,count = 10}"),
        ("[stages.train]\ncount = 7\n", 7, "[stages.train]\ncount = 7\n"),
        ('[stages.train]\nunit = "epoch"\n', 20, 'unit = "epoch"\n'),
    ],
)
def test_fedskd_gets_the_papers_steps_for_so_many_sites(tmp_path: Path, stages: str, count: int, line: str) -> None:
    draft = DRAFT.replace("[[site]]", f"{stages}\n[[site]]", 1)
    authority = Authority.create(tmp_path / "ca", draft, "draft.toml", now=NOW)
    assert authority.federation.work("train").count == count
    assert line in authority.federation_toml
    assert authority.federation_toml.count("[[site]]") == 2
    assert authority.federation.derived_counts == {}


def test_no_count_is_added_where_the_paper_has_none(tmp_path: Path) -> None:
    draft = DRAFT.replace("fedskd", "fedvisit_twin")
    authority = Authority.create(tmp_path / "ca", draft, "draft.toml", now=NOW)
    assert authority.federation_toml.endswith(f"\n{draft}")


@pytest.mark.parametrize(
    ("stages", "rates", "line"),
    [
        ("", (6e-3, 0.3162), "[stages.train]\nlearning_rate = 0.006\ndecay = 0.3162\n"),
        ("[stages.train]\ncount = 7\n", (6e-3, 0.3162), "count = 7\nlearning_rate = 0.006\ndecay = 0.3162\n"),
        ("[stages.train]\ndecay = 1\nlearning_rate = 5e-4\n", (5e-4, 1), "decay = 1\nlearning_rate = 5e-4\n"),
    ],
)
def test_a_new_federation_names_what_had_another_default_and_one_without_keeps_it(
    tmp_path: Path, stages: str, rates: tuple[float, float], line: str
) -> None:
    draft = DRAFT.replace('"fedskd"', '"fedvisit"\nvisits = 1').replace("[[site]]", f"{stages}\n[[site]]", 1)
    authority = Authority.create(tmp_path / "ca", draft, "draft.toml", now=NOW)
    assert 'name = "fedvisit"\nvisits = 1\nmerge_weight = 1.0\n' in authority.federation_toml
    assert line in authority.federation_toml
    work = authority.federation.work("train")
    assert (work.learning_rate, work.decay) == rates
    before = "".join(
        each
        for each in authority.federation_toml.splitlines(keepends=True)
        if not each.startswith(("visits", "merge_weight", "learning_rate", "decay"))
    )
    founded = FederationConfig.parse(before, "federation.toml")
    assert (founded.parameters["visits"], founded.parameters["merge_weight"]) == (2, 0.5)
    assert (founded.work("train").learning_rate, founded.work("train").decay) == (1e-3, 1.0)


def test_a_draft_with_an_address_that_nobody_can_dial_is_refused(tmp_path: Path) -> None:
    draft = f'{DRAFT}\n[[site]]\nname = "mars"\naddress = "0.0.0.0:7443"\n'
    with pytest.raises(ConfigError, match=r"draft.toml: site \w+: address: '0.0.0.0:7443' is no address to dial"):
        Authority.create(tmp_path / "ca", draft, "draft.toml", now=NOW)


def test_two_federations_of_one_draft_are_two(tmp_path: Path) -> None:
    first, second = (Authority.create(tmp_path / name, DRAFT, "draft", now=NOW) for name in ("a", "b"))
    assert first.federation.digest != second.federation.digest
    assert first.round_key != second.round_key


def test_authority_does_not_show_its_secrets(authority: Authority) -> None:
    assert repr(authority.round_key) not in repr(authority)
    assert "PrivateKey" not in repr(authority)


def test_founding_overwrites_nothing(authority: Authority, tmp_path: Path) -> None:
    before = contents(tmp_path / "ca")
    with refused(StateError, r"ca exists and is not an empty folder; name another folder with --out"):
        Authority.create(tmp_path / "ca", DRAFT, "draft", now=NOW)
    assert contents(tmp_path / "ca") == before
    (tmp_path / "file").touch()
    with refused(StateError, r"file exists and is not an empty folder"):
        Authority.create(tmp_path / "file", DRAFT, "draft", now=NOW)
    with refused(StateError, r"final has a ca_certificate already; remove that key"):
        Authority.create(tmp_path / "again", authority.federation_toml, "final", now=NOW)
    with refused(ConfigError, r"draft: rounds is missing"):
        Authority.create(tmp_path / "again", DRAFT.replace("rounds = 3", ""), "draft", now=NOW)
    (tmp_path / "empty").mkdir()
    Authority.create(tmp_path / "empty", DRAFT, "draft", now=NOW)
    assert sorted(os.listdir(tmp_path)) == ["ca", "empty", "file"]


def test_founding_that_fails_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with refused(DiskError, "file is not a folder"):
        Authority.create(tmp_path / "file" / "ca", DRAFT, "draft", now=NOW)
    with refused(DiskError, "cannot be made: File name too long"):
        Authority.create(tmp_path / ("x" * 250), DRAFT, "draft", now=NOW)
    assert os.listdir(tmp_path) == ["file"]


def test_ca_folder_is_checked_when_it_is_opened(authority: Authority, tmp_path: Path) -> None:
    folder = tmp_path / "ca"
    assert Authority.load(folder, now=NOW).federation.digest == authority.federation.digest
    with refused(CertificateError, "the CA's certificate in .* expired on .*; found the federation anew"):
        Authority.load(folder, now=NOW + timedelta(days=3651))
    (folder / "ca.key").chmod(0o644)
    with refused(CertificateError, r"ca.key is a secret that others can read"):
        Authority.load(folder, now=NOW)
    (folder / "ca.key").chmod(0o600)
    (folder / "ca.key").write_bytes(key_pem(new_key()))
    with refused(CertificateError, r"ca.key is not the CA's key in .*federation.toml"):
        Authority.load(folder, now=NOW)
    (folder / "federation.toml").write_text(DRAFT)
    with refused(CertificateError, "it is a draft"):
        Authority.load(folder, now=NOW)


def test_site_prepares_itself(authority: Authority, folder: SiteFolder) -> None:
    request = make_request(folder, authority)
    assert request.key == "new"
    assert folder.federation_toml.read_text() == authority.federation_toml
    assert [mode(path) for path in (folder.home, folder.path, folder.pki)] == [0o700] * 3
    assert mode(folder.pki / "site.key") == 0o600
    assert os.listdir(folder.pki) == ["site.key"]
    name, key = certificates.read_request(request.pem)
    assert (name, fingerprint(key)) == ("europe", request.fingerprint)


def test_key_is_never_overwritten(authority: Authority, folder: SiteFolder) -> None:
    first = make_request(folder, authority)
    key = (folder.pki / "site.key").read_bytes()
    again = make_request(folder, authority)
    assert (again.key, again.fingerprint) == ("kept", first.fingerprint)
    renewed = make_request(folder, authority, renew=True)
    assert renewed.key == "renewed"
    assert renewed.fingerprint != first.fingerprint
    pending = make_request(folder, authority, renew=True)
    assert (pending.key, pending.fingerprint) == ("kept", renewed.fingerprint)
    assert (folder.pki / "site.key").read_bytes() == key
    assert make_request(folder, authority).fingerprint == first.fingerprint


def test_renewal_of_nothing_is_a_first_key(authority: Authority, folder: SiteFolder) -> None:
    assert make_request(folder, authority, renew=True).key == "new"
    assert os.listdir(folder.pki) == ["site.key"]


def test_site_of_another_name_file_or_time_is_not_prepared(authority: Authority, tmp_path: Path) -> None:
    stranger = SiteFolder(tmp_path / "home", "trial", SiteName("europa"))
    with refused(ConfigError, r"does not name 'europa' \(did you mean 'europe'\?\)"):
        make_request(stranger, authority)
    europe = SiteFolder(tmp_path / "home", "trial", SiteName("europe"))
    with refused(CertificateError, "the CA's certificate expired"):
        enrolment.request(europe, authority.federation, authority.federation_toml, now=NOW + timedelta(days=3651))
    assert not (tmp_path / "home").exists()


def test_folder_stays_with_its_federation(authority: Authority, folder: SiteFolder) -> None:
    make_request(folder, authority)
    before = folder.federation_toml.read_bytes()
    for text, difference in (
        (authority.federation_toml.replace("rounds = 3", "rounds = 4"), "rounds is 3 here and 4 there"),
        (authority.federation_toml.replace("rounds = 3", "rounds = 3\nseed = 1"), "seed is None here and 1 there"),
        (authority.federation_toml.replace("classes = 2", "classes = 5"), r"task.classes is 2 here and 5 there"),
    ):
        with refused(FederationMismatch, f"federation.toml is of another federation: {difference}; get the founder's"):
            enrolment.request(folder, FederationConfig.parse(text, "new"), text, now=NOW)
    assert folder.federation_toml.read_bytes() == before


def test_moved_addresses_are_taken_over(authority: Authority, folder: SiteFolder) -> None:
    make_request(folder, authority)
    moved = authority.federation_toml.replace("a.example:1", "b.example:2")
    enrolment.request(folder, FederationConfig.parse(moved, "moved"), moved, now=NOW)
    assert folder.federation_toml.read_text() == moved


def test_site_joins(authority: Authority, folder: SiteFolder) -> None:
    request = make_request(folder, authority)
    own = enrolment.join(folder, admit(authority, request), now=NOW)
    assert own.round_key == authority.round_key
    assert own.ca == authority.certificate
    assert fingerprint(own.key.public_key()) == request.fingerprint
    assert {path.name: mode(path) for path in folder.pki.iterdir()} == {
        "site.key": 0o600, "round.key": 0o600, "cert.pem": 0o644, "ca.pem": 0o644,
    }  # fmt: skip
    loaded = Identity.load(folder.pki, name=folder.site, ca_certificate=authority.federation.ca_certificate, now=NOW)
    assert loaded.certificate == own.certificate


def test_admission_is_remembered(authority: Authority, folder: SiteFolder) -> None:
    request = make_request(folder, authority)
    outcome = authority.admit(request.pem, fingerprint=request.fingerprint, now=NOW, days=30)
    certificate = x509.load_pem_x509_certificate(Bundle.decode(outcome.bundle).certificate.encode())
    assert (outcome.site, outcome.renewal, outcome.replaced) == ("europe", False, ())
    assert Authority.load(authority.folder, now=NOW).admissions() == {"europe": (outcome.admission,)}
    assert outcome.admission.fingerprint == request.fingerprint
    assert outcome.admission.certificate_sha256 == certificate.fingerprint(hashes.SHA256()).hex()
    assert outcome.admission.not_after == "2026-07-31T12:00:00+00:00"


@pytest.mark.parametrize("spelling", [str.upper, lambda text: text.replace(":", ""), lambda text: f" {text}\n"])
def test_fingerprints_in_any_spelling(authority: Authority, folder: SiteFolder, spelling: Any) -> None:
    request = make_request(folder, authority)
    authority.admit(request.pem, fingerprint=spelling(request.fingerprint), now=NOW)


def test_wrong_fingerprint_admits_nobody(authority: Authority, folder: SiteFolder) -> None:
    request = make_request(folder, authority)
    for wrong in ("", request.fingerprint[:-1], fingerprint(new_key().public_key())):
        with refused(BundleError, f"europe has the fingerprint {request.fingerprint}, not the one given; compare"):
            authority.admit(request.pem, fingerprint=wrong, now=NOW)
    assert authority.admissions() == {}


def test_only_the_roster_gives_names(authority: Authority) -> None:
    key = new_key()
    with refused(BundleError, r"names 'europa', which the roster does not \(did you mean 'europe'\?\)"):
        authority.admit(signing_request(key, SiteName("europa")), fingerprint=fingerprint(key.public_key()), now=NOW)
    with refused(BundleError, "the signing request is refused: it is no certificate signing request"):
        authority.admit(b"text", fingerprint="", now=NOW)


def test_extensions_of_a_request_are_ignored(authority: Authority) -> None:
    """A request for another site's name in its SAN, for a CA, for all usages: none of it gets into the certificate."""
    key = new_key()
    builder = x509.CertificateSigningRequestBuilder(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "europe")]))
    for extension in (
        x509.SubjectAlternativeName([x509.DNSName("asia"), x509.DNSName("*")]),
        x509.BasicConstraints(ca=True, path_length=None),
        x509.ExtendedKeyUsage([x509.ExtendedKeyUsageOID.ANY_EXTENDED_KEY_USAGE]),
    ):
        builder = builder.add_extension(extension, critical=True)
    greedy = builder.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)
    outcome = authority.admit(greedy, fingerprint=fingerprint(key.public_key()), now=NOW)
    certificate = x509.load_pem_x509_certificate(Bundle.decode(outcome.bundle).certificate.encode())
    der = certificates.certificate_der(certificate)
    assert certificates.verify_certificate(der, authority.certificate, "europe", NOW) == certificate
    assert not certificate.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
    assert {type(extension.value) for extension in certificate.extensions} == {
        x509.BasicConstraints, x509.KeyUsage, x509.ExtendedKeyUsage, x509.SubjectAlternativeName,
        x509.SubjectKeyIdentifier, x509.AuthorityKeyIdentifier,
    }  # fmt: skip


def test_same_key_again_is_a_renewal(authority: Authority, folder: SiteFolder) -> None:
    request = make_request(folder, authority)
    enrolment.join(folder, admit(authority, request), now=NOW)
    later = NOW + timedelta(days=300)
    outcome = authority.admit(make_request(folder, authority).pem, fingerprint=request.fingerprint, now=later)
    assert (outcome.renewal, outcome.replaced) == (True, ())
    own = enrolment.join(folder, Bundle.decode(outcome.bundle), now=later)
    assert certificates.certificate_days(own.certificate, later) == 365
    assert len(authority.admissions()["europe"]) == 2


def test_second_key_needs_replace_and_names_what_to_refuse(authority: Authority, folder: SiteFolder) -> None:
    first = make_request(folder, authority)
    enrolment.join(folder, admit(authority, first), now=NOW)
    second = make_request(folder, authority, renew=True)
    with refused(BundleError, f"europe was admitted with another key .{first.fingerprint}.; .*--replace"):
        admit(authority, second)
    short = authority.admit(first.pem, fingerprint=first.fingerprint, now=NOW, days=1)
    later = NOW + timedelta(days=2)
    outcome = authority.admit(second.pem, fingerprint=second.fingerprint, now=later, replace=True)
    digests = [admission.certificate_sha256 for admission in authority.admissions()["europe"]]
    assert outcome.renewal is False
    assert outcome.replaced == (digests[0],), "the expired one needs no refusal"
    assert short.admission.certificate_sha256 == digests[1]
    own = enrolment.join(folder, Bundle.decode(outcome.bundle), now=later)
    assert fingerprint(own.key.public_key()) == second.fingerprint
    assert sorted(os.listdir(folder.pki)) == ["ca.pem", "cert.pem", "round.key", "site.key"]
    with refused(BundleError, "was admitted with another key"):
        admit(authority, first)


def test_one_key_is_one_site(authority: Authority, folder: SiteFolder) -> None:
    admit(authority, make_request(folder, authority))
    key = certificates.read_key(folder.pki / "site.key")
    with refused(BundleError, "the key in the request of asia is that of europe"):
        authority.admit(signing_request(key, SiteName("asia")), fingerprint=fingerprint(key.public_key()), now=NOW)


def test_damaged_record_stops_the_founder(authority: Authority, folder: SiteFolder) -> None:
    request = make_request(folder, authority)
    for damaged in ("", "[]", '{"europe": [{"key": "x"}]}', '{"europe": 3}'):
        (authority.folder / "admitted.json").write_text(damaged)
        with refused(StateError, r"admitted.json cannot be read"):
            admit(authority, request)


def test_bundles_that_are_refused_change_nothing(authority: Authority, folder: SiteFolder, tmp_path: Path) -> None:
    good = admit(authority, make_request(folder, authority))
    rogue = Authority.create(tmp_path / "rogue", DRAFT, "draft", now=NOW)
    europe, asia = folder, SiteFolder(folder.home, "trial", SiteName("asia"))
    theirs = admit(authority, make_request(asia, authority))
    other_key = admit(authority, forge(new_key()), replace=True)
    digest = authority.federation.digest
    key = own_key(europe).public_key()
    foreign = certificates.issue(rogue.key, rogue.certificate, name=europe.site, public_key=key, now=NOW)
    pem = certificates.certificate_pem(foreign).decode()
    sealed = seal(authority.round_key, own_key(asia).public_key(), digest=digest, site=europe.site)
    before = contents(europe.pki)

    def signed(**changes: str) -> Bundle:
        return replace(good, **changes).with_signature(authority.key)

    for bundle, message in (
        (theirs, "the bundle is for asia, not for europe"),
        (replace(theirs, site=europe.site), "not signed by the CA in .*, or was changed"),
        (good.with_signature(rogue.key), "not signed by the CA"),
        (signed(certificate=theirs.certificate), "names asia, not europe"),
        (signed(certificate=pem), "not from this federation's CA"),
        (signed(certificate="ü"), "the bundle's certificate is refused"),
        (other_key, "is for another key than the one in .*; send the founder the request"),
        (signed(sealed_round_key=sealed), "not sealed for this site's key"),
    ):
        with refused(BundleError, message):
            enrolment.join(europe, bundle, now=NOW)
        assert contents(europe.pki) == before
    with refused(BundleError, "the certificate expired on"):
        enrolment.join(europe, good, now=NOW + timedelta(days=366))
    with refused(BundleError, "is not valid before"):
        enrolment.join(europe, good, now=NOW - timedelta(hours=2))
    assert contents(europe.pki) == before
    enrolment.join(europe, good, now=NOW)


def test_bundle_of_a_changed_federation_says_what_changed(authority: Authority, folder: SiteFolder) -> None:
    request = make_request(folder, authority)
    path = authority.folder / "federation.toml"
    path.write_text(path.read_text().replace("rounds = 3", "rounds = 5"))
    changed = admit(Authority.load(authority.folder, now=NOW), request)
    with refused(FederationMismatch, "rounds is 3 here and 5 there"):
        enrolment.join(folder, changed, now=NOW)


def test_join_needs_the_sites_own_key(authority: Authority, folder: SiteFolder) -> None:
    bundle = admit(authority, make_request(folder, authority))
    (folder.pki / "site.key").unlink()
    with refused(CertificateError, r"site.key is missing"):
        enrolment.join(folder, bundle, now=NOW)


def test_an_older_bundle_does_not_undo_a_renewal(authority: Authority, folder: SiteFolder) -> None:
    request, later = make_request(folder, authority), NOW + timedelta(days=300)
    first, second = admit(authority, request), admit(authority, request, now=later)
    enrolment.join(folder, first, now=NOW)
    renewed = enrolment.join(folder, second, now=later)
    before = contents(folder.pki)
    with refused(
        BundleError,
        r"the bundle's certificate \(of 2026-07-01 11:00, serial \w+\) is older than the one in .*cert\.pem "
        rf"\(of 2027-04-27 11:00, serial {renewed.certificate.serial_number:x}\); join the newest bundle",
    ):
        enrolment.join(folder, first, now=later)
    assert contents(folder.pki) == before
    enrolment.join(folder, second, now=later)


@pytest.mark.parametrize("of", ["another key", "another site", "nothing"])
def test_a_certificate_that_is_of_no_use_here_is_no_renewal(authority: Authority, folder: SiteFolder, of: str) -> None:
    """Restored from somewhere, it must not stand in the way of the right bundle."""
    bundle = admit(authority, make_request(folder, authority))
    key = new_key() if of == "another key" else own_key(folder)
    name = SiteName("asia") if of == "another site" else folder.site
    later = NOW + timedelta(days=1)
    newer = certificates.issue(authority.key, authority.certificate, name=name, public_key=key.public_key(), now=later)
    content = b"nothing" if of == "nothing" else certificates.certificate_pem(newer)
    (folder.pki / "cert.pem").write_bytes(content)
    own = enrolment.join(folder, bundle, now=later)
    assert own.certificate.not_valid_before_utc < newer.not_valid_before_utc


def test_join_that_cannot_write_leaves_the_site_as_it_was(authority: Authority, folder: SiteFolder) -> None:
    """A folder stands where the certificate, which is written last, has to go."""
    bundle = admit(authority, make_request(folder, authority))
    (folder.pki / "cert.pem").mkdir()
    with refused(DiskError, r"cert.pem cannot be written"):
        enrolment.join(folder, bundle, now=NOW)
    (folder.pki / "cert.pem").rmdir()
    with refused(CertificateError, r"cert.pem is missing"):
        Identity.load(folder.pki, name=folder.site, ca_certificate=authority.federation.ca_certificate, now=NOW)
    enrolment.join(folder, bundle, now=NOW)


def test_bundle_holds_no_secret_in_the_open(authority: Authority, folder: SiteFolder) -> None:
    bundle = admit(authority, make_request(folder, authority))
    text = bundle.encode()
    assert authority.round_key.hex().encode() not in text
    assert b"PRIVATE" not in text
    assert set(json.loads(text)) == {
        *("mhfl_bundle", "site", "federation_digest", "federation_toml", "certificate", "sealed_round_key", "signature")
    }


def test_a_pinned_site_is_admitted_with_that_key_alone(tmp_path: Path) -> None:
    key = certificates.new_key()
    pinned = DRAFT.replace('name = "europe"', f'name = "europe"\nkey = "{certificates.key_digest(key.public_key())}"')
    authority = Authority.create(tmp_path / "pinned", pinned, "draft.toml", now=NOW)
    with refused(BundleError, "the federation pins another key for europe"):
        admit(authority, forge(certificates.new_key()), replace=True)
    assert admit(authority, forge(key)).site == "europe"


def test_a_site_has_its_key_before_the_federation_pins_it(tmp_path: Path, folder: SiteFolder) -> None:
    first = enrolment.request(folder, FederationConfig.parse(DRAFT, "draft"), DRAFT, now=NOW)
    assert (first.key, folder.federation_toml.exists()) == ("new", False)
    pinned = DRAFT.replace('name = "europe"', f'name = "europe"\nkey = "{first.fingerprint}"')
    authority = Authority.create(tmp_path / "pinned", pinned, "draft.toml", now=NOW)
    second = make_request(folder, authority)
    assert (second.key, second.fingerprint) == ("kept", first.fingerprint)
    enrolment.join(folder, admit(authority, second), now=NOW)
