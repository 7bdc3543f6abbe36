"""The root of trained drafters of text tokens."""

from __future__ import annotations

from typing import ClassVar

from mmspec.core.drafting.pretrained import Pretrained


class PretrainedDrafter(Pretrained):
    """Base of trained drafters of text tokens; `kinds` lists them."""

    kinds: ClassVar[dict[str, type[Pretrained]]] = {}
