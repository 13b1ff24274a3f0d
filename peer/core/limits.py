"""Every limit and deadline on what another site controls, with its unit and its reason."""

from __future__ import annotations

PROTOCOL_VERSION = 1  # the lowest version that this program speaks
PROTOCOL_VERSION_MAX = 1  # and the highest; a greeting lists further abilities as features
FEATURES_MAX = 64  # names in a greeting
FEATURE_BYTES_MAX = 32
CLASS_NAMES_MAX = 1024  # classes whose names a greeting compares
ROUND_CLAIM_BYTES_MAX = 256  # two numbers, a digest and a site's name
CHUNK_BYTES = 1 << 20  # one message of an artifact stream; larger chunks gained nothing on loopback, smaller ones cost
STREAM_WINDOW_BYTES = 4 << 20  # sent ahead of a receiver's slow disk; 100 MB/s over a line with a round trip of 40 ms
STREAM_WINDOW_BYTES_MIN = 128 << 10  # of one among many streams: 31 of them carry as much as one of 4 MiB
MESSAGE_BYTES_MAX = CHUNK_BYTES + (64 << 10)  # a chunk and its envelope; no other message needs more
MANIFEST_BYTES_MAX = 1 << 20  # 10,000 tensor names of 60 bytes still fit in one message
ARTIFACT_BYTES_MAX = 8 << 30  # twice the largest network that a hospital trains today
RECEIVED_RATIO_MAX = 64.0  # a ResNet-101 beside a MobileNet of a quarter of its width
RECEIVED_BYTES_FLOOR = 256 << 20  # however small the own model: a ResNet-101 and its moments fit in any worker
RECEIVED_OPERATIONS_FLOOR = 10**11  # multiply-accumulates for one sample, some seconds on one core
LAYERS_BUILT_MAX = 4000  # of a received description, containers included; a DenseNet-201 has 815
BUILD_S_MAX = 20.0  # a DenseNet-201 takes 0.6 s without weights
TENSORS_MAX = 10_000  # ResNet-101 with buffers has 626
TENSOR_NAME_BYTES_MAX = 256  # the deepest MONAI name seen has 74
TENSOR_DIMS_MAX = 8  # batch of volumes in several channels has 5
SPEC_BYTES_MAX = 64 << 10  # a model description is names and numbers, never weights
SAFETENSORS_HEADER_BYTES_MAX = 4 << 20  # 10,000 entries of 400 bytes; the format itself allows 100 MB
DISK_RESERVE_BYTES = 32 << 20  # no artifact takes these: journal, ledger and logs of a thousand rounds still fit
TEXT_BYTES_MAX = 1024  # a reason or phase that a peer reports; it is shown, never parsed
COUNT_MAX = 1 << 53  # the largest count that every reader of JSON keeps exact
NUMBER_CONFIGURED_MAX = 1_000_000_000  # of a count, or of seconds: 30 years; more is a typing mistake
SECONDS_CONFIGURED_MIN = 1e-3  # shorter waits would only keep the processor busy
LEARNING_RATE_MAX = 1000.0  # methods that scale rates by layer use tens
STEPS_MAX = 1 << 40  # optimiser steps of a circulating model: 30,000 years at one a second
CONNECTIONS_MAX = 512  # before TLS, in all, of up to 64 sites; one costs the daemon some 50 KB of memory
CONNECTIONS_PER_PEER_RESERVED = 4  # calls, artifacts, lent models, and one that replaces another of them
CONNECTIONS_CONFIGURED_MAX = 65_536  # 3 GB of memory
DIALLED_PER_PEER_MAX = 3  # open files for this site's own connections to a peer
CONNECTIONS_PER_PEER_MAX = (
    8  # one channel, one that is replaced, `check`, and what a cut line leaves until it is noticed
)
UNKNOWN_CONNECTIONS_PER_ADDRESS_MAX = 32  # and one for each site: before a peer's first call, a second after it dials
FIRST_CALL_BYTES_MAX = 192 << 10  # a greeting with the proof of a long manifest (SHOWN_BYTES_MAX) and a handshake
FIRST_CALL_S = 30.0  # a peer greets as soon as it has connected
REQUEST_BYTES_MAX = 256 << 10  # an evaluation of 1,000 metrics with names of 200 bytes
REQUEST_BYTES_PER_SECOND_MAX = 64 << 10  # of one connection: 400 times what greetings, heartbeats and requests need
REQUEST_BYTES_BURST = 320 << 10  # the longest request, and a fifth for frames and TLS
SENT_BYTES_PER_RECEIVED_BYTE = 32  # flow control of a receiver: measured are 1,000 and more
DESCRIPTORS_RESERVED = 128  # journal, ledger, artifacts, worker and log keep these, however many callers connect
SPEC_DEPTH_MAX = 6  # a list in a list in a network's parameters is at depth 4
METRICS_MAX = 1000  # names of one evaluation; a hundred classes in five metrics and their means fit
EVALUATION_SAMPLES_MIN = 10  # a site's default: sums over fewer test samples could tell of one of them
COUNT_MIN = 10  # a site's default: offices of statistics withhold counts below 5 to 10 people
LENT_MODELS_PER_ROUND_MAX = 3  # generations of one site's model of a round: each costs a transfer and journal rows
MEASURE_S_MAX = 3600.0  # a lent model that takes longer on a test split than a slow round is given up
REPORT_WAIT_S = 4.0  # until an evaluation is journalled; under HELLO_TIMEOUT_S, so that the caller hears of it
REPORT_TRIES_MAX = 10  # in a run, each of two ledger rows; a restart tries again
CERTIFICATE_BYTES_MAX = 8 << 10  # a P-256 certificate with one name has under 1 KiB
SIGNATURE_BYTES_MAX = 80  # an ECDSA P-256 signature in DER has at most 72
COLUMNS_MAX = 2000  # of a table; with their levels they are channels, of which other sites take 4096
LEVELS_MAX = 200  # of a category
CONTACT_CHARACTERS_MAX = 200  # one line of a model card
INTERVALS_MAX = 200  # of the time to an event; a year of weeks fits three times
SITES_MAX = 1000  # the simulator's size; heartbeats grow with its square
ROUNDS_MAX = 1_000_000  # a bound for sanity, not for use

CALLS_PER_SECOND_MAX = 50  # a peer needs two calls a second at most; the rest is slack for catching up
CALLS_BURST = 200
CALLS_AT_ONCE_MAX = 16  # of one peer: its transfers, a manifest for each purpose, and a heartbeat; it needs under ten
REQUEST_WAIT_S = 5.0  # from a call's headers to the end of its request
TRANSFERS_PER_ARTIFACT_MAX = 200  # to one peer in a round, two ledger rows each: a line that breaks each minute for 3 h
COPIES_PER_ARTIFACT_MAX = 10  # complete ones to one peer in a round: it was killed before its journal had the artifact
STREAMS_PER_PEER_MAX = 4  # one artifact, one retry, one evaluation, one hand-back

BEAT_S = 3.0  # five heartbeats fit into the silence limit, so that four may be lost
BEAT_LARGE_S = 5.0  # above BEAT_LARGE_SITES, to keep N*(N-1) calls bearable; three fit
BEAT_LARGE_SITES = 32  # above it, phases wait for the regular heartbeat, and one heartbeat a pair of sites is enough
BEAT_TIMEOUT_SHARE = 5 / 6  # of the time between two heartbeats, so that answers never queue up
SILENCE_S = 15.0  # no authenticated byte for this long: fall back now
HELLO_TIMEOUT_S = 5.0
DIAL_BACKOFF_S = (0.2, 0.5, 1.0, 2.0)  # waits between attempts to reach a peer; the last one repeats
MANIFEST_WAIT_S = 20.0  # time limit of one GetManifest; asked again afterwards
STALL_S = 15.0  # a stream without a byte for this long is broken off and resumed
PACING_WAITS_MAX = 4  # multiples of `wait_max_s` for a peer's round while it trains on; then the others continue
PROGRESS_LEVELS = PACING_WAITS_MAX  # a heartbeat states quarters: a finer share would tell how many batches a pass has
WAIT_MAX_S = 3600.0  # a slow but living peer costs at most this a round until its pace is known
WAITS_IN_VAIN_MAX = 2  # multiples of `wait_max_s` a run for a live peer that does not deliver: one is bad luck
WAIT_IN_VAIN_SHARE = 0.25  # plus this share of the time that this site trained: enough to notice that it delivers again
DEADLINE_HISTORY = 10  # rounds that the adaptive deadline looks back on
DEADLINE_ROUNDS_MIN = 3  # rounds to see before trusting it
DEADLINE_MADS = 4.0  # median + 4 MAD: about 2.7 standard deviations for a bell curve
DEADLINE_FLOOR_S = 60.0  # a restarted site needs the silence limit, its worker's start and its lost work again
CERTIFICATE_DAYS_MIN = 30  # the founder's holidays, and a bundle that travels by mail; below it a site is warned
CLOCK_SKEW_WARNING_S = 5.0  # only reported; no decision looks at another site's clock

ARTIFACT_ROUNDS_MAX = 5  # rounds whose published artifacts stay for stragglers
MADE_UP_ROUNDS_MAX = 3  # of work in one round, after a circulating copy was refused: peers wait for its end
REFUSALS_SHOWN_MAX = 20  # in `status`; the journal has all of them
REFUSAL_ROUNDS_SHOWN = 5  # an older refusal is history: it is counted, and asks for no attention
REFUSALS_PER_PEER_MAX = 20  # journal rows that one peer's faults may cost in a run: the peer words the reasons
FIRST_DIGESTS_PER_PEER_MAX = 16  # digests of a peer's newest artifacts: no older artifact is fetched again

EQUIVOCATIONS_PER_SITE_MAX = 3  # proofs kept against one site: one suffices, and each has two manifests
COMPARISONS_PER_ROUND_MAX = 16  # manifests that a site shows a peer whose mean differs
COMPARED_PEERS_PER_ROUND_MAX = 4  # such peers: together they are shown the manifests of 64 sites
AMENDMENT_CALLS_PER_SECOND_MAX = 0.5  # of one caller; an answer has up to a MiB, and an honest site asks once in 10 s
AMENDMENT_CALLS_BURST = 20  # a chain of 20 MiB at once
COMPARISONS_PER_SECOND_MAX = 1.0  # that a peer may ask for: each verifies a signature and reads some rows
COMPARISONS_BURST = 2 * COMPARISONS_PER_ROUND_MAX  # a round's, and the proofs that follow
SHOWN_BYTES_MAX = 144 << 10  # manifests in one request: a greeting's and a comparison's fit into REQUEST_BYTES_BURST
SHOWN_BYTES_PER_SECOND_MAX = REQUEST_BYTES_PER_SECOND_MAX / 2  # a peer's server closes a connection that sends faster

AMENDMENT_BYTES_MAX = 256 << 10  # a roster of 1,000 sites with keys and addresses takes 200 KB
AMENDMENTS_MAX = 10_000  # of one federation: one a day for 27 years
AMENDMENTS_MESSAGE_BYTES_MAX = 1 << 20  # of one answer; the asking site asks again until it has the chain tip
NOTICE_BYTES_MAX = 512  # a digest, a name and a time
ISSUED_MAX = 253_402_214_399  # Unix time: the end of 30 December 9999; a date in every time zone, so people can read it
SUM_MEMBERS_MAX = 64  # of a secure sum: each masks for every other, and a set has them all
SUM_STATEMENTS_BYTES_MAX = 16 << 10  # two sets and an opening of so many members take 14 KB
FORKS_KEPT_MAX = 16  # proofs that two amendments of one number were signed; one accuses enough

CHECKPOINT_S = 300.0
HANG_S = 600.0  # a worker without a sign of progress for this long is started again; a slow disk recovers before
PROCESSES_MAX = 16  # ranks of a worker: a machine has eight GPUs, or sixteen
SHARE_MIN = 2  # samples of a rank in a batch: some layers cannot train on one
READERS_MAX = 64  # threads that read a worker's samples; more wait for each other
SIGN_S = 1.0  # between two signs of progress: few lines, and many signs within the shortest `hang_s`
PROBE_RATIO_MAX = 4.0  # losses of no knowledge; an honest model had 1.8 at most where sites have other classes
WORKER_START_S = 180.0  # torch and monai take 2 to 9 s, a cold network disk far longer
WORKER_LINE_BYTES_MAX = 4 << 20  # one JSON line; an order describes the artifact of each source
WORKER_RESTARTS_MAX = 3  # consecutive crashes at the same step before the site says that it failed
HANG_RESTARTS_MAX = 1  # a crash costs seconds, a hang at least `hang_s`: a second one is no accident
LOST_FILES_MAX = 3  # vanished files that a round fetches or makes again; after that, it continues without
CHECKPOINTS_KEPT = 3  # of the open round, the last committed one and the one before: to go back, and for a backup


def patience(silence_s: float) -> float:
    """Return the factor by which dials, calls and streams may take longer with this silence limit (seconds).

    Sites or lines that are too slow for the usual deadlines would otherwise restart all work, and never finish it.
    """
    return max(1.0, silence_s / SILENCE_S)
