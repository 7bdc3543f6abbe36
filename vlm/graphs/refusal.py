"""Which requests no captured round serves, as far as that is known before one runs; the rest is proven, see `watching.py`."""

from __future__ import annotations

from mmspec.core.drafting.pair_state import PairState
from mmspec.core.drafting.pending_features import PendingFeatures
from mmspec.core.drafting.shapes import Chain
from mmspec.core.graphs.static import Refused
from mmspec.core.loop import NoDraft
from mmspec.vlm.target import TextTarget


def check(target: TextTarget, state: object) -> None:
    """Raises Refused, with the reason, for what keeps part of a round on the host."""
    parts = target.parts
    for met, wanted, got in (
        (parts.group is None, "layers of one process", "layers that several share"),
        (_at_home(target), f"all layers on {target.device}", "layers elsewhere, or moved by hooks"),
        (not parts.plan.stateful, "layers of attention", "layers with recurrent states"),
        (all(layer.kind != "cross" for layer in parts.plan.layers), "layers of attention", "layers of cross attention"),
        (target.rope is None, "rotary embeddings of one kind", "some that depend on the sequence's length"),
        (not target.lasting, "passes over tokens alone", "passes that are given the prompt's inputs again"),
        (not target.strict, "passes of any bits", "strict ones, which look at lengths"),
        (target.turn is None, "a request of its own", "a turn of a conversation"),
        (not target.keep_scores, "tokens alone to be returned", "scores of every step"),
        (not target.goes_on, "tokens alone to be returned", "the cache too, as past_key_values"),
        (not target.processors.bound, "logits processors that look at no prefix", "one that does"),
        (not target.stopping.others, "eos ids and a length to stop at", "other stopping criteria"),
        (_holds(state), "no drafter or one of a fixed shape that reads accepted pairs", f"a {type(state).__name__}"),
        (_fixed(state), "drafts of one length", "a length decided while they grow"),
    ):
        if not met:
            raise Refused(f"expected {wanted}, got {got}")


def _at_home(target: TextTarget) -> bool:
    places = {one for one in target.parts.places if one is not None}
    hooked = any(hasattr(module, "_hf_hook") for module in target.parts.model.modules())
    return not hooked and all(place.type == target.device.type for place in places) and len(places) <= 1


def _holds(state: object) -> bool:
    """Whether a drafter's state says itself what of it lasts, and not only a class that it derives from."""
    if isinstance(state, NoDraft):
        return True
    said = "held" in vars(type(state)) and isinstance(state, PairState)
    return said and isinstance(state.pending_features, PendingFeatures) and len(state.pending_features) == 1


def _fixed(state: object) -> bool:
    shape = getattr(state, "shape", None)
    return not isinstance(shape, Chain) or shape.length.begin() is None
