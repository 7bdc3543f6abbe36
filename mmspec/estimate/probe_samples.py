"""Samples of the probe: functions whose time measures a machine."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from mmspec.core.round.draft import Draft, root_only
from mmspec.core.round.loop import DecodingRun
from mmspec.estimate.counting import count_work
from mmspec.estimate.work import Work
from mmspec.vlm.api import start
from mmspec.vlm.drafters.drafter_names import new_drafter

Sample = Callable[[], object]

WIDTHS = (192, 384)  # widths of the stacks of decoder layers
PRODUCTS = 7  # products of a layer
NUMBERS = 12.25  # elements of a layer's weights, in squares of its width
_TINY = 32  # width of the decoder whose passes are almost pure call overhead
_LAYERS = 8  # layers of the decoders
_TOKENS = 1024  # tokens of a request whose rounds are timed
_KEYS = 512  # keys of the timed attention
_DRAFTED = 256  # width of the decoder of the timed drafted rounds


def decoder(width: int, layers: int, where: torch.device) -> nn.Module:
    """Return an untrained Llama of transformers, whose MLP is 2.75 times as wide."""
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        hidden_size=width,
        intermediate_size=width * 11 // 4,
        num_hidden_layers=layers,
        num_attention_heads=2,
        vocab_size=64,
        pad_token_id=0,
        eos_token_id=1,
    )
    return LlamaForCausalLM(config).to(where).eval()


class TimedRounds:
    """Requests whose rounds are timed, one after the other; `drafter` is an untrained kind, None for plain."""

    def __init__(self, width: int, where: torch.device, drafter: str | None = None) -> None:
        self.model, self.where = decoder(width, _LAYERS, where), where
        self.drafter = None if drafter is None else new_drafter(drafter, self.model).eval()
        self.run = self.begin()
        self.draft: Draft = root_only(self.run.target.pending)
        if drafter is not None:
            self._keep_a_draft()

    def begin(self) -> DecodingRun:
        """Return a request after its prefill."""
        token = torch.zeros(1, 1, dtype=torch.long, device=self.where)
        run = start(
            self.model,
            drafter=self.drafter,
            input_ids=token,
            max_new_tokens=_TOKENS,
            do_sample=False,
            eos_token_id=None,
        )
        run.step()
        return run

    def round(self) -> object:
        """Run a round; at the end of a request the next begins."""
        if not self.run.step():
            self.run = self.begin()
        return self.run

    def verify(self) -> object:
        """Run the target's pass of a round without a commit, so that it leaves no trace."""
        return self.run.target.score(self.draft)

    def _keep_a_draft(self) -> None:
        score = self.run.target.score

        def watched(draft: Draft) -> object:
            self.draft = draft
            return score(draft)

        self.run.target.score = watched
        try:
            self.round()
        finally:
            del self.run.target.score


def rounds(where: torch.device) -> tuple[dict[str, Sample], dict[str, Work]]:
    """Return plain rounds of a tiny and drafted rounds of a larger decoder, and the work of their passes."""
    plain, drafted = TimedRounds(_TINY, where), TimedRounds(_DRAFTED, where, "eagle")
    samples: dict[str, Sample] = {"pass": plain.verify, "round": plain.round, "request": plain.begin,
                                  "drafted": drafted.round, "verified": drafted.verify}  # fmt: skip
    return samples, {name: count_work(samples[name]) for name in ("pass", "drafted", "verified")}


def operators(where: torch.device) -> dict[str, tuple[Sample, int]]:
    """Return small operators that compute and operators that create views, each with their number per sample."""
    row, weight = torch.randn(1, _TINY, device=where), torch.randn(_TINY, _TINY, device=where)

    def compute() -> object:
        return row + row, row * 2.0, row.mean(-1), torch.cat((row, row)), F.silu(row), F.linear(row, weight)

    def describe() -> object:
        return row.view(_TINY), row.transpose(0, 1), row[:, 1:], row.unsqueeze(0)

    return {"calls": (compute, 6), "views": (describe, 4)}


def streams(sizes: Sequence[int], where: torch.device) -> dict[int, Sample]:
    """Return element-wise operators by the bytes of their tensor."""

    def stream(block: Tensor) -> object:
        return F.silu(block), block * block, torch.cat((block,))

    return {size: partial(stream, torch.randn(size // 4, device=where)) for size in sizes}


def products(
    sizes: Sequence[int], rows: Sequence[int], where: torch.device, dtype: torch.dtype
) -> dict[tuple[int, int], Sample]:
    """Return products of activations [rows, n] with a weight [n, n], by (n, rows)."""
    samples = {}
    for n in sizes:
        weight = torch.randn(n, n, device=where).to(dtype)
        for count in rows:
            samples[n, count] = partial(F.linear, torch.randn(count, n, device=where).to(dtype), weight)
    return samples


def attention(rows: int, where: torch.device) -> tuple[Sample, Work]:
    """Return masked attention of `rows` rows over the cache of a small layer, and its work."""
    heads, size = 4, 64
    query = torch.randn(1, heads, rows, size, device=where)
    keys, values = (torch.randn(1, heads, _KEYS, size, device=where) for _ in range(2))
    mask = torch.zeros(1, 1, rows, _KEYS, device=where)
    sample = partial(F.scaled_dot_product_attention, query, keys, values, attn_mask=mask)
    return sample, count_work(sample)


def stacks(
    megabytes: Sequence[int], rows: Sequence[int], where: torch.device
) -> tuple[dict[Hashable, Sample], Mapping[Hashable, Work]]:
    """Return passes over stacks of layers, which read weights in turn, by megabytes, rows and width; and their work."""
    samples: dict[Hashable, Sample] = {}
    for width in WIDTHS:
        model = decoder(width, layers_in(megabytes[-1], width), where).get_decoder()
        every = list(model.layers)

        def read(states: Tensor, count: int, model: nn.Module = model, every: list[nn.Module] = every) -> object:
            model.layers = nn.ModuleList(every[:count])
            return model(inputs_embeds=states, use_cache=False)

        for count in rows:
            states = torch.randn(1, count, width, device=where)
            samples |= {
                ("stack", size, count, width): partial(read, states, layers_in(size, width)) for size in megabytes
            }
    return samples, {name: count_work(sample) for name, sample in samples.items()}


def layers_in(megabytes: int, width: int) -> int:
    """Return the number of layers whose float32 weights take `megabytes`, at least 1."""
    return max(1, round(megabytes * 1e6 / (4 * NUMBERS * width**2)))
