"""Pretrained weights: read a file without running its code, and fit its tensors to a network.

A file is safetensors, or written by ``torch.save``, of which only tensors are read (``weights_only``). A folder is a
MONAI bundle, of which only ``models/model.*`` is read.
"""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor

from models import Network
from models.learning import COUNTER, base_tensors, name_in_file
from peer.train.errors import UnusableWeightsError
from peer.train.tensors import State, load_checkpoint_file, non_finite, refuse_expanded, unpack

BUNDLE_FILES = ("models/model.safetensors", "models/model.pt")
"""Paths of the weights in the bundle specification."""
TORCH_SUFFIXES = (".pt", ".pth", ".bin", ".ckpt")
CONTAINERS = (
    "state_dict", "model_state_dict", "model_state", "model", "network_weights", "network", "net", "weights", "params",
    "module",
)  # fmt: skip
"""Keys under which training programs save the tensors, perhaps one within another."""
NESTED_MAX = 3
INNER_WRAPPERS = frozenset({"_checkpoint_wrapped_module", "_forward_module", "_fsdp_wrapped_module", "_orig_mod"})
"""Wrappers that training programs put around any layer: no layer of a network has such a name."""
WRAPPERS = INNER_WRAPPERS | {
    *(
        "backbone",
        "dam",
        "ema_model",
        "encoder",
        "generator",
        "learner",
        "model",
        "module",
        "net",
        "network",
        "student",
    ),
}
"""Wrappers that training programs put before the names, in any order and number."""
NAMES_SHOWN = 3


@dataclass(frozen=True, slots=True)
class WeightsFit:
    """Which tensors of a file fit a network.

    Attributes:
        fitting: tensors by their name in the network's state.
        reshaped: name in the network's state -> shapes in the file and in the network.
        retyped: names in the network's state that are no numbers of the network's kind in the file.
        random: names in the network's state that the file does not fill, except counters.
        unused: names in the file that the network does not use.
    """

    fitting: Mapping[str, Tensor]
    reshaped: Mapping[str, tuple[tuple[int, ...], tuple[int, ...]]]
    random: tuple[str, ...]
    unused: tuple[str, ...]
    retyped: tuple[str, ...] = ()

    def describe(self) -> str:
        """Describe in one line the tensors that fit, those that do not, and those that stay random."""
        count = len(self.fitting) + len(self.random)
        parts = [f"{len(self.fitting)} of {count} tensors fit"]
        if self.reshaped:
            shapes = [f"{name} is {list(file)}, not {list(own)}" for name, (file, own) in self.reshaped.items()]
            parts.append(f"of another shape: {_some(shapes)}")
        if self.retyped:
            parts.append(f"of another type: {_some(self.retyped)}")
        if self.random:
            parts.append(f"random: {_some(self.random)}")
        if self.unused:
            parts.append(f"unused in the file: {_some(self.unused)}")
        return "; ".join(parts)


def read_weights(path: Path, sha256: str, *, key: str) -> State:
    """Read the tensors, by name, of a file whose bytes have this digest.

    Raises:
        UnusableWeightsError: the file cannot be read, has another digest, or holds more than
            tensors; the message begins with ``key``, the key of site.toml that names it.
    """
    file = _bundle_file(path, key) if path.is_dir() else path
    try:
        content = file.read_bytes()
    except OSError as error:
        raise UnusableWeightsError(f"{key}: {file} cannot be read: {error.strerror}") from error
    digest = hashlib.sha256(content).hexdigest()
    if digest != sha256:
        raise UnusableWeightsError(
            f"{key}: {file} has SHA-256 {digest}, not {sha256} as site.toml says; it is another file, or it changed"
        )
    try:
        state = _parse(file, content)
    except Exception as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise UnusableWeightsError(
            f"{key}: {file} cannot be read as tensors alone ({reason}); save the network's state_dict as .safetensors"
        ) from error
    bad = non_finite(state)
    if bad is not None:
        raise UnusableWeightsError(f"{key}: {file}: tensor {bad!r} holds a NaN or an infinity")
    return state


def fit_weights(network: Network, state: Mapping[str, Tensor]) -> WeightsFit:
    """Compare a file's tensors with a network; the same file and spec fit alike at every site."""
    stored = network.state_dict()
    own = {key: name for name in stored if (key := name_in_file(network, name)) is not None}

    def matches(prefix: str) -> list[str]:
        return [key for key in own if _fits(state.get(prefix + key), stored[own[key]])]

    prefix = max(_prefixes(state), key=lambda each: len(matches(each)))
    fitting = {own[key]: state[prefix + key] for key in matches(prefix)}
    reshaped = {
        own[key]: (tuple(state[prefix + key].shape), tuple(stored[own[key]].shape))
        for key in own
        if prefix + key in state and state[prefix + key].shape != stored[own[key]].shape
    }
    random = tuple(name for name in own.values() if name not in fitting and not name.endswith(COUNTER))
    unused = tuple(sorted(state.keys() - {prefix + key for key in own}))
    retyped = tuple(name for key, name in own.items() if prefix + key in state and name not in {*fitting, *reshaped})
    return WeightsFit(fitting, reshaped, random, unused, retyped)


def _fits(value: Tensor | None, own: Tensor) -> bool:
    """Return whether a file's tensor has the network's shape and is floating-point or integer like it."""
    return value is not None and value.shape == own.shape and value.is_floating_point() == own.is_floating_point()


def _prefixes(state: Mapping[str, Tensor]) -> list[str]:
    """List the wrappers' prefixes of a file's names, the shortest first."""
    prefixes = {""}
    for name in state:
        wrappers = itertools.takewhile(WRAPPERS.__contains__, name.split(".")[:-1])
        prefixes |= set(itertools.accumulate(f"{wrapper}." for wrapper in wrappers))
    return sorted(prefixes, key=lambda prefix: (len(prefix), prefix))


def load_weights(network: Network, state: Mapping[str, Tensor]) -> WeightsFit:
    """Load the fitting tensors of a file into a network.

    Raises:
        ValueError: nothing fits, or a tensor that does not learn would stay random.
    """
    fit = fit_weights(network, state)
    if not fit.fitting:
        raise ValueError(
            f"none of the file's {len(state)} tensors fits (it has {_some(sorted(state))}; "
            f"the network has {_some(list(network.state_dict()))})"
        )
    left = [name for name in fit.random if name in network.frozen_tensors]
    if left:
        raise ValueError(
            f"{len(left)} tensors that do not learn are not in the file and would stay random: {_some(left)}; "
            "freeze only what the file fills"
        )
    network.load_state_dict(dict(fit.fitting), strict=False)
    return fit


def fit_base(network: Network, state: Mapping[str, Tensor]) -> State:
    """Return a network's frozen tensors from the base of its spec, by the name in the network's state.

    The network may be on the meta device. Raise ``ValueError`` if the base lacks one: no artifact determines the
    tensors that it omits, but the base does.
    """
    names = base_tensors(network)
    fit = fit_weights(network, state)
    left = [name for name in fit.random if name in names]
    if left:
        raise ValueError(f"its base does not hold {_some(left)}")
    return {name: tensor for name, tensor in fit.fitting.items() if name in names}


def refuse_base(sha256: str) -> State:
    """Raise a ``ValueError``, which names the key of site.toml, for a base that the site lacks."""
    raise ValueError(
        f"it builds on weights with SHA-256 {sha256}, which this site does not have; get that file and name it in "
        "[base_weights] of site.toml"
    )


def _bundle_file(folder: Path, key: str) -> Path:
    for name in BUNDLE_FILES:
        if (folder / name).is_file():
            return folder / name
    raise UnusableWeightsError(f"{key}: {folder} is no MONAI bundle with weights: it has no {BUNDLE_FILES[1]}")


def _parse(file: Path, content: bytes) -> State:
    if file.suffix == ".safetensors":
        return _without_inner_wrappers(unpack(content))
    if file.suffix not in TORCH_SUFFIXES:
        raise ValueError(f"its name ends in none of .safetensors, {', '.join(TORCH_SUFFIXES)}")
    document = load_checkpoint_file(content)
    for _ in range(NESTED_MAX):
        if isinstance(document, Mapping):
            inner = (document.get(name) for name in CONTAINERS)
            document = next((table for table in inner if isinstance(table, Mapping)), document)
    if not isinstance(document, Mapping):
        raise ValueError(f"it holds a {type(document).__name__}, not named tensors")
    state = {str(name): value for name, value in document.items() if isinstance(value, Tensor)}
    if not state:
        raise ValueError("it holds no named tensors")
    refuse_expanded(state)
    return _without_inner_wrappers(state)


def _without_inner_wrappers(state: State) -> State:
    """Return the tensors by the names that they have in the plain network; a name is there once."""
    plain = {".".join(part for part in name.split(".") if part not in INNER_WRAPPERS): name for name in state}
    if len(plain) < len(state):
        raise ValueError("it holds tensors whose names differ in wrappers alone")
    return {short: state[name] for short, name in plain.items()}


def _some(names: Iterable[str]) -> str:
    listed = list(names)
    more = len(listed) - NAMES_SHOWN
    return ", ".join(listed[:NAMES_SHOWN]) + (f" and {more} more" if more > 0 else "")
