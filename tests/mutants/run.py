"""Measures what the suite protects: which test alone runs a line, and which changes of the code no test notices.

python tests/mutants/run.py contexts --out FOLDER -m ''
python tests/mutants/run.py mutants --contexts FOLDER --count 300 --jobs 2 --out FILE.json
python tests/mutants/run.py mutants --contexts FOLDER --again FILE.json --out OTHER.json

The suite runs in a copy of the checkout, under the running Python. A mutant is run with the tests that
run its lines, which ``contexts`` finds. It is not covered where none does: nor are lines that run only
in a process which a test starts, and constants that only other packages use. The same command goes on
where an interrupted one stopped.
``--again`` runs the mutants of a file again, those with ``--outcome``, and tells how they end now.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import json
import os
import queue
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
if __name__ == "__main__":
    sys.path[:1] = [str(ROOT), str(ROOT / "tests")]

from mutants.changes import Key, Mutant, Program  # noqa: E402
from mutants.contexts import PACKAGES, Contexts, Lines, merge  # noqa: E402

OUTCOMES = ("killed", "survived", "not covered")
NOT_COPIED = (".git", ".venv*", "__pycache__", ".*_cache", ".hypothesis", "node_modules", "*.egg-info")
LIMIT_S, LIMIT_TIMES = 60.0, 10.0
BATCH_FILES, BATCH_GROWTH = 3, 4
NOTHING_RAN = 5


def copy_checkout(root: Path, copy: Path) -> Path:
    """Copy a checkout without what is not of it."""
    shutil.copytree(root, copy, symlinks=True, ignore=shutil.ignore_patterns(*NOT_COPIED))
    return copy


def start_pytest(
    checkout: Path, arguments: Iterable[str], *, quiet: bool = False, **variables: str
) -> subprocess.Popen:
    """Start pytest in a copy, with this plugin, and without what an outer run has set."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST_", "MUTANTS_"))}
    kept.pop("PYTHONDONTWRITEBYTECODE", None)
    paths = [str(checkout), str(checkout / "tests"), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = {**kept, "CI": "1", "PYTHONPATH": os.pathsep.join(paths), "PYTEST_PLUGINS": "mutants.contexts"}
    return subprocess.Popen(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", f"--basetemp={checkout.parent / 't'}", *arguments],
        cwd=checkout,
        env=environment | variables,
        stdout=subprocess.DEVNULL if quiet else None,
        stderr=subprocess.DEVNULL if quiet else None,
        start_new_session=True,
    )


def wait_for(
    process: subprocess.Popen, *, seconds: float = float("inf"), stop: threading.Event | None = None
) -> int | None:
    """Wait for the exit status, None where the time is over; whatever the run leaves behind is killed."""
    end_s = time.monotonic() + seconds
    try:
        while time.monotonic() < end_s and not (stop and stop.is_set()):
            with contextlib.suppress(subprocess.TimeoutExpired):
                return process.wait(0.2)
        return None
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


@dataclass
class Judge:
    """Runs mutants in a copy of the checkout of its own."""

    copy: Path
    program: Program
    contexts: Contexts
    marks: str | None
    stop: threading.Event
    written: int = 0

    def judge(self, mutant: Mutant) -> dict[str, Any] | None:
        """Make the record of a mutant; None if the run is stopped."""
        began_s, outcome, nodeid = time.monotonic(), "not covered", ""
        covering = next(filter(None, map(self.contexts.tests, self.program.wanted(mutant))), set())
        path, source = self.copy / mutant.file, self.program.sources[mutant.file]
        unchanged = path.stat()
        self.written += 1
        try:
            path.write_bytes(mutant.apply(source))
            os.utime(path, (self.written, self.written))  # a time that no other text had, nor its compiled file
            for tests in batches(covering, self.contexts.seconds):
                status, nodeid = self.play(tests)
                if self.stop.is_set():
                    return None
                if status not in (0, NOTHING_RAN):
                    outcome = "killed"
                    break
                outcome = "survived" if status == 0 else outcome
        finally:
            path.write_bytes(source)
            os.utime(path, ns=(unchanged.st_atime_ns, unchanged.st_mtime_ns))
        record = {name: getattr(mutant, name) for name in ("file", "line", "column", "operator", "before", "after")}
        seconds = round(time.monotonic() - began_s, 1)
        return {**record, "outcome": outcome, "nodeid": nodeid, "tests": len(covering), "seconds": seconds}

    def play(self, tests: Sequence[str]) -> tuple[int | None, str]:
        """Run the tests until one fails: the exit status, and the test that failed, or else what happened."""
        chosen = self.copy.parent / "chosen.json"
        failed = chosen.with_name("chosen.json.failed")
        chosen.write_text(json.dumps(tests))
        failed.unlink(missing_ok=True)
        files = dict.fromkeys(test.partition("::")[0] for test in tests)
        seconds = [LIMIT_TIMES * self.contexts.seconds[test] for test in tests]
        marks = [] if self.marks is None else ["-m", self.marks]
        arguments = ["-x", "-q", f"--timeout={LIMIT_S / 2 + max(seconds):.0f}", *marks, *files]
        process = start_pytest(self.copy, arguments, quiet=True, MUTANTS_CHOSEN=str(chosen))
        status = wait_for(process, seconds=LIMIT_S + sum(seconds), stop=self.stop)
        if status in (0, NOTHING_RAN):
            return status, ""
        what = "no end in time" if status is None else f"exit status {status}"
        return status, failed.read_text() if failed.exists() else what


def batches(tests: Iterable[str], seconds: Mapping[str, float]) -> Iterator[list[str]]:
    """Group the tests by file, the quickest first, into few runs of pytest: a small one, then larger ones."""
    files: dict[str, list[str]] = defaultdict(list)
    for test in sorted(tests, key=lambda test: (seconds[test], test)):
        files[test.partition("::")[0]].append(test)
    waiting = sorted(files, key=lambda file: (sum(seconds[test] for test in files[file]), file))
    size = BATCH_FILES
    while waiting:
        yield [test for file in waiting[:size] for test in files[file]]
        waiting, size = waiting[size:], size * BATCH_GROWTH


def judge_all(mutants: Sequence[Mutant], judges: Sequence[Judge]) -> Iterator[dict[str, Any]]:
    """Yield the records as the judges finish; stop what still runs where nobody waits any more."""
    idle: queue.SimpleQueue[Judge] = queue.SimpleQueue()
    for judge in judges:
        idle.put(judge)

    def judge_one(mutant: Mutant) -> dict[str, Any] | None:
        judge = idle.get()
        try:
            return judge.judge(mutant)
        finally:
            idle.put(judge)

    with ThreadPoolExecutor(len(judges)) as pool:
        try:
            for future in as_completed([pool.submit(judge_one, mutant) for mutant in mutants]):
                if record := future.result():
                    yield record
        finally:
            judges[0].stop.set()
            pool.shutdown(cancel_futures=True)


def run_contexts(arguments: argparse.Namespace) -> int:
    """Run the suite, note what each test runs, and print how much of it is theirs alone."""
    arguments.out.mkdir(parents=True, exist_ok=True)
    for path in arguments.out.glob("noted-*.json"):
        path.unlink()
    program = Program(arguments.root, PACKAGES)
    (arguments.out / "digest").write_text(digest(program))
    options = ["-q", "--numprocesses", str(arguments.jobs), "--dist", "loadfile", "--no-loadscope-reorder"]
    with tempfile.TemporaryDirectory(prefix="mutants-", ignore_cleanup_errors=True) as folder:
        copy = copy_checkout(arguments.root, Path(folder, "copy"))
        options += [] if arguments.marks is None else ["-m", arguments.marks]
        process = start_pytest(copy, [*options, *arguments.paths], MUTANTS_CONTEXTS=str(arguments.out.resolve()))
        status = wait_for(process)
    contexts = merge(arguments.out, program.functions)
    covered: Lines = defaultdict(int)
    for files in contexts.lines.values():
        for file, mask in files.items():
            covered[file] |= mask
    alone = sum(map(count_lines, contexts.alone().values()))
    lines = count_lines(covered)
    print(f"{len(contexts.lines)} tests that pass run {lines} lines of functions; {alone} have one test only")
    print("lines that a file alone runs, its tests, their seconds:")
    for file, files in sorted(contexts.alone(by_file=True).items()):
        tests = [contexts.seconds[test] for test in contexts.lines if test.partition("::")[0] == file]
        print(f"{count_lines(files):6} {len(tests):6} {sum(tests):8.1f}  {file}")
    return status or 0


def run_mutants(arguments: argparse.Namespace) -> int:
    """Run mutants that are not in the file yet, and print how all of them end."""
    program = Program(arguments.root, PACKAGES)
    if (arguments.contexts / "digest").read_text() != digest(program):
        raise SystemExit("the packages are not those that the tests were noted for: run `contexts` again")
    contexts = merge(arguments.contexts, program.functions)
    earlier = {key_of(record): record for record in read(arguments.again) if record["outcome"] in arguments.outcome}
    draw = random.Random(arguments.seed)
    keys = list(earlier) if arguments.again else draw.sample(sorted(program.mutants), arguments.count)
    records = {key_of(record): record for record in read(arguments.out)}
    if gone := [key for key in keys if key not in program.mutants] + [key for key in records if key not in keys]:
        raise SystemExit(f"{len(gone)} mutants are of other sources or of another draw, such as {gone[0]}")
    waiting = [program.mutants[key] for key in keys if key not in records]
    with tempfile.TemporaryDirectory(prefix="mutants-", ignore_cleanup_errors=True) as folder:
        stop = threading.Event()
        copies = [copy_checkout(arguments.root, Path(folder, str(job), "copy")) for job in range(arguments.jobs)]
        judges = [Judge(copy, program, contexts, arguments.marks, stop) for copy in copies]
        quickest = min(contexts.lines, key=contexts.seconds.__getitem__)
        if waiting and (failed := judges[0].play([quickest])[1]):
            raise SystemExit(f"without any change: {failed}")
        with contextlib.closing(judge_all(waiting, judges)) as finished:
            for record in finished:
                records[key_of(record)] = record
                if arguments.out:
                    write(arguments.out, list(records.values()))
                what = f"{record['file']}:{record['line']} {record['operator']}"
                end = f"{record['outcome']} in {record['seconds']} s {record['nodeid']}"
                print(f"{len(records)}/{len(keys)} {what}: {end}", flush=True)
    report(list(records.values()))
    for key, record in records.items():
        if arguments.again and record["outcome"] != earlier[key]["outcome"]:
            print(f"{record['file']}:{record['line']} was {earlier[key]['outcome']}, is {record['outcome']}")
    return 0


def report(records: Sequence[dict[str, Any]]) -> None:
    """Print the outcomes of each package, and each mutant that survived."""
    counts: dict[str, Counter[str]] = defaultdict(Counter)
    for record in records:
        counts[record["file"].rpartition("/")[0]][record["outcome"]] += 1
    for record in records:
        if record["outcome"] == "survived":
            print(f"\n{record['file']}:{record['line']} {record['operator']}, {record['tests']} tests")
            print(*(f"- {line}" for line in record["before"].splitlines()), sep="\n")
            print(*(f"+ {line}" for line in record["after"].splitlines()), sep="\n")
    print("\n" + " " * 24, *(f"{outcome:>12}" for outcome in OUTCOMES))
    for package, outcomes in [*sorted(counts.items()), ("all", sum(counts.values(), Counter()))]:
        print(f"{package:<24}", *(f"{outcomes[outcome]:12}" for outcome in OUTCOMES))


def count_lines(files: Lines) -> int:
    """Count the lines that are marked."""
    return sum(mask.bit_count() for mask in files.values())


def digest(program: Program) -> str:
    """Tell these sources from others."""
    return hashlib.sha256(repr(program.sources).encode()).hexdigest()


def key_of(record: Mapping[str, Any]) -> Key:
    """Find the mutant of a record."""
    return record["file"], record["line"], record["column"], record["after"]


def read(path: Path | None) -> list[dict[str, Any]]:
    """Read the records of a file, if there is one."""
    return json.loads(path.read_text()) if path and path.exists() else []


def write(path: Path, records: Sequence[dict[str, Any]]) -> None:
    """Write all records at once, so that an interruption loses none."""
    part = path.with_name(f"{path.name}.part")
    part.write_text(json.dumps(records, indent=1))
    part.replace(path)


def main(words: Sequence[str] | None = None) -> int:
    """Run a command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    shared = argparse.ArgumentParser(add_help=False)
    shared.add_argument("-m", dest="marks", metavar="MARKEXPR", help="pytest's -m; its configured one by default")
    shared.add_argument("--jobs", type=int, default=2)
    shared.add_argument("--root", type=Path, default=ROOT, help=argparse.SUPPRESS)
    commands = parser.add_subparsers(required=True)
    noting = commands.add_parser("contexts", parents=[shared], help="note which tests run which lines")
    noting.add_argument("--out", type=Path, required=True, metavar="FOLDER")
    noting.add_argument("paths", nargs="*", metavar="PATH", help="tests; all by default")
    noting.set_defaults(run=run_contexts)
    judging = commands.add_parser("mutants", parents=[shared], help="change the code and run the tests of its lines")
    judging.add_argument("--contexts", type=Path, required=True, metavar="FOLDER")
    judging.add_argument("--count", type=int, default=300)
    judging.add_argument("--seed", type=int, default=0)
    judging.add_argument("--out", type=Path, metavar="FILE", help="the records; those that are there are not run again")
    judging.add_argument("--again", type=Path, metavar="FILE", help="the mutants of these records instead of a draw")
    judging.add_argument("--outcome", nargs="+", choices=OUTCOMES, default=["survived"], help="those of --again to run")
    judging.set_defaults(run=run_mutants)
    arguments = parser.parse_args(words)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        return arguments.run(arguments)
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130


if __name__ == "__main__":
    sys.exit(main())
