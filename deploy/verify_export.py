"""Check what a site's export says of it: ``python verify_export.py europe-egress.json federation.toml [MEMBER ...]``.

For an outsider: it needs Python 3.11 and the package ``cryptography``, and nothing of mhfl-peer. The export is the file
of ``mhfl-peer egress export``, a MEMBER a site that an amendment has added. Each line of the output is a claim of the
site: "holds", or "WRONG" with the reason; the exit code is 1 if one is wrong. Format: proto/README.md, section 6.
"""

import base64
import datetime
import hashlib
import json
import math
import sys
import tomllib
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA256

ERRORS, ALARM_ERRORS, ROUNDING = 1.96, 4.0, 5.1e-5


def require(holds: bool, reason: str) -> None:
    if not holds:
        raise ValueError(reason)


def check_signature(export: Any, federation: Any) -> str:
    fixed = {"object_hook": lambda table: {key: table[key] for key in table.keys() - {"address", "description"}}}
    table = json.loads(json.dumps(federation), **fixed)
    text = json.dumps(table, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    digest = hashlib.sha256(text.encode()).hexdigest()
    require(digest == export["federation_digest"], f"federation.toml has the digest {digest}, not the export's")
    certificate = x509.load_pem_x509_certificate(export["certificate"].encode())
    certificate.verify_directly_issued_by(x509.load_pem_x509_certificate(federation["ca_certificate"].encode()))
    names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    require(names.get_values_for_type(x509.DNSName) == [export["site"]], "the certificate names another site")
    unsigned = {name: each for name, each in export.items() if name != "signature"}
    signed = b"mhfl/egress/v1\x00" + json.dumps(unsigned, sort_keys=True, separators=(",", ":")).encode("ascii")
    certificate.public_key().verify(base64.b64decode(export["signature"]), signed, ec.ECDSA(SHA256()))
    day = datetime.datetime.fromtimestamp(export["made"], datetime.UTC)
    return f"{export['site']} of the federation {digest} signed it on {day:%Y-%m-%d}"


def check_chain(export: Any) -> str:
    count, before = export["before"]["count"], export["before"]["hash"]
    require(count > 0 or before == "0" * 64, "row 1 is not the first one")
    for row in export["rows"]:
        count += 1
        require(row["seq"] == count, f"row {count} is missing: row {row['seq']} stands there")
        if row["body"] is not None:
            computed = hashlib.sha256(f"{before}\n{row['body']}".encode()).hexdigest()
            require(computed == row["hash"], f"row {count} was changed, or one before it was removed")
        before = row["hash"]
    require(export["head"] == {"count": count, "hash": before}, f"the rows end at row {count}, not at the stated head")
    hidden = export["before"]["count"] + sum(row["body"] is None for row in export["rows"])
    return f"{count} rows, of which {hidden} are not shown, with the head {before}"


def transfers(export: Any) -> list[tuple[str, Any]]:
    """Return the intents that the export shows, each with the name of its row."""
    shown = [(f"row {row['seq']}", json.loads(row["body"])) for row in export["rows"] if row["body"] is not None]
    require(all(body["type"] in ("intent", "outcome") for _, body in shown), "a row is no intent and no outcome")
    return [(row, body) for row, body in shown if body["type"] == "intent"]


def check_receivers(export: Any, members: set[str]) -> str:
    receivers: dict[str, set[str]] = {}
    for row, body in transfers(export):
        if body["purpose"] != "export":  # a file for the site's own operator
            require(body["peer"] in members - {export["site"]}, f"{row}: {body['peer']!r} is no other member")
            receivers.setdefault(body["peer"], set()).add(body["sha256"])
    return ", ".join(f"{peer} ({len(digests)} artifacts)" for peer, digests in sorted(receivers.items())) or "none"


def normal(x: float) -> float:
    return math.erfc(-x / math.sqrt(2)) / 2


def epsilon_of(mu: float, delta: float) -> float:
    """Return the smallest epsilon of mu-GDP at this delta, by bisection, and infinity from 100 on."""
    low, high = 0.0, 100.0
    for _ in range(100):
        epsilon = (low + high) / 2
        exceeds = normal(-epsilon / mu + mu / 2) - math.exp(epsilon) * normal(-epsilon / mu - mu / 2) > delta
        low, high = (epsilon, high) if exceeds else (low, epsilon)
    return high if high < 100 else math.inf


def check_guarantee(export: Any, rules: Any) -> str:
    says, newest, bare = "nothing was spent", (0, 0, 0.0), 0
    for row, body in transfers(export):
        if (spent := body.get("spent")) is None:
            bare += "epsilon" in rules and body["purpose"] == "train" and body["kind"] != "opening"
            continue
        mu, delta, epsilon_max = spent["mu"], spent["delta"], spent["epsilon_max"]
        replayed = math.sqrt(sum(each["steps"] / each["sigma"] ** 2 for each in spent["steps"]))
        require(math.isclose(replayed, mu, rel_tol=1e-9), f"{row}: its steps give mu {replayed}, not {mu}")
        require(delta == rules.get("delta", 1e-4), f"{row}: delta {delta} is not the federation's")
        epsilon, stated = epsilon_of(mu, delta) if mu else 0.0, spent["epsilon"] or 0.0
        require(abs(epsilon - stated) <= ROUNDING, f"{row}: epsilon is {epsilon:.4f}, not {stated}")
        require(epsilon <= min(epsilon_max, rules["epsilon"]) + ROUNDING, f"{row}: epsilon {epsilon:.4f} may not leave")
        ceiling = normal(mu / math.sqrt(2))
        require(abs(ceiling - spent["auc_max"]) <= ROUNDING, f"{row}: no AUC exceeds {ceiling:.4f}, and it says less")
        order = (body["generation"], body["round"], mu)
        require(order[:2] <= newest[:2] or mu >= newest[2], f"{row}: less is spent than a round before")
        newest = max(newest, order)
        says = f"epsilon {epsilon:.4f} of {epsilon_max} (delta {delta}), no attack beyond AUC {ceiling:.4f}"
        says += f", by any {spent['colluders']} of the other sites" if "colluders" in spent else ""
    return says + (f"; {bare} transfers tell of no noise: only artifacts without a step may" if bare else "")


def check_leak(export: Any) -> str:
    highest, count = 0.0, 0
    for row, body in transfers(export):
        if (leak := body.get("leak")) is not None:
            a, b, auc = leak["members"], leak["others"], leak["auc"]
            error = math.sqrt((a + b + 1) / (12 * a * b))
            low, high = max(0.0, auc - ERRORS * error), min(1.0, auc + ERRORS * error)
            differs = max(abs(low - leak["low"]), abs(high - leak["high"]))
            require(differs <= ROUNDING, f"{row}: the interval of AUC {auc} is {low:.4f} to {high:.4f}")
            lowest, ceiling = auc - ALARM_ERRORS * error, body.get("spent", {"auc_max": 1.0})["auc_max"]
            require(lowest <= ceiling, f"{row}: AUC {auc} contradicts the guarantee's {ceiling}")
            highest, count = max(highest, auc), count + 1
    return f"{count} transfers of measured artifacts, AUC at most {highest:.4f}" if count else "nothing was measured"


def main(export_file: str, federation_file: str, *added: str) -> int:
    with open(export_file, "rb") as content, open(federation_file, "rb") as table:
        export, federation, code = json.load(content), tomllib.load(table), 0
    members = {site["name"] for site in federation["site"]}.union(added)
    for claim, check in {
        "signature": lambda: check_signature(export, federation),
        "ledger": lambda: check_chain(export),
        "receivers": lambda: check_receivers(export, members),
        "guarantee": lambda: check_guarantee(export, federation.get("privacy", {})),
        "measured leak": lambda: check_leak(export),
    }.items():
        try:
            print(f"holds  {claim}: {check()}")
        except Exception as error:  # whatever a forged file contains: its claim is wrong
            print(f"WRONG  {claim}: {str(error) or type(error).__name__}")
            code = 1
    return code


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
