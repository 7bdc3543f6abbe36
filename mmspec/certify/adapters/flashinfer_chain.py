"""FlashInfer's chain sampling."""

from __future__ import annotations

import torch
from torch import Tensor

from mmspec.certify.adapters.padded import read_padded


def flashinfer(tokens: Tensor, q: Tensor, p: Tensor) -> tuple[Tensor, Tensor]:
    """`flashinfer.sampling.chain_speculative_sampling` on the GPU.

    It draws its own numbers, by the row of the batch, from a seed that is taken from torch's generator; so it is sampled.
    """
    from flashinfer.sampling import chain_speculative_sampling

    seed = int(torch.randint(2**31, ()))
    arrays = {"draft_probs": q.float(), "draft_token_ids": tokens.int(), "target_probs": p.float()}
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    out = chain_speculative_sampling(
        **{name: x.contiguous().to(device) for name, x in arrays.items()}, seed=seed, offset=0
    )
    return read_padded(out[0] if isinstance(out, tuple | list) else out)
