"""Removes from texts what must not leave a site with a bug report: keys, paths, names of samples, addresses."""

from __future__ import annotations

import base64
import json
import re
import unicodedata
import urllib.parse
from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Literal

from peer.errors import PeerError
from peer.site.config.site_folder import SiteFolder
from peer.site.identity import certificates

LEFT_OUT = "<left out>"
NAME_LENGTH_MIN = 3
"""Shorter values of a datalist, such as a class, occur in any text. Initials are looked for in capitals alone."""
SAMPLE_FILE = re.compile(
    r"\.(nii|dcm|dicom|ima|png|jpe?g|tiff?|bmp|gif|webp|npy|npz|edf|bdf|gdf|mha|mhd|nrrd|mgz|h5|hdf5|csv|tsv|svs|mat)\b",
    re.IGNORECASE,
)
"""A text with such a name in it is left out as a whole: nobody knows where the name begins."""
PATH = re.compile(r"(?<=\")~?/[^\"\n]*(?=\")|(?<=')~?/[^'\n]*(?=')|(?<![\w./<>~])(?!//)~?/[^\s'\"<>|]+")
"""An absolute path; between quotes it may have spaces."""
REST_OF_PATH = re.compile(r"[^\n,;:()\[\]{}'\"<>|]*")
"""Without quotes, a path outside of the site may have spaces as well: nobody knows where it ends."""
OTHER_PATH = re.compile(r"(?<![\w\\])(?:\\\\[^\s\\]|[A-Za-z]:\\)[^\n,;'\"<>|]*")
"""A path of Windows, or of a share."""
FILE_URL = re.compile(r"\bfile:/+[^\s'\"<>|]*", re.IGNORECASE)
HOST = re.compile(
    r"(?<![\w./@-])(?:(?:[a-z0-9-]+\.){2,}(?:pt|rs)|(?:[a-z0-9-]+\.)+(?:care|clinic|com|corp|edu|example|gov|health|hospital|internal|int|intern"
    r"|intra|klinik|lan|local|net|org|at|au|be|br|ca|ch|cn|cz|de|dk|es|eu|fi|fr|gr|hr|hu|ie|il|it|jp|kr|lt|lu|lv|nl|no"
    r"|nz|pl|ro|ru|se|sg|si|sk|tr|ua|uk|us|za))(?![\w./-])",
    re.IGNORECASE,
)
"""The name of a machine that no configuration has; two labels before "pt" and "rs", with which names of files end."""
PATIENT = re.compile(
    r"\b((?:Other)?Patients?(?:'?s)?(?:Name|ID|BirthDate|Address|[A-Z]\w*)?|AccessionNumber|InstitutionName|\w*Physician\w*"
    r"|Study(?:Description|ID)|(?:Study|Series|SOP)InstanceUID)(['\"]?\s*[:=]\s*)(?:'[^'\n]*'|\"[^\"\n]*\"|[^,;\n]+)"
)
"""An attribute of DICOM with its value."""
UID = re.compile(r"(?<![\w.])[0-2](?:\.\d+){5,}(?![\w.])")
TOKEN = re.compile(
    r"eyJ[\w-]{8,}\.[\w-]+\.[\w-]*|\b(?:gh[opsru]_|github_pat_|glpat-|xox[abps]-|sk-|hf_|AKIA)[\w-]{12,}"
    r"|(?<=Bearer )\S+|(?<=Basic )[\w+/=]{8,}"
)
"""What gives access to a service, by its shape."""
ASSIGNED = re.compile(r"(?i)\b((?:\w*passw\w*|\w*secret\w*|\w*token|api[_-]?key)['\"]?\s*[:=]\s*)['\"]?[^\s,;'\"]+")
COMMON = frozenset(
    "data dataset datasets image images img label labels mask masks scan scans series train training test tests val "  # noqa: SIM905
    "validation sample samples signal signals volume volumes slices input target class site sites dicom nifti".split()
)
"""Words that name folders of samples and much else: they say nothing of a patient."""
UNICODE_FORMS: tuple[Literal["NFC", "NFD", "NFKC", "NFKD"], ...] = ("NFC", "NFD", "NFKC", "NFKD")
NUMBER_MIN = 1000
"""A smaller number in a datalist is a label; larger ones may be a patient's."""
PACKAGES = re.compile(r"^.*/(?=(?:site-packages|dist-packages|lib/python3\.\d+|peer|models|losses)/)")
"""What precedes the program's own files in a traceback, which stay."""
IPV4 = re.compile(r"(?<![\w.])(?:\d{1,3}\.){3}\d{1,3}(?![\w.])")
IPV6 = re.compile(r"(?<![\w:.])(?:[0-9a-fA-F]{0,4}:){3,7}[0-9a-fA-F]{0,4}(?![\w:])")
LOOPBACK = ("127.0.0.1", "0.0.0.0", "::1", "::")
USER = re.compile(r"(?<=://)[^/\s@]+@")
"""``user:password@`` of a URL."""
SECRET_KEY = re.compile(r"passw|secret|credential|^token$", re.IGNORECASE)
"""Keys whose values are left out whole, also those that the program does not know."""
DISTINCTIVE_LENGTH_MIN = 8
WORD = re.compile(rb"[A-Za-z]?[a-z]*|[A-Z]*|[0-9]*")
PEM = re.compile(r"-----BEGIN [A-Z ]+-----.*?(?:-----END [A-Z ]+-----|$)|-----END [A-Z ]+-----", re.DOTALL)


class Redaction:
    """The texts of one site that are taken out.

    Args:
        names: names of samples, as the datalist has them.
        kept: names that stay although a sample has them too: those of sites.
        hosts: names of other machines; ``None`` keeps all addresses.
        secrets: the site's keys; a text with one of them is left out as a whole.
    """

    def __init__(
        self,
        folder: SiteFolder,
        names: Iterable[str],
        *,
        kept: Collection[str],
        hosts: Iterable[str] | None,
        secrets: Iterable[bytes] = (),
    ) -> None:
        kept = {name.casefold() for name in kept}
        known = {name for text in names for name in _parts(text) if _tells(name) and name.casefold() not in kept}
        self._sites = str(folder.path)
        self._names = _any_of({form for name in known for form in _forms(name)})
        self._hosts = None if hosts is None else _any_of({host for host in hosts if host})
        self._keep_addresses = hosts is None
        self._secrets = tuple(secret.decode("utf-8", "replace") for secret in secrets)

    def text(self, text: str) -> str:
        """Remove from the text what may not leave."""
        text = PEM.sub("<key or certificate>", text)
        if any(secret in text for secret in self._secrets):
            return "<left out: it has a key>"
        text = USER.sub("<user>@", TOKEN.sub("<token>", text))
        text = ASSIGNED.sub(rf"\1{LEFT_OUT}", UID.sub("<UID>", PATIENT.sub(rf"\1\2{LEFT_OUT}", text)))
        text = self._without_names(text)
        if SAMPLE_FILE.search(text):
            return "<left out: it names a file of samples>"
        text = OTHER_PATH.sub("<path>", self._without_paths(FILE_URL.sub("<path>", text)))
        if not self._keep_addresses:
            if self._hosts is not None:
                text = self._hosts.sub("<host>", text)
            text = HOST.sub("<host>", text)
            text = IPV4.sub(_address, text)
            text = IPV6.sub(_address, text)
        return text

    def value(self, value: Any) -> Any:
        """Redact every text in a JSON document, and every key that names a sample."""
        if isinstance(value, str):
            return self.text(value)
        if isinstance(value, Mapping):
            return {
                self._without_names(key): LEFT_OUT if SECRET_KEY.search(key) else self.value(inner)
                for key, inner in value.items()
            }
        if isinstance(value, list | tuple):
            return [self.value(inner) for inner in value]
        return value

    def log_line(self, line: str) -> str:
        """Redact a line of a log: the texts of a JSON object, or the line."""
        try:
            document = json.loads(line)
        except ValueError:
            return self.text(line)
        return json.dumps(self.value(document), ensure_ascii=False)

    def _without_names(self, text: str) -> str:
        return text if self._names is None else self._names.sub("<sample>", text)

    def _without_paths(self, text: str) -> str:
        """Replace absolute paths; those of the site's folder and of the program's files keep their ends."""
        parts, end = [], 0
        for match in PATH.finditer(text):
            if match.start() < end:
                continue
            known = self._known_path(match[0])
            parts += [text[end : match.start()], known or "<path>"]
            end = match.end()
            if known is None and text[match.start() - 1 : match.start()] not in ("'", '"'):
                rest = REST_OF_PATH.match(text, end)
                end = rest.end() if rest is not None else end
        return "".join([*parts, text[end:]])

    def _known_path(self, path: str) -> str | None:
        if path.startswith(self._sites):
            return f"<site>{path.removeprefix(self._sites)}"
        kept = PACKAGES.sub("<packages>/", path)
        return kept if kept != path and kept.partition(":")[0].rstrip(",").endswith(".py") else None


def sample_names(datalists: Iterable[Path]) -> Iterator[str]:
    """Return every text in these datalists; nothing where one cannot be read."""
    for path in datalists:
        try:
            yield from _texts(json.loads(path.read_text("utf-8-sig")))
        except (OSError, ValueError, RecursionError):
            continue


def secrets_of(folder: SiteFolder) -> list[bytes]:
    """Return the site's private and round keys in every form in which a text could have them."""
    secrets = []
    for name in (certificates.KEY_FILE, certificates.PENDING_KEY_FILE):
        try:
            lines = (folder.pki / name).read_bytes().splitlines()
        except OSError:
            continue
        secrets += [line for line in lines if line and not line.startswith(b"-----")]
    try:
        round_key = certificates.read_round_key(folder.pki / certificates.ROUND_KEY_FILE)
    except (PeerError, ValueError):
        return secrets
    return [*secrets, round_key, round_key.hex().encode(), base64.b64encode(round_key)]


def is_distinctive(secret: bytes) -> bool:
    """Return whether no other text has these characters by chance, as it may have a word or a number.

    To take a word out of all texts would leave little of them, and show which word it was.
    """
    return len(secret) >= DISTINCTIVE_LENGTH_MIN and WORD.fullmatch(secret) is None


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, int) and value >= NUMBER_MIN:
        yield str(value)
    elif isinstance(value, Mapping):
        for inner in value.values():
            yield from _texts(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from _texts(inner)


def _parts(text: str) -> Iterator[str]:
    """Return a path, its file's name with and without endings, and its folders' names."""
    yield text
    for part in Path(text).parts:
        if part not in ("/", "..", "."):
            yield part
    stem = Path(text).name
    while (shorter := Path(stem).stem) != stem:
        stem = shorter
        yield stem


def _tells(name: str) -> bool:
    initials = len(name) == NAME_LENGTH_MIN - 1 and name.isalpha() and name.isupper()
    return (len(name) >= NAME_LENGTH_MIN or initials) and name.lower() not in COMMON


def _forms(name: str) -> Iterator[str]:
    """Yield the forms in which a text may have a name: in Unicode, escaped as in Python, JSON or a URL."""
    cases = {name, name.upper(), name.casefold()}  # a pattern that ignores case takes no SS for a sharp s
    for form in cases | {unicodedata.normalize(form, case) for form in UNICODE_FORMS for case in cases}:
        yield form
        yield repr(form)[1:-1]
        yield ascii(form)[1:-1]
        yield json.dumps(form)[1:-1]
        yield urllib.parse.quote(form)
        yield urllib.parse.quote_plus(form)


def _any_of(texts: set[str]) -> re.Pattern[str] | None:
    """Return a pattern for any of these texts as a whole word, the longest first; only initials keep their case."""
    if not texts:
        return None
    ordered = (re.escape(text) for text in sorted(texts, key=len, reverse=True))
    patterns = [f"(?i:{text})" if len(text) >= NAME_LENGTH_MIN else text for text in ordered]
    return re.compile(r"(?<![^\W_])(?:" + "|".join(patterns) + r")(?![^\W_])")


def _address(match: re.Match[str]) -> str:
    return match[0] if match[0] in LOOPBACK else "<address>"
