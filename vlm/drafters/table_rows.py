"""The embeddings of a block: of root and mask tokens, as drafters that share the target's table were trained on them."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn


def table_rows(embed: nn.Module, ids: Tensor) -> Tensor:
    """[B, n, H] of ids int64 [B, n].

    Muse Glimmer's embedding norms what it has looked up; its assistant reads the table's own rows. What other embeddings do,
    as Gemma's scaling, is part of a row.
    """
    return F.embedding(ids, embed.weight) if hasattr(embed, "embed_norm") else embed(ids)
