"""The documents that commands print with ``--json``, except those with records of a site.

``DOCUMENTS`` maps a command to the type of its document; ``peer.documents.registry`` names the
modules that have the others.
Each key is ``Annotated`` with its meaning: ``deploy/reference.py`` generates a page of keys, types
and meanings.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, NotRequired, TypedDict

from peer.documents.models import ModelLayers, ModelList


# --- a federation and its sites ---------------------------------------------------------------------------------------
class FederationCreated(TypedDict):
    """The CA folder and federation.toml that ``federation create`` made."""

    federation: Annotated[str, "name of the federation"]
    digest: Annotated[str, "SHA-256 of the federation's agreed settings"]
    folder: Annotated[str, "the CA folder"]
    federation_toml: Annotated[str, "the file that every site gets"]
    ca_fingerprint: Annotated[str, "of the CA's key"]
    ca_days: Annotated[int, "days until the CA certificate expires"]
    sites: Annotated[list[str], "names of the sites"]
    notes: Annotated[list[str], "settings that are allowed but have no effect"]


class CertificateAuthority(TypedDict):
    """The CA certificate in federation.toml."""

    fingerprint: Annotated[str, "of the public key"]
    days: Annotated[int, "days until the CA certificate expires"]


class RosterSite(TypedDict):
    """A site in federation.toml."""

    index: Annotated[int, "its place in the schedule"]
    name: Annotated[str, "its name"]
    address: Annotated[str | None, "its address in federation.toml"]
    description: Annotated[str, "as federation.toml has it"]


class FederationShown(TypedDict):
    """Every setting of a federation, with defaults."""

    federation: Annotated[str, "name of the federation"]
    digest: Annotated[str, "SHA-256 of the federation's agreed settings"]
    roster_digest: Annotated[str, "SHA-256 of the sites' names"]
    ca: Annotated[CertificateAuthority | None, "null in a draft"]
    method: Annotated[str, "name of the method"]
    pattern: Annotated[str, "who sends to whom"]
    artifact: Annotated[str | None, "what is sent"]
    phases: Annotated[list[str], "of a round, in order"]
    parameters: Annotated[Mapping[str, Any], "the method's"]
    description: Annotated[str, "as federation.toml has it"]
    rounds: Annotated[int, "number of rounds"]
    seed: Annotated[int, "from which training seeds derive"]
    weighting: Annotated[str, "weights of a mean: `uniform` or `samples`"]
    quorum: Annotated[int | None, "contributors that suffice for a slow round to go on; null: all"]
    global_test: Annotated[bool, "whether sites evaluate each other's models"]
    evaluation_every: Annotated[int, "rounds between two evaluations; 0: at the end only"]
    image_axes: Annotated[str, "the order of a picture's axes"]
    task: Annotated[Mapping[str, Any], "the learning task"]
    stages: Annotated[Mapping[str, Any], "training stages by name"]
    aggregate: Annotated[Mapping[str, Any], "how sites average, whether within bounds, and whether under masks"]
    schedule: Annotated[Mapping[str, Any], "how the order of a round is drawn"]
    fallback: Annotated[Mapping[str, Any], "what replaces an artifact that did not arrive"]
    pace: Annotated[Mapping[str, Any], "deadlines and limits of waiting"]
    shared_model: Annotated[Mapping[str, Any] | None, "network that all sites share"]
    beat_s: Annotated[float, "seconds between heartbeats"]
    sites: Annotated[list[RosterSite], "the roster"]


class RelayCertified(TypedDict):
    """What `federation admit --relay` wrote."""

    certificate: Annotated[str, "the certificate to send to the relay"]
    fingerprint: Annotated[str, "of the relay's public key"]
    certificate_sha256: Annotated[str, "SHA-256 of the certificate"]
    not_after: Annotated[str, "until when it is valid"]


class SiteAdmitted(TypedDict):
    """The certificate that the founder issued, and the bundle with it."""

    site: Annotated[str, "the admitted site"]
    bundle: Annotated[str, "the file that the site joins"]
    fingerprint: Annotated[str, "of the public key"]
    certificate_sha256: Annotated[str, "digest of the certificate"]
    not_after: Annotated[str, "when the certificate expires"]
    renewal: Annotated[bool, "the same key as before"]
    replaced: Annotated[list[str], "digests that every site should add to refuse_certificates"]


class SiteInitialised(TypedDict):
    """The site's folder, key and signing request."""

    federation: Annotated[str, "name of the federation"]
    digest: Annotated[str, "SHA-256 of the federation's agreed settings"]
    site: Annotated[str, "this site"]
    folder: Annotated[str, "the site's folder"]
    site_toml: Annotated[str, "the file to fill in"]
    request: Annotated[str, "the file that the founder admits"]
    fingerprint: Annotated[str, "of the public key, to compare over another channel"]
    key: Annotated[str, '"new", "kept" or "renewed"']


class SiteJoined(TypedDict):
    """The certificate that the site has from its bundle."""

    federation: Annotated[str, "name of the federation"]
    digest: Annotated[str, "SHA-256 of the federation's agreed settings"]
    site: Annotated[str, "this site"]
    folder: Annotated[str, "the site's folder"]
    fingerprint: Annotated[str, "of the public key"]
    certificate_sha256: Annotated[str, "digest of the certificate"]
    certificate_days: Annotated[int, "days until the certificate expires"]


class CheckFinding(TypedDict):
    """One finding of `check`."""

    subject: Annotated[str, "what was checked"]
    verdict: Annotated[str, '"ok", "warning" or "failure"']
    message: Annotated[str, "the result of the check"]
    remedy: Annotated[str, 'what to do; empty for "ok"']


class ConfigurationChange(TypedDict):
    """A key of site.toml that `site configure` changes."""

    key: Annotated[str, "its dotted name"]
    before: Annotated[Any, "its former value; null: it had none"]
    after: Annotated[Any, "its new value; null: it is removed"]


class SiteConfigured(TypedDict):
    """What `site configure` changed, and how the trial went."""

    site: Annotated[str, "this site"]
    site_toml: Annotated[str, "the file"]
    changes: Annotated[list[ConfigurationChange], "by key"]
    diff: Annotated[str, "the change of the file, as a unified diff"]
    tried: Annotated[bool, "whether a worker tried it"]
    findings: Annotated[list[CheckFinding], "of the trial"]
    written: Annotated[bool, "whether the file was changed"]


class CheckResult(TypedDict):
    """Whether this site would run."""

    site: Annotated[str, "this site"]
    would_run: Annotated[bool, "no finding is a failure"]
    findings: Annotated[list[CheckFinding], "the findings, in order"]


class ScalarRun(TypedDict):
    """A generation as a run of a tracker."""

    generation: Annotated[int, "generation of the site's state"]
    rounds: Annotated[int, "committed rounds"]
    scalars: Annotated[int, "number of its scalars"]
    finished: Annotated[bool, "whether the site left after its last round"]


class ScalarsWritten(TypedDict):
    """The scalars that were written.

    With `--follow`, a document a line for each time that some were added.
    """

    site: Annotated[str, "this site"]
    added: Annotated[dict[str, int], "scalars by tracker"]
    runs: Annotated[list[ScalarRun], "by generation"]
    tensorboard: Annotated[NotRequired[str | None], "the folder"]
    mlflow: Annotated[NotRequired[str | None], "the store"]


# --- the ledger for auditors ------------------------------------------------------------------------------------------
class LedgerHead(TypedDict):
    """The head of the ledger's hash chain."""

    count: Annotated[int, "rows"]
    hash: Annotated[str, "of the last row"]


class WitnessCompared(TypedDict):
    """A witness file of another site, and how much of the ledger it covers."""

    file: Annotated[str, "the witness file"]
    by: Annotated[str, "the site that wrote it"]
    manifests: Annotated[int, "number of manifests in it"]
    rows: Annotated[int, "rows that the newest of them covers"]
    generation: Annotated[int, "generation of the newest manifest"]
    round: Annotated[int, "round of the newest manifest"]


class BackupRestored(TypedDict):
    """An older backup of the site that was restored."""

    time: Annotated[float, "when the site learnt of it"]
    generation: Annotated[int, "generation that the site began then"]
    reported_by: Annotated[str, "the peer that reported it, or this site if its operator ran `restore`"]


class LedgerExtent(TypedDict):
    """The size of a ledger."""

    rows: Annotated[int, "rows of the ledger"]
    head: Annotated[LedgerHead, "head of the chain"]
    transfers: Annotated[int, "number of transfers"]
    open: Annotated[list[int], "row numbers of transfers without an outcome"]


class LedgerFindings(TypedDict):
    """The faults of a ledger, and what nothing proves."""

    witnesses: Annotated[list[WitnessCompared], "the witnesses that were compared"]
    vouched_rows: Annotated[int | None, "number of first rows that a witness vouches for; null without one"]
    restored: Annotated[list[BackupRestored], "restored backups"]
    problems: Annotated[list[str], "contradictions"]
    unproven: Annotated[list[str], "statements that nothing proves"]


class LedgerVerified(LedgerExtent, LedgerFindings):
    """The ledger is whole if `problems` is empty."""

    site: Annotated[str, "the audited site"]
    federation: Annotated[str, "name of the federation"]
    digest: Annotated[str, "SHA-256 of the federation's agreed settings"]
    source: Annotated[str, "the file that was read"]
    made: Annotated[float | None, "when an exported file was made; null for the site's own ledger"]
    own_manifests: Annotated[int | None, "number of manifests compared; null for an exported file"]


class WitnessWritten(TypedDict):
    """The file with the manifests that a site received from another one."""

    of: Annotated[str, "the site whose ledger it is"]
    by: Annotated[str, "this site"]
    file: Annotated[str, "the file that was written"]
    manifests: Annotated[int, "number of manifests in it"]


class LedgerExported(TypedDict):
    """The signed file for an auditor."""

    site: Annotated[str, "this site"]
    federation: Annotated[str, "name of the federation"]
    digest: Annotated[str, "SHA-256 of the federation's agreed settings"]
    file: Annotated[str, "the file that was written"]
    rows: Annotated[int, "rows that the file shows"]
    left_out: Annotated[int, "rows of which the file has the hash only"]
    head: Annotated[LedgerHead, "head of the chain"]


class SiteBackedUp(TypedDict):
    """A backup of a site in one file."""

    site: Annotated[str, "this site"]
    federation: Annotated[str, "name of the federation"]
    file: Annotated[str, "the file that was written"]
    bytes: Annotated[int, "its size"]
    files: Annotated[int, "number of files in it"]
    generation: Annotated[int, "generation of the site's state; 0 before its first start"]
    round: Annotated[int, "last committed round in it"]
    ledger_rows: Annotated[int, "rows of the egress ledger in it"]
    private_key: Annotated[bool, "whether it has the private key and the round key"]


class SiteRestored(TypedDict):
    """A site's folder that was made from a backup."""

    site: Annotated[str, "this site"]
    federation: Annotated[str, "name of the federation"]
    folder: Annotated[str, "the site's folder"]
    time: Annotated[int, "when the backup was written"]
    round: Annotated[int, "last committed round in the backup"]
    generation: Annotated[int, "generation that the site goes on as; 0 if it had never run"]
    lost_rounds: Annotated[
        list[int] | None, "first and last committed round that the replaced folder had and the backup lacks"
    ]
    aside: Annotated[str | None, "where the replaced folder is now"]
    ledger_kept: Annotated[bool, "whether the newer ledger of the replaced folder was kept"]
    private_key: Annotated[bool, "whether the site has its keys"]
    broken: Annotated[list[str], "files of the replaced folder's `membership` that cannot be read"]


class Equivocation(TypedDict):
    """A proof that a site signed two artifacts for one round."""

    site: Annotated[str, "the site whose key signed both"]
    generation: Annotated[int, "generation of that site's state"]
    round: Annotated[int, "round of both artifacts"]
    kind: Annotated[str, "kind of both artifacts"]
    owner: Annotated[str, "the site whose model it is"]
    evaluation: Annotated[bool, "whether they were lent to be measured"]
    sha256: Annotated[list[str], "the two digests"]


class EvidenceShown(TypedDict):
    """The proofs that a site holds, or those in a file."""

    source: Annotated[str, "the site's folder, or the file that was verified"]
    proofs: Annotated[list[Equivocation], "each was verified with the federation's CA certificate"]
    exported: Annotated[str | None, "the file that was written; null without `--export`"]


# --- data and models --------------------------------------------------------------------------------------------------
class SplitSurvey(TypedDict):
    """The content of one list of a datalist."""

    samples: Annotated[int, "number of samples"]
    subjects: Annotated[int, "number of different subjects"]
    unnamed: Annotated[int, "samples without a subject, for which leakage cannot be detected"]
    classes: Annotated[dict[str, int], "samples of each class, or label maps in which a label occurs"]
    shapes: Annotated[dict[str, int], "images by shape"]
    orientations: Annotated[dict[str, int], "volumes by the directions of their axes, where the files say them"]
    spacings: Annotated[dict[str, int], "images by the distances of their voxels in mm, where the files say them"]
    labels: Annotated[int, "label files"]
    label_shapes: Annotated[dict[str, int], "label files by shape"]


class ColumnSurvey(TypedDict):
    """The values of a table's column in both lists together."""

    name: Annotated[str, "the federation's name of the column"]
    kind: Annotated[str, '"number", "category" or "flag"']
    unit: Annotated[str, "of a number"]
    values: Annotated[int, "rows with a value"]
    missing: Annotated[int, "rows without one, or with one that does not fit"]
    lowest: Annotated[float | None, "of a number"]
    median: Annotated[float | None, "of a number"]
    highest: Annotated[float | None, "of a number"]
    levels: Annotated[dict[str, int], "of a category or a flag: rows by value"]


class DatalistSurvey(TypedDict):
    """The content of a datalist, and its problems."""

    datalist: Annotated[str, "the file"]
    splits: Annotated[dict[str, SplitSurvey], "`training` and `test`"]
    class_names: Annotated[dict[str, str], "by number, the names in the list's key `labels`"]
    columns: Annotated[list[ColumnSurvey], "of a table"]
    unlabelled: Annotated[int, "test entries without a label, which are not evaluated"]
    unused_keys: Annotated[dict[str, int], "keys of entries that are not used, with the number of entries"]
    problems: Annotated[list[str], "reasons why a site cannot train on it"]
    warnings: Annotated[list[str], "what to look at before training"]


class CountComparison(TypedDict):
    """A number that the publishers state, and the number in the folder."""

    what: Annotated[str, "what is counted"]
    expected: Annotated[int, "as published"]
    found: Annotated[int, "in the folder"]


class DatasetPrepared(TypedDict):
    """A prepared data set; the keys after `sites` depend on the set, which may add further ones."""

    folder: Annotated[str, "the folder that was filled"]
    sites: Annotated[NotRequired[Mapping[str, Any]], "samples by site and split"]
    task: Annotated[NotRequired[str], "the learning task"]
    dropped: Annotated[NotRequired[dict[str, int]], "samples that were left out, by reason"]
    floors: Annotated[NotRequired[Mapping[str, Any]], "of a packaged set: metrics of trivial predictors, by site"]
    kind: Annotated[NotRequired[str], "of a published set: the kind of its task"]
    counts: Annotated[NotRequired[list[CountComparison]], "of a published set"]
    warnings: Annotated[NotRequired[list[str]], "of a published set"]
    reference: Annotated[NotRequired[str], "of a published set: the paper to cite"]
    licence: Annotated[NotRequired[str], "of a published set"]


class StageDescription(TypedDict):
    """The defaults of a training stage."""

    unit: Annotated[str, '"step" or "epoch"']
    count: Annotated[int, "number in a round"]
    learning_rate: Annotated[float, "Adam's"]
    weight_decay: Annotated[float, "Adam's"]
    final_rate: Annotated[float, "the share of the learning rate that is left in the last round"]


class ParameterDescription(TypedDict):
    """A parameter of a method: a key of `[method]`."""

    default: Annotated[Any, "value without the key"]
    meaning: Annotated[str, "what it does"]
    minimum: Annotated[float | None, "least value"]
    maximum: Annotated[float | None, "largest value"]
    choices: Annotated[Any, "the permitted values"]


class MethodDescription(TypedDict):
    """The exchange and the training of a method."""

    name: Annotated[str, "its name"]
    package: Annotated[NotRequired[str], "the package that a method comes with, if it is not built in"]
    source: Annotated[str, "the paper"]
    pattern: Annotated[str, "who sends to whom"]
    artifact: Annotated[str | None, "what is sent"]
    state: Annotated[str, "content of an artifact, in words; empty where nothing is sent"]
    never_leaves: Annotated[list[str], "kinds of artifact that no setting permits to leave"]
    noised: Annotated[
        str,
        "what trains with noise in a private federation, with the defaults: `only what is sent`, or also private "
        "parts by name; or `no:` and why no noise makes private what is sent",
    ]
    phases: Annotated[list[str], "of a round, in order"]
    last_round: Annotated[list[str], "phases of the last round, if it has others"]
    shared_model: Annotated[str, "whether all sites share a network: `beside` their own, as `itself`, or `maybe`"]
    stages: Annotated[dict[str, StageDescription], "by name"]
    parameters: Annotated[dict[str, ParameterDescription], "by name"]


class EquivalenceCheck(TypedDict):
    """The exported model compared with the site's own network, on test images."""

    what: Annotated[str, "what was compared"]
    difference: Annotated[float, "the largest difference"]
    tolerance: Annotated[float, "the largest difference that passes"]
    samples: Annotated[int, "number of test images"]
    source: Annotated[str, "where the test images come from"]


class ModelExported(TypedDict):
    """The exported model, and the sites whose networks are in it."""

    site: Annotated[str, "this site"]
    generation: Annotated[int, "generation of the site's state"]
    round: Annotated[int, "last round of the model"]
    choice: Annotated[str, "why it is this round: empty for the last, else the metric by which it is the best"]
    task: Annotated[str, "kind of the task"]
    format: Annotated[str, "`bundle`, `pt2` or `onnx`"]
    out: Annotated[str, "where it was written"]
    card: Annotated[str, "the model card"]
    sha256: Annotated[str, "of a folder: the SHA-256 of its `sha256sum` list by name"]
    bytes: Annotated[int, "size of the file"]
    network: Annotated[str, "name of the network"]
    parameters: Annotated[int, "number of the network's parameters"]
    included: Annotated[list[str], "other sites whose networks are in it"]
    left_out: Annotated[dict[str, str], "the reason by site"]
    checks: Annotated[list[EquivalenceCheck], "comparisons with the site's own network"]
    licence: Annotated[str, "the model card's"]


class Prediction(TypedDict):
    """The prediction for one input: its class, or the file of its label map or larger image."""

    file: Annotated[str, "the input"]
    output: Annotated[NotRequired[str], "the file that was written"]
    class_name: Annotated[NotRequired[str], "the name of the likeliest class, where federation.toml names them"]
    probabilities: Annotated[NotRequired[list[float]], "one for each class or label"]
    value: Annotated[NotRequired[float], "the number, in the federation's unit"]
    survival: Annotated[NotRequired[list[float]], "the probability of no event until each of `times`"]
    median: Annotated[NotRequired[float | None], "the time at which survival is a half, if it comes to that"]


class SkippedInput(TypedDict):
    """An input that could not be read."""

    file: Annotated[str, "the input"]
    reason: Annotated[str, "why it could not be read"]


class PredictionsWritten(TypedDict):
    """The predictions, and the model that made them."""

    site: Annotated[str, "the site whose model it is"]
    generation: Annotated[int, "generation of the site's state"]
    round: Annotated[int, "last round of the model"]
    choice: Annotated[NotRequired[str], "why this round: empty for the last, else the metric by which it is best"]
    task: Annotated[str, "kind of the task"]
    model: Annotated[NotRequired[str], "with `--model`"]
    out: Annotated[str, "the CSV file or the folder"]
    predictions: Annotated[list[Prediction], "for classes each has also `class`"]
    skipped: Annotated[list[SkippedInput], "inputs that could not be read"]


# --- research ---------------------------------------------------------------------------------------------------------
class DemoMethod(TypedDict):
    """One method of the demonstration: a federation of daemons, or the pooled bound."""

    digest: Annotated[NotRequired[str], "digest of its federation; the pooled bound is none"]
    home: Annotated[NotRequired[str], "the state folder of its sites; the pooled bound has none"]
    sites: Annotated[dict[str, Mapping[str, Any]], "figures by site"]
    matrix: Annotated[Mapping[str, Any], "every site's model on every site's test data"]


class DemoGain(TypedDict):
    """A method against training alone: mean over the sites, in the metric's own unit."""

    gain: Annotated[float | None, "the method minus `local`"]
    room: Annotated[NotRequired[float | None], "the pooled bound minus `local`"]
    share: Annotated[NotRequired[float | None], "gain divided by room; null where there is hardly any room"]


class DemoInterval(TypedDict):
    """A method at a site, over splits into training and test samples; an interval is Student's, of 95 %."""

    splits: Annotated[int, "in how many it is defined"]
    mean: Annotated[float | None, "mean over them"]
    low: Annotated[float | None, "lower end of the mean's interval"]
    high: Annotated[float | None, "upper end of the mean's interval"]
    gain: Annotated[float | None, "mean difference from `local` on the same splits"]
    gain_low: Annotated[float | None, "lower end of the difference's interval"]
    gain_high: Annotated[float | None, "upper end of the difference's interval"]


class DemoSplits(TypedDict):
    """The methods over several splits, in the simulator; the splits share samples, so that intervals are too narrow."""

    folder: Annotated[str, "folder of the experiment, for `mhfl-peer report`"]
    seeds: Annotated[list[int], "a seed for each split"]
    metrics: Annotated[
        dict[str, dict[str, dict[str, dict[str, DemoInterval]]]], "by metric, test (`local`, `global`), method and site"
    ]


class DemoResult(TypedDict):
    """The demonstration's table."""

    folder: Annotated[str, "folder with all files"]
    study: Annotated[str, "name of the data and networks"]
    title: Annotated[str, "title of the study"]
    metric: Annotated[str, "the main metric"]
    differs: Annotated[str, "differences from the papers"]
    size: Annotated[Mapping[str, Any], "rounds, steps, seed and learning rate"]
    data: Annotated[Mapping[str, Any], "samples of each site, and floors"]
    methods: Annotated[dict[str, DemoMethod], "by name; `centralised` is the pooled bound"]
    gains: Annotated[dict[str, dict[str, DemoGain]], "by test (`local`, `global`) and method"]
    splits: Annotated[DemoSplits | None, "the same over several splits; null with `--splits 1`"]
    conclusion: Annotated[str, "what joining gave each site"]
    picture: Annotated[str, "the HTML page with learning curves and visits"]
    seconds: Annotated[float, "duration"]


class HelpPage(TypedDict):
    """A page, or the help of a command."""

    topic: Annotated[str, "its name, or the words of the command"]
    title: Annotated[str, "its heading"]
    text: Annotated[str, "the whole text"]


DOCUMENTS: Mapping[str, Any] = {
    "federation create": FederationCreated,
    "federation show": FederationShown,
    "federation admit": SiteAdmitted,
    "site init": SiteInitialised,
    "site configure": SiteConfigured,
    "site join": SiteJoined,
    "check": CheckResult,
    "backup": SiteBackedUp,
    "restore": SiteRestored,
    "scalars": ScalarsWritten,
    "egress verify": LedgerVerified,
    "egress witness": WitnessWritten,
    "egress export": LedgerExported,
    "evidence": EvidenceShown,
    "data validate": DatalistSurvey,
    "data prepare": DatasetPrepared,
    "models": ModelList,
    "models --layers": ModelLayers,
    "methods": list[MethodDescription],
    "predict": PredictionsWritten,
    "export": ModelExported,
    "demo": DemoResult,
    "help": list[HelpPage],
}
"""By command, the type of the document that ``--json`` prints: a record or a list of records."""
