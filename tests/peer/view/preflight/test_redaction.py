"""What is taken out of every text of a bug report, and what stays readable."""

import json
from pathlib import Path

import pytest

from peer.core.roster import SiteName
from peer.site.config.site_folder import SiteFolder
from peer.view.preflight.redaction import Redaction, is_distinctive, sample_names

FOLDER = SiteFolder(Path("/var/lib/mhfl"), "trial", SiteName("asia"))
NAMES = ("/srv/ct/Müller Anna/scan one.nii.gz", "images/pat-0042.png", "S10482", "/srv/ct/Lee (2).dcm", "asia/x.npy")


@pytest.fixture
def redaction() -> Redaction:
    return Redaction(FOLDER, NAMES, kept={"asia", "europe"}, hosts={"ehealth.example", "node7"})


@pytest.mark.parametrize(
    "text",
    [
        "cannot read /srv/ct/Müller Anna/scan one.nii.gz: truncated",
        "cannot read scan one.nii.gz",
        "folder Müller Anna holds two series",
        "pat-0042 is empty",
        "subject S10482 has no label",
        "another file, Smith John.nii.gz, is unreadable",
        "Lee (2) is unreadable",
        "unreadable: /users/anna/other scans/x",
        "see '/users/anna/other scans/x y' and \"/data/Smith John/a\"",
        "-----BEGIN EC KEY-----\nMIGHAgEA\n-----END EC KEY-----",
        "peer at 10.20.30.40:7443 and at [2001:db8::17]:7443 refused",
        "ehealth.example answers, node7 does not",
        "folder MÜLLER ANNA holds two series",
        "folder Mu\u0308ller Anna holds two series",
        'folder M\\xfcller Anna, {\\"M\\u00fcller Anna\\": 1}',
        "GET M%C3%BCller%20Anna and M%C3%BCller+Anna",
        "unreadable: /users/anna b/John Smith/x y",
        "unreadable: C:\\data\\Anna Smith\\x, and \\\\pacs\\share\\Anna Smith",
        "PatientName: 'Smith^John', (0010,0020) PatientID = 0042",
        "study 1.2.840.10008.20.30.40",
        "dials pacs.ehealth.de",
        "dials pacs.ehealth.pt",
        "dials pacs.ehealth.example and gate.ehealth.clinic",
        "cannot open file:///data/Mu\u0308ller%20Anna/x",
    ],
)
def test_names_paths_keys_and_addresses_are_taken_out(redaction: Redaction, text: str) -> None:
    said = redaction.text(text)
    for word in ("Müller", "Anna", "scan one", "0042", "S10482", "Smith", "John", "Lee", "anna", "/users", "MIGH",
                 "10.20.30.40", "2001:db8", "ehealth", "node7", "ANNA", "ller", "10008"):  # fmt: skip
        assert word not in said, said


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("round 7 at asia went on without europe (silent)", None),
        ("loss 0.6931, 42 steps of the test split", None),
        ("listens at 127.0.0.1:7443", None),
        ("/var/lib/mhfl/trial/asia/gen-0001/journal.db is damaged", "<site>/gen-0001/journal.db is damaged"),
        ('  File "/opt/env/lib/python3.11/site-packages/torch/nn.py", line 3, in forward', '  File "<packages>/site-'),
        ("2026-11-23T01:10:38.780+00:00", None),
        ("weights/2 of the artifacts", None),
        ("site.toml and journal.db of torch.nn", None),
        ('weights = "best.pt": missing key fc.weight, as in epoch-3.pt', None),
        ("/var/lib/mhfl/trial/asia/site.toml cannot be read here", "<site>/site.toml cannot be read here"),
    ],
)
def test_what_helps_a_maintainer_stays(redaction: Redaction, text: str, said: str | None) -> None:
    assert redaction.text(text).startswith(said or text)


@pytest.mark.parametrize("text", ["GROSSMANN is unreadable", "grossmann", "Gro\u00dfmann", '"Gro\\u00dfmann"'])
def test_a_name_is_found_whose_letters_change_with_their_case(text: str) -> None:
    said = Redaction(FOLDER, ("Gro\u00dfmann",), kept=(), hosts=None).text(text)
    assert "mann" not in said.casefold(), said


def test_the_user_of_a_url_is_taken_out_and_values_of_secret_keys() -> None:
    redaction = Redaction(FOLDER, (), kept=(), hosts=None)
    assert redaction.text("dials http://me:word@gate:3128 now") == "dials http://<user>@gate:3128 now"
    value = {"proxy_password": "word", "token": ["a"], "tokens": 4, "method": {"secret": 3, "name": "fedskd"}}
    left_out = "<left out>"
    shown = {
        "proxy_password": left_out,
        "token": left_out,
        "tokens": 4,
        "method": {"secret": left_out, "name": "fedskd"},
    }
    assert redaction.value(value) == shown


@pytest.mark.parametrize(
    ("secret", "distinctive"),
    [(b"hospital", False), (b"Hospital", False), (b"20261123", False), (b"u:p", False), (b"hunter2hunter", True)],
)
def test_only_what_no_text_has_by_chance_is_looked_for(secret: bytes, distinctive: bool) -> None:
    assert is_distinctive(secret) == distinctive


@pytest.mark.parametrize(
    "text",
    ["eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.c2VjcmV0", "ghp_secretsecretsecret", "Authorization: Bearer secret.x",
     "password=secret", '{"api_key": "secret"}', "hf_secretsecretsecret"],
)  # fmt: skip
def test_tokens_are_known_by_their_shape(redaction: Redaction, text: str) -> None:
    said = redaction.text(text)
    assert "secret" not in said.replace("secret_", "")
    assert "c2Vjc" not in said


def test_keys_and_initials_that_name_a_sample_are_taken_out(tmp_path: Path) -> None:
    redaction = Redaction(FOLDER, ["MK", "no", "images/pat-0042.png"], kept=(), hosts=None)
    value = {"pat-0042": {"MK": "no sample of MK"}, "round": 3}
    assert redaction.value(value) == {"<sample>": {"<sample>": "no sample of <sample>"}, "round": 3}


def test_a_log_line_stays_json(redaction: Redaction) -> None:
    line = redaction.log_line('{"message": "unreadable", "file": "/srv/ct/Lee (2).dcm", "round": 3, "seconds": 0.5}')
    assert json.loads(line) == {
        "message": "unreadable", "file": "<sample>", "round": 3, "seconds": 0.5,
    }  # fmt: skip
    assert redaction.log_line("Traceback of pat-0042") == "Traceback of <sample>"


def test_addresses_stay_where_the_operator_wants_them() -> None:
    open_redaction = Redaction(FOLDER, (), kept=(), hosts=None)
    assert open_redaction.text("peer at 10.20.30.40:7443") == "peer at 10.20.30.40:7443"


def test_a_datalist_gives_every_text_in_it(tmp_path: Path) -> None:
    path = tmp_path / "datalist.json"
    path.write_text('\ufeff{"training": [{"image": "a.png", "label": 1, "subject": 10482}]}', "utf-8")
    broken = tmp_path / "broken.json"
    broken.write_text("nonsense")
    assert set(sample_names([path, broken, tmp_path / "absent.json"])) == {"a.png", "10482"}
