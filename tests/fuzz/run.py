"""Fuzz the parsers of foreign bytes, guided by coverage: ``make fuzz SECONDS=600``.

``python tests/fuzz/run.py [--seconds N] [TARGET ...]`` gives each target its share of the time, in a
process of its own under atheris (libFuzzer). An input that breaks a target is written to
``tests/fuzz/corpus/TARGET/``, where the suite reads it from then on, and its command is printed.
``--replay FILE TARGET`` runs one input.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
CORPUS = HERE / "corpus"
INPUT_BYTES_MAX = 1 << 16
INPUT_S_MAX = 5
MEMORY_MIB_MAX = 2048
INSTRUMENTED = ("peer", "models.spec", "google.protobuf", "tomlkit", "json")


def main() -> int:
    """Fuzz; the exit status is 1 if an input broke a target."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("targets", nargs="*", metavar="TARGET", help="all by default")
    parser.add_argument("--seconds", type=float, default=60.0, help="of all targets together")
    parser.add_argument("--replay", type=Path, metavar="FILE", help="run one input instead")
    parser.add_argument("--alone", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    sys.path[:0] = [str(HERE.parents[1]), str(HERE.parent)]
    if arguments.alone:
        fuzz(arguments.targets[0], seconds=arguments.seconds)
    from fuzz.targets import TARGETS

    names = arguments.targets or list(TARGETS)
    if unknown := set(names) - set(TARGETS):
        parser.error(f"no target {', '.join(sorted(unknown))}; there are {', '.join(TARGETS)}")
    if arguments.replay:
        TARGETS[names[0]](arguments.replay.read_bytes())
        return 0
    broken = [name for name in names if not survives(name, seconds=arguments.seconds / len(names))]
    print(f"{len(names) - len(broken)} passed, {len(broken)} failed")
    return 1 if broken else 0


def survives(name: str, *, seconds: float) -> bool:
    """Fuzz one target in a process of its own; whether no input broke it."""
    command = [sys.executable, __file__, "--alone", "--seconds", str(seconds), name]
    broken = CORPUS / name
    broken.mkdir(parents=True, exist_ok=True)
    finished = subprocess.run(command, capture_output=True, text=True, errors="replace", check=False)
    log = finished.stderr
    runs = [line for line in log.splitlines() if line.startswith("Done ")]
    print(f"{name:<18} {runs[-1] if runs else 'no end: see below'}", flush=True)
    if finished.returncode:
        print(log[-4000:])
        for path in sorted(broken.glob("*")):
            print(f"python tests/fuzz/run.py --replay {path.relative_to(HERE.parents[1])} {name}")
    for folder in (broken, CORPUS):
        if not any(folder.iterdir()):
            folder.rmdir()
    return finished.returncode == 0


def fuzz(name: str, *, seconds: float) -> None:
    """Run one target under libFuzzer, which ends this process."""
    import atheris

    with atheris.instrument_imports(include=list(INSTRUMENTED)):
        from fuzz.targets import TARGETS
    target, kept = TARGETS[name], CORPUS / name
    work = Path(tempfile.mkdtemp(prefix="mhfl-corpus-"))
    for number, seed in enumerate(target.seeds):
        (work / f"seed-{number}").write_bytes(seed)
    options = {
        "max_total_time": max(1, round(seconds)),
        "max_len": INPUT_BYTES_MAX,
        "timeout": INPUT_S_MAX,
        "rss_limit_mb": MEMORY_MIB_MAX,
        "print_final_stats": 0,
    }
    flags = [f"-{option}={value}" for option, value in options.items()]
    atheris.Setup([__file__, *flags, f"-artifact_prefix={kept}{os.sep}", str(work), str(kept)], target)
    atheris.Fuzz()


if __name__ == "__main__":
    sys.exit(main())
