"""The newest state of a module at every other site."""

from __future__ import annotations

from collections.abc import Collection, Mapping

import torch
from torch import Tensor, nn

PRESENT = "present"


class ReceivedStates(nn.Module):
    """One state of a module for each site of the roster, as buffers: they are part of each checkpoint.

    Args:
        part: what the module is; the buffers' names begin with it.

    Attributes:
        sites: in the order in which the buffers hold their states.
    """

    present: Tensor

    def __init__(self, module: nn.Module, sites: Collection[str], *, part: str) -> None:
        super().__init__()
        self._part = part
        self.sites = sorted(sites)
        self._names = list(module.state_dict())
        for name, tensor in module.state_dict().items():
            self.register_buffer(self._key(name), torch.stack([tensor] * len(self.sites)))
        self.register_buffer(PRESENT, torch.zeros(len(self.sites), dtype=torch.int64))

    def keep(self, site: str, state: Mapping[str, Tensor]) -> None:
        """Replace a site's state."""
        index = self.sites.index(site)
        for name in self._names:
            if name in state:  # frozen tensors are not sent: they are alike everywhere
                self.get_buffer(self._key(name))[index].copy_(state[name])
        self.present[index] = 1

    def states(self) -> dict[str, dict[str, Tensor]]:
        """Return the states received so far by site, in the order of the sites."""
        received = self.present.tolist()
        return {
            site: {name: self.get_buffer(self._key(name))[index] for name in self._names}
            for index, site in enumerate(self.sites)
            if received[index]
        }

    def _key(self, name: str) -> str:
        """Convert the tensor's name to that of a buffer, which must not have a dot."""
        return f"{self._part}/{name.replace('.', '/')}"
