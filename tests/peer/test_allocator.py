"""A process that trains keeps freed memory between its steps, and returns it after them."""

import json
import platform
import subprocess
import sys

import pytest

STEPS = """
import json, os, resource, sys
from peer import allocator

def resident():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")

if sys.argv[1] == "keep":
    allocator.keep_memory_between_steps()
before, size, faults = resident(), 64 << 20, []
for _ in range(5):
    bytes(bytearray(b"1") * size)
    faults.append(resource.getrusage(resource.RUSAGE_SELF).ru_minflt)
kept = resident() - before
allocator.release_memory()
json.dump({"faults": faults[-1] - faults[1], "kept": kept, "released": resident() - before}, sys.stdout)
"""
PAGES = (64 << 20) // 4096


def run(how: str) -> dict[str, int]:
    finished = subprocess.run([sys.executable, "-c", STEPS, how], check=True, capture_output=True, text=True)
    figures: dict[str, int] = json.loads(finished.stdout)
    return figures


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="the settings are glibc's")
def test_a_step_takes_the_memory_of_the_step_before_until_it_is_released() -> None:
    by_default, keeping = run("default"), run("keep")
    assert by_default["faults"] > 3 * PAGES, "glibc returns large blocks at once"
    assert keeping["faults"] < PAGES / 10
    assert keeping["kept"] > 64 << 20
    assert keeping["released"] < 8 << 20
