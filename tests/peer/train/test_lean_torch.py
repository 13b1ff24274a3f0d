"""Training needs neither PyTorch's compiler nor, for tables, MONAI; whoever uses the compiler afterwards has it."""

from __future__ import annotations

import subprocess
import sys

import pytest

TRAIN = """
import sys
import torch
import peer.train.trainer
from peer.core.plan import Work
from peer.train.device import make_reproducible
from peer.train.optimiser import adam

make_reproducible(torch.device("cpu"), threads=1)
network = torch.nn.Linear(3, 2)
optimiser = adam(network, Work("step", 1, 0.1))
network(torch.ones(4, 3)).sum().backward()
optimiser.step()
optimiser.zero_grad()
optimiser.load_state_dict(optimiser.state_dict())
"""
UNLOADED = """
import inspect
inspect.getmodule(inspect.currentframe())  # asks all modules for their files
print(sorted({"monai", "sympy", "torch._dynamo.utils", "torch._inductor"} & sys.modules.keys()))
"""
COMPILED = """
import torch._dynamo.config as config  # the first use of the compiler
import torch._dynamo.exc as exc
from torch._dynamo import convert_frame, symbolic_convert
print(convert_frame.config is config, symbolic_convert.exc is exc)
seen = []
def backend(graph, inputs):
    seen.append(graph)
    return graph.forward
print(torch.compile(lambda x: x + 1, backend=backend)(torch.ones(2)).tolist(), len(seen))
import torch._dynamo.config
print(torch._dynamo is sys.modules["torch._dynamo"], torch._dynamo.__file__ is not None)
"""


@pytest.mark.e2e
def test_training_loads_neither_the_compiler_nor_monai_and_a_network_compiles_after_it_as_ever() -> None:
    command = [sys.executable, "-c", TRAIN + UNLOADED + COMPILED]
    printed = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    assert printed == ["[]", "True True", "[2.0, 2.0] 1", "True True"]
