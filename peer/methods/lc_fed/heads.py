"""The newest head of every other site."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping

import torch
from torch import Tensor, nn

PRESENT = "present"


class ReceivedHeads(nn.Module):
    """One head for each site of the roster, as buffers: they are part of each checkpoint.

    Attributes:
        sites: in the order in which the buffers hold their heads.
    """

    present: Tensor

    def __init__(self, head: nn.Module, sites: Collection[str]) -> None:
        super().__init__()
        self.sites = sorted(sites)
        self._names = list(head.state_dict())
        for name, tensor in head.state_dict().items():
            self.register_buffer(_key(name), torch.stack([tensor] * len(self.sites)))
        self.register_buffer(PRESENT, torch.zeros(len(self.sites), dtype=torch.int64))

    def keep(self, site: str, state: Mapping[str, Tensor]) -> None:
        """Replace a site's head by this state."""
        index = self.sites.index(site)
        for name in self._names:
            if name in state:  # frozen tensors are not sent: they are alike everywhere
                self.get_buffer(_key(name))[index].copy_(state[name])
        self.present[index] = 1

    def states(self) -> Iterator[dict[str, Tensor]]:
        """Yield the state of each head received so far, in the order of the sites."""
        for index in self.present.nonzero().flatten().tolist():
            yield {name: self.get_buffer(_key(name))[index] for name in self._names}


def _key(name: str) -> str:
    """Convert the tensor's name to that of a buffer, which must not have a dot."""
    return f"head/{name.replace('.', '/')}"
