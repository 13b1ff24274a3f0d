"""The distribution's squid on a host of a test, as a hospital runs it: CONNECT to port 443, and nothing else."""

from __future__ import annotations

import datetime
import shutil
import subprocess
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Self

from peer.site.identity import certificates

PROXY_PORT = 3128
LIMIT_S = 60.0
CONFIG = """
http_port {address}:{port} {bump}
acl tls port 443
http_access deny !CONNECT
http_access deny !tls
{access}
http_access deny all
cache deny all
access_log stdio:{folder}/access.log
cache_log {folder}/cache.log
coredump_dir {folder}
pid_filename none
pinger_enable off
netdb_filename none
shutdown_lifetime 1 seconds
"""
BUMP = "ssl-bump tls-cert={folder}/ca.pem tls-key={folder}/ca.key generate-host-certificates=on"
BUMP_ACCESS = """
sslcrtd_program {program} -s {folder}/certificates -M 4MB
sslcrtd_children 1
ssl_bump bump all
http_access allow all
"""
LOGIN_ACCESS = """
auth_param basic program {program} {folder}/logins
auth_param basic realm hospital
acl known proxy_auth REQUIRED
http_access allow known
"""


def _program() -> Path:
    return Path(shutil.which("squid") or "squid").resolve()


def _helpers() -> Path:
    return _program().parents[1] / "lib" / "squid"


def missing() -> str:
    """Why there is no squid; empty where there is."""
    if shutil.which("squid") is None or shutil.which("openssl") is None:
        return "not in PATH: squid or openssl (the distribution's packages)"
    return "" if _helpers().is_dir() else f"squid's helpers are not in {_helpers()}, as in Debian's package"


def cannot_open_tls() -> str:
    """Why squid cannot inspect what it carries; empty where it can."""
    built = subprocess.run(["squid", "-v"], capture_output=True, text=True, check=False).stdout
    return "" if "--with-openssl" in built else "this squid cannot open TLS: install the package squid-openssl"


class Squid:
    """A squid that runs; ``login`` is the user and password that it wants, ``opens_tls`` whether it inspects."""

    def __init__(self, prefix: Sequence[str], address: str, *, login: str = "", opens_tls: bool = False) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="mhfl-squid-"))  # squid's own user cannot enter pytest's folders
        helpers, bump, access = _helpers(), "", "http_access allow all"
        if opens_tls:
            key, authority = certificates.new_authority("inspection", now=datetime.datetime.now(datetime.UTC))
            (self.folder / "ca.pem").write_bytes(certificates.certificate_pem(authority))
            (self.folder / "ca.key").write_bytes(certificates.key_pem(key))
            maker = helpers / "security_file_certgen"
            subprocess.run([maker, "-c", "-s", self.folder / "certificates", "-M", "4MB"], check=True, timeout=LIMIT_S)
            bump, access = BUMP.format(folder=self.folder), BUMP_ACCESS.format(program=maker, folder=self.folder)
        if login:
            user, _, password = login.partition(":")
            digest = subprocess.check_output(["openssl", "passwd", "-apr1", password], text=True, timeout=LIMIT_S)
            (self.folder / "logins").write_text(f"{user}:{digest}")
            access = LOGIN_ACCESS.format(program=helpers / "basic_ncsa_auth", folder=self.folder)
        text = CONFIG.format(address=address, port=PROXY_PORT, bump=bump, access=access, folder=self.folder)
        (self.folder / "squid.conf").write_text(text)
        for path in (self.folder, *self.folder.rglob("*")):
            shutil.chown(path, "proxy", "proxy")
        command = [*prefix, str(_program()), "-N", "-f", str(self.folder / "squid.conf")]
        self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def wait(self) -> None:
        """Wait until it takes connections."""
        end_s = time.monotonic() + LIMIT_S
        while "Accepting" not in self.read("cache.log"):
            if self.process.poll() is not None or time.monotonic() > end_s:
                raise RuntimeError(f"squid does not run:\n{self.read('cache.log')}")
            time.sleep(0.05)

    def read(self, name: str) -> str:
        path = self.folder / name
        return path.read_text(errors="replace") if path.exists() else ""

    def __enter__(self) -> Self:
        try:
            self.wait()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.wait()
        shutil.rmtree(self.folder, ignore_errors=True)
