"""Two drafters of text without a model: one copies tokens, one draws them."""

import torch

from mmspec.core import Draft, Evidence, Keys, Law, Memoryless, Purpose, Verdict, chain, root_only
from mmspec.core.round.sampling import draw
from mmspec.methods import method
from mmspec.vlm.target import TextTarget


@method(
    "last_seen",
    domain="vlm",
    kind="drafter",
    title="last seen",
    exact=True,
    about="the tokens that followed the current token the last time it occurred",
)
class LastSeen:
    """Copies what followed the current token the last time it occurred. Exact with every exact rule.

    Args:
        length: The most tokens of a draft.
    """

    name = "last_seen"

    def __init__(self, length: int = 4):
        if length < 1:
            raise ValueError(f"length: expected at least 1, got {length}; draft one token or more")
        self.length = length

    def open(self, target: TextTarget) -> "Followers":
        return Followers(self.length, target)


class Followers:
    """The state of one request. `after` has a dict for each row: from a token to the token that followed it last."""

    passes = 0  # forward passes of a draft model; this drafter has none

    def __init__(self, length: int, target: TextTarget):
        self.length, self.pictures = length, set(target.parts.placeholders)
        self.text = [row.tolist() for row in target.prompt]
        self.after = [dict(zip(row, row[1:], strict=False)) for row in self.text]

    def propose(self, target: TextTarget, keys: Keys) -> Draft:
        rooms = target.rooms(self.length)  # the tokens that each row can still take, 0 for a row that has stopped
        runs = [self.run(row, room) for row, room in enumerate(rooms)]
        longest = max(map(len, runs))
        if not longest:
            return root_only(target.pending)
        value = torch.tensor([run + [0] * (longest - len(run)) for run in runs], device=target.device)  # [B, N - 1]
        valid = torch.arange(longest + 1, device=target.device) <= torch.tensor([[len(run)] for run in runs])
        return Draft(torch.cat([target.pending[:, None], value], 1), chain(longest), Law("deterministic"), valid)

    def run(self, row: int, room: int) -> list[int]:
        tokens, token = [], self.text[row][-1]
        while len(tokens) < room and (token := self.after[row].get(token, -1)) >= 0 and token not in self.pictures:
            tokens.append(token)
        return tokens

    def observe(self, target: TextTarget, draft: Draft, evidence: Evidence, verdict: Verdict) -> None:
        for row, tokens in enumerate(target.tokens):
            new = tokens[len(self.text[row]) - target.prompt.shape[1] :]
            self.after[row] |= zip([self.text[row][-1], *new], new, strict=False)
            self.text[row] += new


@method(
    "unigram",
    domain="vlm",
    kind="drafter",
    title="unigram",
    exact=True,
    about="tokens drawn by how often they occurred so far",
)
class Unigram(Memoryless):
    """Draws tokens by how often they occurred so far, and records that distribution. Exact with every exact rule.

    Args:
        length: The tokens of a draft.
        smoothing: What is added to every count, so that any token can be drawn.
    """

    name = "unigram"

    def __init__(self, length: int = 3, smoothing: float = 0.01):
        if length < 1 or not smoothing > 0:
            raise ValueError(
                f"expected a length from 1 and a smoothing above 0, got {length} and {smoothing}; raise them"
            )
        self.length, self.smoothing = length, smoothing

    def propose(self, target: TextTarget, keys: Keys) -> Draft:
        texts = [row.tolist() + tokens for row, tokens in zip(target.prompt, target.tokens, strict=True)]
        counts = torch.stack([torch.tensor(text).bincount(minlength=target.parts.vocab_size) for text in texts])
        counts = counts.to(target.device) + self.smoothing  # [B, V]
        counts[:, list(target.parts.placeholders)] = 0  # the place of a picture is no token to draft
        scores = counts.log()[:, None].expand(-1, self.length, -1)  # [B, N - 1, V]
        value = draw(scores, keys.uniform(Purpose.DRAFT, self.length))
        # node i has the distribution of row i for its child; the last node has no child
        law = Law("without_replacement", torch.tensor([*range(self.length), -1]), scores)
        return Draft(torch.cat([target.pending[:, None], value], 1), chain(self.length), law)
