"""The drafters of the zoo as data: the requests of every target, and settings that differ from a kind's recipe."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from mmspec.vlm.training.examples import Example
from mmspec.vlm.training.losses import cross_entropy
from mmspec.vlm.training.objective import Objective
from mmspec.vlm.training.recipes import AnyObjective
from mmspec.zoo.training.vlm.drafter_requests import (
    DocumentRequests,
    HeldOutDocumentRequests,
    HeldOutRequests,
    InstructionRequests,
    SceneRequests,
    TextRequests,
    held_out_instructions,
)

IMAGE_REQUESTS, TEXT_REQUESTS = 4608, 480
ANSWER_SOURCE = "procedural world of mmspec.zoo.world, answered by the zoo VLM itself at temperatures 0 and 1"


@dataclass(frozen=True, slots=True)
class DrafterData:
    """The data that drafters of a target are trained and measured on."""

    answers: str  # folder of the target's own answers
    requests: Callable[[int], Sequence[Example]]  # number -> requests with pictures
    held_out: Sequence[Example]  # for the acceptance length
    new_tokens: int = 128  # the longest answer in tokens
    pictures: int = IMAGE_REQUESTS  # requests with pictures
    texts: int = TEXT_REQUESTS  # requests without pictures
    text_requests: Callable[[int], Sequence[Example]] = TextRequests  # number -> requests without pictures
    source: str = ANSWER_SOURCE  # in words, for cards
    stored: bool = False  # whether the target's states are stored, so that later epochs do not run it
    own_prompts: int = 0  # further requests without pictures, which the target writes itself

    @property
    def count(self) -> int:
        return self.pictures + self.texts

    @property
    def main(self) -> Sequence[Example]:
        """The requests that every training samples."""
        return self.requests(self.pictures) if self.pictures else self.text_requests(self.texts)

    def precision(self, device: torch.device) -> str:
        """Return the precision of a training on a device, as in `autocast`."""
        return "no" if device.type == "cpu" else "bf16"


TARGETS = {
    "vlm": DrafterData("vlm_answers", SceneRequests, HeldOutRequests()),
    "vlm/hybrid": DrafterData("vlm_hybrid_answers", DocumentRequests, HeldOutDocumentRequests(), 144),
    "vlm/smol": DrafterData("vlm_smol_answers", SceneRequests, HeldOutRequests(), pictures=2304),
    "smollm2": DrafterData(
        "smollm2_answers",
        SceneRequests,
        held_out_instructions(8),
        144,
        pictures=0,
        texts=1536,
        text_requests=InstructionRequests,
        source="instructions of mmspec.zoo.world and prompts written by smollm2 itself, answered by smollm2 itself at "
        "temperatures 0 and 1",
        stored=True,
        own_prompts=2000,
    ),
}


@dataclass(frozen=True, slots=True)
class DrafterRecipe:
    """All settings of a drafter that differ from the `equal_recipe` recipe of its kind."""

    kind: str  # of `new_drafter`, or "mtp"
    sizes: Mapping[str, Any] = field(default_factory=dict)  # for `new_drafter`
    steps: int = 800
    batch: int = 12
    objective: AnyObjective | None = None  # None for the recipe's
    eval_every: int = 100  # steps between measurements of the acceptance length
    muon: float = 0.0  # see `Schedule`
    target: str = "vlm"  # a name in TARGETS
    weights: torch.dtype = torch.float16  # int8 is half of float16, see `quantise_rows`


# two layers with half of the target's inner width: about the weights of a single target layer
_BLOCKS = {"num_hidden_layers": 2, "intermediate_size": 344, "block_size": 12}
_DSPARK_HEAD = {"markov_head_type": "rnn", "markov_rank": 128}
RECIPES: dict[str, DrafterRecipe] = {
    "vlm/eagle": DrafterRecipe("eagle2"),
    "vlm/eagle_text": DrafterRecipe("eagle2_text"),
    "vlm/msd": DrafterRecipe("msd"),
    "vlm/vispec": DrafterRecipe("vispec", weights=torch.int8),
    # without the residual, the head learns about half as fast
    "vlm/flash": DrafterRecipe("flash", {"latents": 16, "block": 5, "residual": True}, weights=torch.int8),
    "vlm/specvlm": DrafterRecipe("specvlm", weights=torch.int8),
    # 160 tokens cover 99.9 per cent of the target's answers
    "vlm/eagle3": DrafterRecipe("eagle3", {"draft_vocab_size": 160}),
    # no answer contains the token that opens a text or picture, so its embedding row can be the mask
    "vlm/dflash": DrafterRecipe("dflash", {**_BLOCKS, "mask_token_id": 1}),
    # 16 context rows of a picture instead of 144
    "vlm/dflash_vision": DrafterRecipe("dflash", {**_BLOCKS, "mask_token_id": 1, "latents": 16}, muon=4.0),
    # with rows that depend on the draft tokens before them
    "vlm/dspark": DrafterRecipe(
        "dspark", {**_BLOCKS, "mask_token_id": 1, "latents": 16, **_DSPARK_HEAD}, muon=4.0, weights=torch.int8
    ),
    "vlm/hybrid/dflash": DrafterRecipe(
        "dflash", {**_BLOCKS, "intermediate_size": 112, "mask_token_id": 3}, muon=4.0, target="vlm/hybrid"
    ),
    "vlm/hybrid/mtp": DrafterRecipe("mtp", muon=4.0, target="vlm/hybrid"),
    # the head is the target's own, so only the layer is stored; a step scores a sixth of the vocabulary. Drafts of three
    # or four tokens are the fastest, so three depths are trained
    "smollm2/eagle3": DrafterRecipe(
        "eagle3",
        {"draft_vocab_size": 8192, "tied_head": True},
        steps=760,
        batch=16,
        objective=Objective(((1.0, cross_entropy),), depths=3, decay=0.8),
        muon=4.0,
        target="smollm2",
        weights=torch.int8,
    ),
    "vlm/smol/msd": DrafterRecipe("msd", target="vlm/smol"),
    "vlm/smol/vispec": DrafterRecipe("vispec", target="vlm/smol"),
    # no answer contains the token that begins a file of its training data, so its embedding row can be the mask
    "vlm/smol/dspark": DrafterRecipe(
        "dspark",
        {
            "num_hidden_layers": 2,
            "intermediate_size": 768,
            "block_size": 8,
            "mask_token_id": 5,
            "latents": 8,
            **_DSPARK_HEAD,
        },
        muon=4.0,
        target="vlm/smol",
    ),
}
