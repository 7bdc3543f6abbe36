"""Tensors at fixed addresses: a round may put new ones in their places, and `settle` brings their contents home."""

from __future__ import annotations

from torch import Tensor


class Refused(ValueError):
    """A request that no captured round serves; the message says what was expected and what came."""


class Static:
    """Attributes of some objects that hold tensors. A graph that was recorded reads and writes the memory these had then, so
    every round has to leave them where it found them."""

    def __init__(self) -> None:
        self._kept: list[tuple[object, str, Tensor]] = []

    def keep(self, owner: object, *names: str) -> None:
        """These attributes stay at the addresses that they have now."""
        self._kept += [(owner, name, getattr(owner, name)) for name in names]

    def settle(self) -> None:
        """Copies what has taken their places into them.   Raises Refused for another shape or dtype."""
        changed = [(*one, getattr(one[0], one[1])) for one in self._kept]
        changed = [(owner, name, home, new) for owner, name, home, new in changed if new is not home]
        homes = {home.untyped_storage().data_ptr() for _, _, home in self._kept}
        fresh = []
        for _, name, home, new in changed:
            if new.shape != home.shape or new.dtype != home.dtype:
                raise Refused(f"expected a round that leaves {name} as {list(home.shape)} of {home.dtype}, got "
                              f"{list(new.shape)} of {new.dtype}")  # fmt: skip
            # one that lies in the memory of another would be overwritten before it is read
            fresh.append(new.clone() if new.untyped_storage().data_ptr() in homes else new)
        for (owner, name, home, _), new in zip(changed, fresh, strict=True):
            home.copy_(new)
            setattr(owner, name, home)
