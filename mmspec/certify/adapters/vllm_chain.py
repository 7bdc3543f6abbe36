"""vLLM's rejection sampler."""

from __future__ import annotations

import inspect
from types import SimpleNamespace

import torch
from torch import Tensor

from mmspec.certify.adapters.padded import read_padded


def vllm(tokens: Tensor, q: Tensor, p: Tensor) -> tuple[Tensor, Tensor]:
    """`vllm.v1.sample.rejection_sampler.rejection_sample` on the GPU, all rows as requests of one batch, nobody greedy.

    It draws its own uniforms and exponentials, so it is sampled. It takes the bonus tokens ready made: they are drawn here
    from p behind the last draft.   Raises ValueError for a version that asks for something unknown.
    """
    from vllm.v1.sample.rejection_sampler import rejection_sample

    rows, length, size = q.shape
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    flat = p[:, :-1].reshape(-1, size).float().to(device)
    counts = torch.full((rows,), length, dtype=torch.int32)
    known = {
        "draft_token_ids": tokens.flatten().int().to(device),
        "num_draft_tokens": counts.tolist(),
        "max_spec_len": length,
        "cu_num_draft_tokens": counts.cumsum(0).int().to(device),
        "draft_probs": q.reshape(-1, size).float().to(device).contiguous(),
        "target_probs": flat.contiguous(),
        "target_logits": flat.log().contiguous(),
        "bonus_token_ids": torch.multinomial(p[:, -1].float(), 1).int().to(device),
        "sampling_metadata": SimpleNamespace(
            all_greedy=False, all_random=True, generators={}, temperature=torch.ones(rows, device=device)
        ),
    }
    wanted = inspect.signature(rejection_sample).parameters.values()
    unknown = [one.name for one in wanted if one.name not in known and one.default is one.empty]
    if unknown:
        raise ValueError(f"vllm: expected a rejection_sample of known arguments, got one that needs {', '.join(unknown)}; "
                         "write a step around it")  # fmt: skip
    out = rejection_sample(**{one.name: known[one.name] for one in wanted if one.name in known})
    return read_padded(out)
