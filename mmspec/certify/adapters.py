"""The accept steps of transformers, vLLM, FlashInfer and SGLang; each needs its project only when called."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from inspect import signature
from types import SimpleNamespace

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from mmspec.certify.cases import Shape
from mmspec.kernels.sampling import sample_categorical

__all__ = ["flashinfer", "sglang", "sglang_kernel", "transformers", "vllm"]


class TracedRng(TorchFunctionMode):
    """A mode in which torch.rand, rand_like and multinomial take their numbers from uniforms float64 [A], in order. A
    multinomial of a single draw inverts its weights, which are normalised as in torch. Other draws are errors."""

    def __init__(self, uniforms: Tensor):
        super().__init__()
        self.uniforms, self.used = uniforms, 0

    def __torch_function__(self, func: Callable, types: object, args: tuple = (), kwargs: dict | None = None) -> object:
        kwargs = kwargs or {}
        if func is torch.rand_like:
            return self._take(args[0].shape)
        if func is torch.rand:
            return self._take(torch.Size(args[0] if args and not isinstance(args[0], int) else args))
        if func is torch.multinomial:
            return self._multinomial(*args, **kwargs)
        if getattr(func, "__name__", "") in _OTHER_DRAWS:
            raise ValueError(
                f"torch.{func.__name__}: expected draws by rand, rand_like or multinomial, got another; leave "
                "out `uniforms`, so that the step is sampled"
            )
        return func(*args, **kwargs)

    def _take(self, shape: torch.Size) -> Tensor:
        count = shape.numel()
        if self.used + count > len(self.uniforms):
            raise ValueError(f"uniforms: expected at most {len(self.uniforms)} draws, got more")
        self.used += count
        return self.uniforms[self.used - count : self.used].reshape(shape)

    def _multinomial(self, weight: Tensor, num_samples: int, *_: object, **__: object) -> Tensor:
        if num_samples != 1:
            raise ValueError(f"torch.multinomial: expected one draw a row, got {num_samples}; leave out `uniforms`")
        return sample_categorical(weight, self._take(weight.shape[:-1]))[..., None]


_OTHER_DRAWS = {"bernoulli", "bernoulli_", "exponential_", "normal", "poisson", "rand_like", "randint", "randn", "randn_like",
          "uniform_"}  # fmt: skip


def read_padded(tokens: Tensor) -> tuple[Tensor, Tensor]:
    """Split emitted tokens int [R, K + 1], padded with -1, into accepted counts and next tokens, int64 [R] each."""
    tokens = tokens.long().cpu()
    accepted = (tokens >= 0).sum(-1) - 1
    return accepted, tokens.gather(1, accepted.clamp_min(0)[:, None])[:, 0]


def transformers(tokens: Tensor, q: Tensor, p: Tensor, uniforms: Tensor) -> tuple[Tensor, Tensor]:
    """The accept step of `model.generate(assistant_model=..., do_sample=True)` in transformers, row by row.

    Its tests come from torch.rand_like and its next token from torch.multinomial. The uniforms replace these draws, so
    the installed code runs and the certificate holds for every draw.
    """
    from transformers.generation.utils import _speculative_sampling as accept

    # older versions take no bonus token where the draft ends the text, which is an argument there
    ended = {"is_done_candidate": False} if "is_done_candidate" in signature(accept).parameters else {}
    answers, length = [], tokens.shape[1]
    for row in range(len(tokens)):
        draws = torch.cat((uniforms[row, :length], uniforms[row, -1:]))
        with TracedRng(draws):
            emitted, count = accept(
                tokens[row : row + 1], q[row : row + 1].log(), length, p[row : row + 1].log(), **ended
            )
        answers.append((int(count), int(emitted[0, -1])))
    return tuple(torch.tensor(column) for column in zip(*answers, strict=True))


def vllm(tokens: Tensor, q: Tensor, p: Tensor) -> tuple[Tensor, Tensor]:
    """`vllm.v1.sample.rejection_sampler.rejection_sample` on the GPU, with all rows in a batch of sampled requests.

    It draws its own uniforms and exponentials, so it is sampled. It takes bonus tokens as an input: they are drawn here
    from p after the last drafted token.

    Raises:
        ValueError: The installed version has an unknown argument.
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
    parameters = inspect.signature(rejection_sample).parameters.values()
    unknown = [x.name for x in parameters if x.name not in known and x.default is x.empty]
    if unknown:
        raise ValueError(
            f"vllm: expected a rejection_sample of known arguments, got a version that needs "
            f"{', '.join(unknown)}; write a step around it"
        )
    out = rejection_sample(**{x.name: known[x.name] for x in parameters if x.name in known})
    return read_padded(out)


def flashinfer(tokens: Tensor, q: Tensor, p: Tensor) -> tuple[Tensor, Tensor]:
    """`flashinfer.sampling.chain_speculative_sampling` on the GPU.

    It draws its own numbers, by the row of the batch, from a seed of torch's generator; so it is sampled.
    """
    from flashinfer.sampling import chain_speculative_sampling

    seed = int(torch.randint(2**31, ()))
    arrays = {"draft_probs": q.float(), "draft_token_ids": tokens.int(), "target_probs": p.float()}
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    out = chain_speculative_sampling(
        **{name: x.contiguous().to(device) for name, x in arrays.items()}, seed=seed, offset=0
    )
    return read_padded(out[0] if isinstance(out, tuple | list) else out)


_DETERMINISTIC_SHAPES = (Shape((0, 1), "deterministic"), Shape((0, 0, 1, 1), "deterministic"))


class SglangTree:
    """The tree step of SGLang as array operations. Drafts count as deterministic: their distribution is not read.

    A single coin decides among a token's children: they are adjacent intervals as long as their target probabilities,
    and the child whose interval contains the coin is accepted. If none does, the next token is drawn from p without the
    children. At thresholds of 1 it is exact for any draft without equal siblings; other thresholds relax it. A child of
    probability `single` or more is accepted whatever the coin. Intervals are longer by 1 / `accumulated`. If `strict`,
    a coin of 0 accepts no child of probability 0, as in the kernel since its fix; before, `<=` let it pass."""

    shapes = _DETERMINISTIC_SHAPES

    def __init__(self, single: float = 1.0, accumulated: float = 1.0, strict: bool = True):
        self.single, self.accumulated, self.strict = single, accumulated, strict
        self.__name__ = f"sglang tree, thresholds {single:g} and {accumulated:g}"

    def __call__(self, tokens: Tensor, p: Tensor, uniforms: Tensor, parents: Tensor) -> tuple[Tensor, Tensor]:
        rows = torch.arange(len(tokens))
        node, depth = torch.zeros(len(tokens), dtype=torch.long), torch.zeros(len(tokens), dtype=torch.long)
        law = p[:, 0].clone()
        walking = torch.ones(len(tokens), dtype=torch.bool)
        for _ in range(len(parents)):  # the longest possible path
            coin = uniforms[rows, depth]
            reached, passed = torch.zeros_like(coin), torch.full_like(node, -1)
            for child, parent in enumerate(parents.tolist(), start=1):
                here = walking & (node == parent)
                mass = p[rows, parent, tokens[:, child - 1]]
                reached = torch.where(here, reached + mass, reached)
                passes = here & (passed < 0) & self._passes(coin, reached, mass)
                passed = torch.where(passes, child, passed)
                tried = here & (passed < 0)
                law[tried] = law[tried].scatter(1, tokens[tried, child - 1, None], 0.0)
            walking = walking & (passed >= 0)
            node, depth = torch.where(walking, passed, node), depth + walking.long()
            law[walking] = p[rows[walking], node[walking]]
        return node, _inverse(law, uniforms[:, -1])

    def _passes(self, coin: Tensor, reached: Tensor, mass: Tensor) -> Tensor:
        end = reached / self.accumulated
        inside = (coin < end) & (mass > 0) if self.strict else coin <= end
        return inside | (mass >= self.single)


def _inverse(law: Tensor, uniform: Tensor) -> Tensor:
    """Draw an index a row by inversion of an unnormalised distribution."""
    total = law.cumsum(-1)
    last = (total < total[:, -1:]).sum(-1)
    return (total <= uniform[:, None] * total[:, -1:]).sum(-1).minimum(last)


sglang = SglangTree()
"""SGLang's tree kernel as array operations, with thresholds of 1."""


def sglang_kernel(tokens: Tensor, p: Tensor, uniforms: Tensor, parents: Tensor) -> tuple[Tensor, Tensor]:
    """`sgl_kernel.tree_speculative_sampling_target_only` on the GPU, with thresholds of 1 and all rows in a batch.

    It computes in float32. A row is the committed token and its drafts; children are linked as first child and next
    sibling.
    """
    from sgl_kernel import tree_speculative_sampling_target_only as sample

    rows, nodes, size = p.shape
    device = torch.device("cuda")
    child, sibling = _links(parents.tolist())
    out = {
        "predicts": torch.full((rows * nodes,), -1, dtype=torch.int32, device=device),
        "accept_index": torch.full((rows, nodes), -1, dtype=torch.int32, device=device),
        "accept_token_num": torch.zeros(rows, dtype=torch.int32, device=device),
    }
    place = torch.arange(rows * nodes, device=device).view(rows, nodes)
    laws = p.float().to(device).contiguous()
    sample(
        **out,
        candidates=torch.cat((torch.zeros(rows, 1, dtype=torch.long), tokens), 1).to(device),
        retrive_index=place,
        retrive_next_token=child.expand(rows, -1).contiguous().to(device),
        retrive_next_sibling=sibling.expand(rows, -1).contiguous().to(device),
        uniform_samples=uniforms[:, :nodes].float().to(device).contiguous(),
        uniform_samples_for_final_sampling=uniforms[:, -1].float().to(device).contiguous(),
        target_probs=laws,
        draft_probs=torch.zeros_like(laws),
        threshold_single=1.0,
        threshold_acc=1.0,
        deterministic=True,
    )
    count = out["accept_token_num"].long()
    place = out["accept_index"].long().gather(1, count[:, None])[:, 0]
    return (place % nodes).cpu(), out["predicts"].long()[place].cpu()


sglang_kernel.shapes = _DETERMINISTIC_SHAPES


def _links(parents: list[int]) -> tuple[Tensor, Tensor]:
    """Return first child and next sibling of every node, int64 [1, N + 1] each, -1 where there is none."""
    nodes = len(parents) + 1
    child, sibling = torch.full((1, nodes), -1), torch.full((1, nodes), -1)
    last: dict[int, int] = {}
    for node, parent in enumerate(parents, start=1):
        if parent in last:
            sibling[0, last[parent]] = node
        else:
            child[0, parent] = node
        last[parent] = node
    return child, sibling
