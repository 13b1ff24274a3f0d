"""The errors of the command line, each with an exit code, on which scripts rely, and a remedy.

Core and transport raise ``ValueError`` or types of their own. The caller that knows the file, key or peer converts them
into one of these errors. No error here stands for a bug in the program.
"""

from __future__ import annotations

from typing import ClassVar, NamedTuple


class PeerError(Exception):
    """A failure that a person can remedy: ``str(error)`` is one line, "message; remedy"."""

    exit_code: ClassVar[int]
    meaning: ClassVar[str]
    usual_remedy: ClassVar[str]

    def __init__(self, message: str, remedy: str = "") -> None:
        """Take a message that names the file, key or peer; without a remedy, use the class's usual one."""
        super().__init__(message, remedy)
        self.message = one_line(message)
        self.remedy = one_line(remedy) or self.usual_remedy

    def __str__(self) -> str:
        return f"{self.message}; {self.remedy}"


class UsageError(PeerError):
    exit_code = 2
    meaning = "the command was called wrongly, or names a file that does not exist"
    usual_remedy = "see --help"


class ConfigError(PeerError):
    exit_code = 3
    meaning = "a configuration file is missing or wrong, or a Python package is missing"
    usual_remedy = "correct the key; `mhfl-peer help reference` explains each one"


class CertificateError(PeerError):
    exit_code = 4
    meaning = "this site's key, certificate or round key is missing, expired or foreign"
    usual_remedy = "enrol this site: `site init`, `federation admit` at the founder, `site join`"


class BundleError(PeerError):
    exit_code = 5
    meaning = "a signing request or an enrolment bundle was refused"
    usual_remedy = "ask its sender for a new one"


class StateError(PeerError):
    exit_code = 6
    meaning = "the site's journal or folder does not allow this"
    usual_remedy = "see `status` and `events`"


class LockedError(PeerError):
    exit_code = 7
    meaning = "another process holds this site's folder"
    usual_remedy = "stop the other daemon first"


class PortInUse(PeerError):  # noqa: N818 - the name is the fact
    exit_code = 8
    meaning = "the listen address cannot be bound"
    usual_remedy = "change `listen` in site.toml or stop what uses the port"


class DiskError(PeerError):
    exit_code = 9
    meaning = "a file or folder cannot be written"
    usual_remedy = "free space, or make it writable for this user"


class DataError(PeerError):
    exit_code = 10
    meaning = "the datalist or the data that it names cannot be used"
    usual_remedy = "run `data validate`"


class ModelError(PeerError):
    exit_code = 11
    meaning = "the site's model cannot be built or does not fit the task"
    usual_remedy = "correct [model] in site.toml"


class PeerMisbehaved(PeerError):  # noqa: N818 - says whose fault it is
    exit_code = 12
    meaning = "another site sent something that was refused"
    usual_remedy = "tell that site's operator; `events` has the details"


class PeerUnreachable(PeerError):  # noqa: N818 - the name is the fact
    exit_code = 13
    meaning = "another site does not answer"
    usual_remedy = "check its address in [addresses], its firewall and whether it runs"


class DaemonDown(PeerError):  # noqa: N818 - the name is the fact
    exit_code = 14
    meaning = "the site's daemon is not running, or does not answer"
    usual_remedy = "start it with `mhfl-peer start`"


class WorkerFailed(PeerError):  # noqa: N818 - the name is the fact
    exit_code = 15
    meaning = "the training process failed"
    usual_remedy = "see the worker's log in the site's logs folder"


class CheckFailed(PeerError):  # noqa: N818 - the name is the fact
    exit_code = 16
    meaning = "the preflight check failed"
    usual_remedy = "correct what the check names"


class FederationMismatch(PeerError):  # noqa: N818 - the name is the fact
    exit_code = 17
    meaning = "two different federation.toml files meet"
    usual_remedy = "get the founder's federation.toml and compare digests with `federation show`"


class LedgerBroken(PeerError):  # noqa: N818 - the name is the fact
    exit_code = 18
    meaning = "the egress ledger is not whole"
    usual_remedy = "leave the site's folder as it is, and tell its data protection officer"


class MembershipError(PeerError):
    exit_code = 19
    meaning = "an amendment, a proposal or a notice was refused; nothing was changed"
    usual_remedy = "see `mhfl-peer federation show --site SITE`"


class Interrupted(PeerError):  # noqa: N818 - the name is the fact
    exit_code = 130
    meaning = "interrupted from the keyboard (128 + SIGINT)"
    usual_remedy = "run it again"


class ExitCode(NamedTuple):
    """One row of the table of exit codes."""

    name: str
    meaning: str
    remedy: str


EXIT_CODES: dict[int, ExitCode] = {
    kind.exit_code: ExitCode(kind.__name__, kind.meaning, kind.usual_remedy) for kind in PeerError.__subclasses__()
}


def one_line(text: str) -> str:
    """Replace unprintable characters by spaces: names from other sites may contain terminal escapes."""
    return "".join(character if character.isprintable() else " " for character in text).strip()
