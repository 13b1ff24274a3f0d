"""A report about a site for who maintains the program: one zip file without keys, data, paths or names of samples."""

from __future__ import annotations

import base64
import dataclasses
import importlib.metadata
import io
import json
import os
import platform
import re
import stat
import sys
import tomllib
import zipfile
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from peer import __version__
from peer.audit import verification
from peer.errors import DaemonDown, PeerError, StateError
from peer.net.transport.control import ControlClient
from peer.site.config import toml
from peer.site.config.site_folder import SiteFolder
from peer.site.records import folder_documents
from peer.view.preflight.finding import Finding
from peer.view.preflight.redaction import LEFT_OUT, SAMPLE_FILE, Redaction, is_distinctive, sample_names, secrets_of

EVENTS = 500
"""The newest rows of the journal: some forty rounds."""
LOG_LINES = 2000
LOG_BYTES_MAX = 4 << 20
LOGS = ("daemon.log", "worker.log", "console.log")
README = "README.txt"
DISTRIBUTION = "mhfl-peer"
SITE_PATHS = ("datalist", "root", "regions", "public")
"""Keys of [data] with paths, which a report leaves out."""
MEANINGS: Mapping[str, str] = {
    README: "this list",
    "versions.json": "versions of the program, of Python and of its packages, and the kind of machine",
    "site.json": "site.toml without paths, and without addresses unless --with-addresses is given",
    "federation.json": "federation.toml without descriptions and the CA certificate, addresses as above",
    "status.json": "the document of `status`",
    "events.json": f"the newest {EVENTS} rows of the journal, without tensor lists and manifests",
    "ledger.json": "whether the egress ledger is whole",
    "check.json": "the findings of `check --fast`",
    "folder.json": "sizes, modes and times of the files in the site's folder",
    "logs/daemon.log": f"the newest {LOG_LINES} lines of the daemon's log",
    "logs/worker.log": f"the newest {LOG_LINES} lines of the worker's log",
    "logs/console.log": f"the newest {LOG_LINES} lines of what the daemon printed",
}
FOREWORD = (
    "A report about a site of mhfl-peer. Names of samples, paths, private keys and the round key were taken out; so "
    "were addresses, unless it says otherwise. Names of sites, losses and metrics are in it: read it before you send "
    "it."
)
NO_LOGS = (
    "The logs were left out: the datalist cannot be read, so that nobody knows which of their words name a sample."
)
LOGS_ON_REQUEST = "The logs are not in it; --with-logs adds them."


def collect(
    folder: SiteFolder,
    findings: Callable[[], Iterable[Finding]],
    *,
    with_addresses: bool = False,
    with_logs: bool = False,
) -> dict[str, bytes]:
    """Collect the files of the report by name. Writes nothing.

    Args:
        findings: runs the checks; an error of theirs is in the report.

    Raises:
        StateError: a text still has a secret or a sample's name in it, which is a bug of this module.
    """
    site, federation = _parse(folder.site_toml), _parse(folder.federation_toml)
    names = set(sample_names(_datalists(folder, site)))
    kept = {folder.site, folder.federation, *(str(entry.get("name")) for entry in _roster(federation))}
    secrets = [*secrets_of(folder), *_proxy_password(folder, site)]
    hosts = None if with_addresses else _hosts(site, federation)
    redaction = Redaction(folder, names, kept=kept, hosts=hosts, secrets=secrets)
    documents: dict[str, Callable[[], Any]] = {
        "versions.json": _versions,
        "site.json": lambda: _site(site, with_addresses=with_addresses),
        "federation.json": lambda: _federation(federation, with_addresses=with_addresses),
        "status.json": lambda: _status(folder),
        "events.json": lambda: folder_documents.document(folder, "events", {"last": EVENTS, "everything": True}),
        "ledger.json": lambda: verification.verify(folder),
        "check.json": lambda: [dataclasses.asdict(finding) for finding in findings()],
        "folder.json": lambda: list(_files(folder)),
    }
    members: dict[str, bytes] = {}
    for name, read in documents.items():
        members[name] = f"{json.dumps(redaction.value(_or_error(read)), indent=1, ensure_ascii=False)}\n".encode()
    for name in (
        LOGS if names and with_logs else ()
    ):  # without a datalist, nobody knows which words of a log name a sample
        lines = _tail(folder.logs / name)
        if lines:
            members[f"logs/{name}"] = "".join(f"{redaction.log_line(line)}\n" for line in lines).encode()
    note = LOGS_ON_REQUEST if not with_logs else "" if names else NO_LOGS
    members = {README: _readme(members, note).encode(), **members}
    files = [json.dumps(name, ensure_ascii=False)[1:-1].encode() for name in names if SAMPLE_FILE.search(name)]
    refuse_secrets(members, [*secrets, *files])
    return members


def pack(members: Mapping[str, bytes]) -> bytes:
    """Pack the files into a zip archive and return it."""
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, member in members.items():
            archive.writestr(name, member)
    return content.getvalue()


def _or_error(read: Callable[[], Any]) -> Any:
    """Return the document, or why there is none: a report is wanted where something is broken."""
    try:
        return read()
    except (PeerError, OSError, ValueError, KeyError, TypeError) as error:
        return {"error": f"{type(error).__name__}: {error}"}


def _parse(path: Path) -> dict[str, Any]:
    """Parse the tables of a file, whether its values are right or not; empty where it is no TOML."""
    try:
        return tomllib.loads(toml.read(path))
    except (PeerError, ValueError):
        return {}


def _table(document: Mapping[str, Any], name: str) -> dict[str, Any]:
    value = document.get(name)
    return dict(value) if isinstance(value, dict) else {}


def _roster(federation: Mapping[str, Any]) -> list[dict[str, Any]]:
    entries = federation.get("site")
    return [entry for entry in entries if isinstance(entry, dict)] if isinstance(entries, list) else []


def _datalists(folder: SiteFolder, site: Mapping[str, Any]) -> Iterator[Path]:
    data = _table(site, "data")
    for key in ("datalist", "public"):
        if isinstance(path := data.get(key), str):
            yield folder.path / path


def _proxy_password(folder: SiteFolder, site: Mapping[str, Any]) -> list[bytes]:
    """``user:password`` of the proxy, in the forms in which a text could have it; the password alone
    only where no other text has it by chance.
    """
    path = _table(site, "connect").get("password_file")
    try:
        pair = (folder.path / str(path)).read_bytes().strip() if path is not None else b""
    except OSError:
        return []
    password = pair.partition(b":")[2]
    if not password:
        return []
    return [secret for secret in (pair, base64.b64encode(pair), password) if is_distinctive(secret)]


def _hosts(site: Mapping[str, Any], federation: Mapping[str, Any]) -> set[str]:
    """Names and addresses of machines in the configuration, without ports."""
    connect = _table(site, "connect")
    written = [entry.get("address") for entry in _roster(federation)]
    written += [*_table(site, "addresses").values(), site.get("listen"), _table(site, "metrics").get("listen")]
    written += [
        connect.get("proxy"),
        *_table(connect, "peers").values(),
        connect.get("relays"),
        connect.get("relay_listen"),
    ]
    addresses = [address for value in written for address in (value if isinstance(value, list) else [value])]
    # What stands before an address: `http://` of a proxy, the name of a relay.
    hosts = {re.split("[/ ]", str(address))[-1].rpartition(":")[0].strip("[]") for address in addresses if address}
    return {host for host in hosts if host not in ("", "127.0.0.1", "0.0.0.0", "::1", "::", "localhost")} | {
        platform.node()
    }


def _versions() -> dict[str, Any]:
    packages = {}
    for requirement in importlib.metadata.requires(DISTRIBUTION) or ():
        name = requirement.partition(";")[0].strip().split(">")[0].split("[")[0].split("=")[0].strip()
        try:
            packages[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return {
        "mhfl-peer": __version__,
        "python": sys.version,
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "processors": os.cpu_count(),
        "packages": packages,
    }


def _site(site: Mapping[str, Any], *, with_addresses: bool) -> dict[str, Any]:
    data = {key: LEFT_OUT if key in SITE_PATHS else value for key, value in _table(site, "data").items()}
    document = {**site, "data": data}
    if not with_addresses:
        document["addresses"] = dict.fromkeys(_table(site, "addresses"), LEFT_OUT)
        document["listen"] = LEFT_OUT
        document["connect"] = dict.fromkeys(_table(site, "connect"), LEFT_OUT)
    return document


def _federation(federation: Mapping[str, Any], *, with_addresses: bool) -> dict[str, Any]:
    document = {key: value for key, value in federation.items() if key not in ("ca_certificate", "description")}
    hidden = {"description"} if with_addresses else {"description", "address"}
    document["site"] = [
        {key: value for key, value in entry.items() if key not in hidden} for entry in _roster(federation)
    ]
    return document


def _status(folder: SiteFolder) -> Any:
    try:
        return ControlClient(folder.control_socket()).show("status")
    except (DaemonDown, StateError) as error:
        return {**folder_documents.status_when_down(folder), "answer": str(error)}


def _files(folder: SiteFolder) -> Iterator[dict[str, Any]]:
    for path in sorted(folder.path.rglob("*")):
        try:
            status = path.lstat()
        except OSError:  # the daemon may delete a file meanwhile
            continue
        name = str(path.relative_to(folder.path))
        yield {"name": name, "mode": stat.filemode(status.st_mode), "bytes": status.st_size, "time": status.st_mtime}


def _tail(path: Path) -> list[str]:
    try:
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - LOG_BYTES_MAX))
            return list(deque(file.read().decode("utf-8", "replace").splitlines(), maxlen=LOG_LINES))
    except OSError:
        return []


def _readme(members: Mapping[str, bytes], note: str) -> str:
    lines = [f"{name}: {MEANINGS[name]}" for name in (README, *members)]
    return "\n".join([*filter(None, [FOREWORD, note]), "", *lines, ""])


def refuse_secrets(members: Mapping[str, bytes], secrets: Sequence[bytes]) -> None:
    """Search the report's members for secrets. Raise ``StateError`` if one has any."""
    for name, content in members.items():
        if any(secret in content for secret in secrets):
            raise StateError(f"{name} would name a key or a sample, so that no report was written", "report this bug")
