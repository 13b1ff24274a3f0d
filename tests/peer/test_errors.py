"""The exit codes are a contract: one a kind of failure, none used twice, each with a remedy."""

import inspect

import pytest

from peer import errors
from peer.errors import EXIT_CODES, ConfigError, PeerError, one_line

KINDS = [
    kind for _, kind in inspect.getmembers(errors, inspect.isclass) if issubclass(kind, PeerError) and kind != PeerError
]


def test_the_codes_that_scripts_rely_on() -> None:
    assert {code: row.name for code, row in EXIT_CODES.items()} == {
        2: "UsageError", 3: "ConfigError", 4: "CertificateError", 5: "BundleError", 6: "StateError", 7: "LockedError",
        8: "PortInUse", 9: "DiskError", 10: "DataError", 11: "ModelError", 12: "PeerMisbehaved",
        13: "PeerUnreachable", 14: "DaemonDown", 15: "WorkerFailed", 16: "CheckFailed", 17: "FederationMismatch",
        18: "LedgerBroken", 19: "MembershipError", 130: "Interrupted",
    }  # fmt: skip
    assert len({kind.exit_code for kind in KINDS}) == len(KINDS) == len(EXIT_CODES)


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_is_in_the_table(kind: type[PeerError]) -> None:
    assert EXIT_CODES[kind.exit_code] == (kind.__name__, kind.meaning, kind.usual_remedy)
    assert kind.meaning
    assert kind.usual_remedy


def test_text_is_message_and_remedy_in_one_line_whatever_a_peer_sent() -> None:
    assert str(ConfigError("rounds = 0 is below 1", "write at least 1")) == "rounds = 0 is below 1; write at least 1"
    assert str(ConfigError("rounds is missing")) == f"rounds is missing; {ConfigError.usual_remedy}"
    error = ConfigError("site\n'x\x1b[31m'\tsaid\r\u2028no", "do\nthis")
    assert str(error) == "site 'x [31m' said  no; do this"
    assert error.message == one_line(error.message)
    assert error.remedy == "do this"
