"""The documents that ``--json`` prints of commands that show no records of a site.

``DOCUMENTS`` maps a command to the type of its document, as ``peer.records.documents`` does for the others. A key is
``Annotated`` where its name does not say all; ``deploy/reference.py`` writes keys, types and meanings down.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, NotRequired, TypedDict


# --- a federation and its sites ---------------------------------------------------------------------------------------
class FederationCreated(TypedDict):
    """What the founder has after ``federation create``."""

    federation: Annotated[str, "name of the federation"]
    digest: Annotated[str, "SHA-256 of the federation's agreed settings"]
    folder: Annotated[str, "the CA folder"]
    federation_toml: Annotated[str, "the file that every site gets"]
    ca_fingerprint: Annotated[str, "of the CA's key"]
    ca_days: Annotated[int, "how long the CA certificate is valid"]
    sites: Annotated[list[str], "names of the sites"]
    notes: Annotated[list[str], "settings that are allowed but have no effect"]


class CertificateAuthority(TypedDict):
    """The CA certificate in federation.toml."""

    fingerprint: Annotated[str, "of the public key"]
    days: Annotated[int, "how long the CA certificate is still valid"]


class RosterSite(TypedDict):
    """A site as federation.toml names it."""

    index: Annotated[int, "its place in the schedule"]
    name: Annotated[str, "its name"]
    address: Annotated[str | None, "where federation.toml says it is"]
    description: Annotated[str, "as federation.toml has it"]


class FederationShown(TypedDict):
    """Every setting of a federation, defaults filled in."""

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
    rounds: Annotated[int, "how many rounds there are"]
    seed: Annotated[int, "from which training seeds derive"]
    weighting: Annotated[str, "what a mean counts by"]
    quorum: Annotated[int | None, "contributors without which a slow round does not go on; null: all"]
    global_test: Annotated[bool, "whether sites evaluate each other's models"]
    evaluation_every: Annotated[int, "evaluate after each so many rounds; 0: at the end"]
    task: Annotated[Mapping[str, Any], "what is learnt"]
    stages: Annotated[Mapping[str, Any], "training stages by name"]
    schedule: Annotated[Mapping[str, Any], "how the order of a round is drawn"]
    fallback: Annotated[Mapping[str, Any], "what replaces an artifact that did not arrive"]
    pace: Annotated[Mapping[str, Any], "deadlines and limits of waiting"]
    shared_model: Annotated[Mapping[str, Any] | None, "network that all sites share"]
    beat_s: Annotated[float, "seconds between heartbeats"]
    sites: Annotated[list[RosterSite], "the roster"]


class SiteAdmitted(TypedDict):
    """What the founder certified."""

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
    fingerprint: Annotated[str, "to be compared over another channel"]
    key: Annotated[str, '"new", "kept" or "renewed"']


class SiteJoined(TypedDict):
    """The certificate that the site took from its bundle."""

    federation: Annotated[str, "name of the federation"]
    digest: Annotated[str, "SHA-256 of the federation's agreed settings"]
    site: Annotated[str, "this site"]
    folder: Annotated[str, "the site's folder"]
    fingerprint: Annotated[str, "of the public key"]
    certificate_sha256: Annotated[str, "digest of the certificate"]
    certificate_days: Annotated[int, "how long the certificate is still valid"]


class CheckFinding(TypedDict):
    """One line of the preflight."""

    subject: Annotated[str, "what was checked"]
    verdict: Annotated[str, '"ok", "warning" or "failure"']
    message: Annotated[str, "what was found"]
    remedy: Annotated[str, "what to do; empty where nothing is to do"]


class CheckResult(TypedDict):
    """Whether this site would run."""

    site: Annotated[str, "this site"]
    would_run: Annotated[bool, "no finding is a failure"]
    findings: Annotated[list[CheckFinding], "all that was checked"]


class ScalarRun(TypedDict):
    """A generation as a run of a tracker."""

    generation: Annotated[int, "generation of the site's state"]
    rounds: Annotated[int, "committed rounds"]
    scalars: Annotated[int, "how many it has"]
    finished: Annotated[bool, "whether it is over"]


class ScalarsWritten(TypedDict):
    """With `--follow` one a line whenever something was added."""

    site: Annotated[str, "this site"]
    added: Annotated[dict[str, int], "scalars by tracker"]
    runs: Annotated[list[ScalarRun], "by generation"]
    tensorboard: Annotated[NotRequired[str | None], "the folder"]
    mlflow: Annotated[NotRequired[str | None], "the store"]


# --- the ledger for auditors ------------------------------------------------------------------------------------------
class LedgerHead(TypedDict):
    """The end of the ledger's hash chain."""

    count: Annotated[int, "rows"]
    hash: Annotated[str, "of the last row"]


class WitnessHeard(TypedDict):
    """How far another site has seen the ledger."""

    file: Annotated[str, "the witness"]
    by: Annotated[str, "the site that wrote it"]
    manifests: Annotated[int, "how many it holds"]
    rows: Annotated[int, "rows that the newest of them covers"]
    generation: Annotated[int, "generation of the newest manifest"]
    round: Annotated[int, "round of the newest manifest"]


class BackupRestored(TypedDict):
    """When the site learnt that an older backup of it had been restored."""

    time: Annotated[float, "when"]
    generation: Annotated[int, "generation that the site began then"]
    reported_by: Annotated[str, "the peer that said so"]


class LedgerExtent(TypedDict):
    """How much a ledger holds."""

    rows: Annotated[int, "rows of the ledger"]
    head: Annotated[LedgerHead, "end of the chain"]
    transfers: Annotated[int, "how many there are"]
    open: Annotated[list[int], "row numbers of transfers without an outcome"]


class LedgerFindings(TypedDict):
    """What witnesses say of a ledger, and what is left open."""

    witnesses: Annotated[list[WitnessHeard], "the witnesses that were compared"]
    vouched_rows: Annotated[int | None, "a witness vouches for the first so many rows; null without one"]
    restored: Annotated[list[BackupRestored], "restored backups"]
    problems: Annotated[list[str], "contradictions"]
    unproven: Annotated[list[str], "in words what nobody vouches for"]


class LedgerVerified(LedgerExtent, LedgerFindings):
    """The ledger is whole if `problems` is empty."""

    site: Annotated[str, "the audited site"]
    federation: Annotated[str, "name of the federation"]
    digest: Annotated[str, "SHA-256 of the federation's agreed settings"]
    source: Annotated[str, "the file that was read"]
    made: Annotated[float | None, "when an exported file was made; null for the site's own ledger"]
    own_manifests: Annotated[int | None, "how many were compared; null for an exported file"]


class WitnessWritten(TypedDict):
    """The file in which a site says how far it has seen another one's ledger."""

    of: Annotated[str, "the site whose ledger it is"]
    by: Annotated[str, "this site"]
    file: Annotated[str, "the file that was written"]
    manifests: Annotated[int, "how many it holds"]


class LedgerExported(TypedDict):
    """The signed file for an auditor."""

    site: Annotated[str, "this site"]
    federation: Annotated[str, "name of the federation"]
    digest: Annotated[str, "SHA-256 of the federation's agreed settings"]
    file: Annotated[str, "the file that was written"]
    rows: Annotated[int, "rows that the file shows"]
    left_out: Annotated[int, "rows of which the file holds nothing but the hash"]
    head: Annotated[LedgerHead, "end of the chain"]


# --- data and models --------------------------------------------------------------------------------------------------
class SplitSurvey(TypedDict):
    """What one list of a datalist holds."""

    samples: Annotated[int, "how many"]
    subjects: Annotated[int, "how many different ones"]
    unnamed: Annotated[int, "samples without a subject, among which leakage cannot be seen"]
    classes: Annotated[dict[str, int], "samples of each class, or label maps in which a label occurs"]
    shapes: Annotated[dict[str, int], "images by shape"]
    labels: Annotated[int, "label files"]
    label_shapes: Annotated[dict[str, int], "label files by shape"]


class DatalistSurvey(TypedDict):
    """What a datalist holds, and what is wrong with it."""

    datalist: Annotated[str, "the file"]
    splits: Annotated[dict[str, SplitSurvey], "`training` and `test`"]
    unlabelled: Annotated[int, "test entries without a label, which are not evaluated"]
    problems: Annotated[list[str], "what keeps a site from training on it"]


class CountComparison(TypedDict):
    """A number that the publishers state, and the one that was found."""

    what: Annotated[str, "what is counted"]
    expected: Annotated[int, "as published"]
    found: Annotated[int, "in the folder"]


class DatasetPrepared(TypedDict):
    """What was prepared; the keys behind `sites` depend on the set, and further ones describe it."""

    folder: Annotated[str, "the folder that was filled"]
    sites: Annotated[NotRequired[Mapping[str, Any]], "samples by site and split"]
    task: Annotated[NotRequired[str], "what is learnt"]
    dropped: Annotated[NotRequired[dict[str, int]], "samples that were left out, by reason"]
    floors: Annotated[NotRequired[Mapping[str, Any]], "of a packaged set: what trivial predictors reach, by site"]
    kind: Annotated[NotRequired[str], "of a published set: the kind of its task"]
    counts: Annotated[NotRequired[list[CountComparison]], "of a published set"]
    warnings: Annotated[NotRequired[list[str]], "of a published set"]
    reference: Annotated[NotRequired[str], "of a published set: whom to cite"]
    licence: Annotated[NotRequired[str], "of a published set"]


class ModelDescription(TypedDict):
    """A network; the keys from `problem` on are there with `--task`, their values null where `problem` is not."""

    name: Annotated[str, "its name"]
    family: Annotated[str, "the task that it is for"]
    spatial_dims: Annotated[list[int], "dimensions in which it exists"]
    hyper: Annotated[Mapping[str, Any], "hyper-parameters"]
    problem: Annotated[NotRequired[str | None], "why it does not fit the task"]
    parameters: Annotated[NotRequired[int | None], "how many it has"]
    state_values: Annotated[NotRequired[int | None], "parameters and buffers"]
    multiply_accumulates: Annotated[NotRequired[int | None], "of one sample; null without an input size, as all shapes"]
    prediction: Annotated[NotRequired[list[int] | None], "its shape"]
    taps: Annotated[NotRequired[list[list[int]] | None], "shapes of the compared features"]
    bottleneck: Annotated[NotRequired[list[int] | None], "its shape"]
    penultimate: Annotated[NotRequired[list[int] | None], "its shape"]
    bytes: Annotated[NotRequired[dict[str, int] | None], "of the tensors of an artifact, by kind"]


class ModelList(TypedDict):
    """The networks, and the task at which they were measured."""

    task: Annotated[Mapping[str, Any] | None, "kind and sizes of the task; null without `--task`"]
    input_size: Annotated[list[int] | None, "of one sample"]
    models: Annotated[list[ModelDescription], "the networks"]


class StageDescription(TypedDict):
    """The defaults of a training stage."""

    unit: Annotated[str, '"step" or "epoch"']
    count: Annotated[int, "how many in a round"]
    learning_rate: Annotated[float, "Adam's"]
    weight_decay: Annotated[float, "Adam's"]


class ParameterDescription(TypedDict):
    """A parameter of a method, as `[method]` takes it."""

    default: Annotated[Any, "value where the key is left out"]
    meaning: Annotated[str, "what it does"]
    minimum: Annotated[float | None, "least value"]
    maximum: Annotated[float | None, "largest value"]
    choices: Annotated[Any, "the values that it may have"]


class MethodDescription(TypedDict):
    """What a method exchanges, and how it trains."""

    name: Annotated[str, "its name"]
    package: Annotated[NotRequired[str], "the package that a method comes with, if it is not built in"]
    source: Annotated[str, "the paper"]
    pattern: Annotated[str, "who sends to whom"]
    artifact: Annotated[str | None, "what is sent"]
    state: Annotated[str, "what an artifact holds, in words; empty where nothing is sent"]
    never_leaves: Annotated[list[str], "kinds of artifact that no setting lets out"]
    phases: Annotated[list[str], "of a round, in order"]
    shared_model: Annotated[str, "whether all sites share a network: `beside` their own, as `itself`, or `maybe`"]
    stages: Annotated[dict[str, StageDescription], "by name"]
    parameters: Annotated[dict[str, ParameterDescription], "by name"]


class EquivalenceCheck(TypedDict):
    """The exported file beside the site's own network, on test images."""

    what: Annotated[str, "what was compared"]
    difference: Annotated[float, "the largest"]
    tolerance: Annotated[float, "the difference up to which it passes"]
    samples: Annotated[int, "test images"]
    source: Annotated[str, "where the test images come from"]


class ModelExported(TypedDict):
    """What was exported, and whose networks are in it."""

    site: Annotated[str, "this site"]
    generation: Annotated[int, "generation of the site's state"]
    round: Annotated[int, "last round of the model"]
    task: Annotated[str, "kind of the task"]
    format: Annotated[str, "`bundle`, `pt2` or `onnx`"]
    out: Annotated[str, "where it was written"]
    card: Annotated[str, "the model card"]
    sha256: Annotated[str, "of a folder that of its `sha256sum` list by name"]
    bytes: Annotated[int, "size of the file"]
    network: Annotated[str, "name of the network"]
    parameters: Annotated[int, "how many the network has"]
    included: Annotated[list[str], "other sites whose networks are in it"]
    left_out: Annotated[dict[str, str], "the reason by site"]
    checks: Annotated[list[EquivalenceCheck], "comparisons with the site's own network"]
    licence: Annotated[str, "as the model card says it"]


class Prediction(TypedDict):
    """Of one input: its class, or the file of its label map or larger image."""

    file: Annotated[str, "the input"]
    output: Annotated[NotRequired[str], "the file that was written"]
    probabilities: Annotated[NotRequired[list[float]], "one a class"]


class SkippedInput(TypedDict):
    """An input that could not be read."""

    file: Annotated[str, "the input"]
    reason: Annotated[str, "why"]


class PredictionsWritten(TypedDict):
    """What was predicted, by which model."""

    site: Annotated[str, "the site whose model it is"]
    generation: Annotated[int, "generation of the site's state"]
    round: Annotated[int, "last round of the model"]
    task: Annotated[str, "kind of the task"]
    model: Annotated[NotRequired[str], "with `--model`"]
    out: Annotated[str, "the CSV file or the folder"]
    predictions: Annotated[list[Prediction], "for classes each has also `class`"]
    skipped: Annotated[list[SkippedInput], "inputs that could not be read"]


# --- research ---------------------------------------------------------------------------------------------------------
class DemoMethod(TypedDict):
    """One federation of the demonstration."""

    digest: Annotated[str, "digest of its federation"]
    home: Annotated[str, "the state folder of its sites"]
    sites: Annotated[dict[str, Mapping[str, Any]], "figures by site"]
    matrix: Annotated[Mapping[str, Any], "every site's model on every site's test data"]


class DemoResult(TypedDict):
    """The demonstration's table."""

    folder: Annotated[str, "all that was made"]
    study: Annotated[str, "which data and networks"]
    title: Annotated[str, "what it is"]
    metric: Annotated[str, "the main metric"]
    differs: Annotated[str, "from the papers"]
    size: Annotated[Mapping[str, Any], "rounds, steps and seed"]
    data: Annotated[Mapping[str, Any], "summary of the prepared data"]
    methods: Annotated[dict[str, DemoMethod], "by name"]
    seconds: Annotated[float, "how long it took"]


class RunOutcome(TypedDict):
    """One run of an experiment."""

    id: Annotated[str, "names its folder"]
    finished: Annotated[bool, "whether it is over"]
    failed: Annotated[str | None, "the reason"]


class SimulationResult(TypedDict):
    """Which runs of an experiment are finished."""

    out: Annotated[str, "folder of results"]
    runs: Annotated[list[RunOutcome], "all runs of the experiment"]


class ReportRow(TypedDict):
    """A row as it is shown."""

    label: Annotated[str, "name of the row"]
    published: Annotated[bool, "the paper's figures"]
    cells: Annotated[list[str], "one a column"]
    ranks: Annotated[list[int], "1 the best of its column, 2 the second, 0 neither"]


class ReportTable(TypedDict):
    """A table as it is shown."""

    title: Annotated[str, "heading"]
    columns: Annotated[list[str], "their headings"]
    rows: Annotated[list[ReportRow], "the rows"]


class ReportSetting(TypedDict):
    """The results of one partition with one set of networks."""

    partition: Annotated[str, "its name"]
    models: Annotated[str, "name of the set of networks"]
    methods: Annotated[dict[str, Mapping[str, Any]], "by metric and method the means of Local and Global Test"]
    tables: Annotated[list[ReportTable], "as they are shown"]


class ReportWritten(TypedDict):
    """Where the report is, and its main tables as numbers."""

    folder: Annotated[str, "the folder of runs"]
    title: Annotated[str, "of the experiment"]
    page: Annotated[str, "the HTML page"]
    text: Annotated[str, "the Markdown file"]
    files: Annotated[list[str], "all that was written"]
    runs: Annotated[int, "how many"]
    missing: Annotated[list[str], "runs that are not finished"]
    notes: Annotated[list[str], "what could not be shown"]
    metric: Annotated[str, "the main metric"]
    over: Annotated[str, "what the means are over"]
    results: Annotated[list[ReportSetting], "by setting"]


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
    "site join": SiteJoined,
    "check": CheckResult,
    "scalars": ScalarsWritten,
    "egress verify": LedgerVerified,
    "egress witness": WitnessWritten,
    "egress export": LedgerExported,
    "data inspect": DatalistSurvey,
    "data validate": DatalistSurvey,
    "data prepare": DatasetPrepared,
    "models": ModelList,
    "methods": list[MethodDescription],
    "predict": PredictionsWritten,
    "export": ModelExported,
    "simulate": SimulationResult,
    "report": ReportWritten,
    "demo": DemoResult,
    "help": list[HelpPage],
}
"""By command, the type of the document that ``--json`` prints: a record or a list of records."""
