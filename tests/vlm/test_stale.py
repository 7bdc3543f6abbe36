"""Everything that is remembered for a model, and the changes of the model that make it stale."""

from __future__ import annotations

import copy
import gc
from collections.abc import Callable
from types import SimpleNamespace
from weakref import ref

import pytest
import torch
from torch import nn

import mmspec
from mmspec.core.layers.fingerprint import module_like
from mmspec.core.layers.graphs import capture
from mmspec.imagegen.base_pipeline import auto_controller
from mmspec.vlm import admission, architectures
from mmspec.vlm.admission import take_apart
from mmspec.vlm.architectures import parts_of
from mmspec.vlm.auto import automatic
from mmspec.vlm.graphs.rounds import Rounds
from tests.vlm.conversation.test_weights import adapted, assign, load, switch, write_data
from tests.vlm.graphs.cases import GREEDY, alike, both, chain
from tests.vlm.layer_kinds import model_with
from tests.vlm.test_long_rope import model_of
from tests.vlm.test_proof import SOUND
from tests.vlm.tiny import prompt, tiny


def lower_precision(model: nn.Module) -> None:
    model.to(torch.bfloat16)


def other_attention(model: nn.Module) -> None:
    model.set_attn_implementation("eager")


LAYOUTS = (switch, lower_precision, other_attention)
WEIGHTS = (load, assign, write_data)


@pytest.mark.parametrize("change", LAYOUTS + WEIGHTS, ids=lambda one: one.__name__)
def test_a_controller_keeps_its_statistics_only_while_its_model_layout_is_unchanged(change: Callable) -> None:
    """Acceptance and times belong to an adapter, a precision and a device; over training steps a controller goes on."""
    model = adapted()
    control = automatic(model)
    assert automatic(model) is control
    change(model)
    assert (automatic(model) is control) == (change in WEIGHTS)
    assert automatic(model) is automatic(model)


def test_a_controller_of_a_pipeline_follows_the_layout_of_its_model() -> None:
    class Pipe:
        model = nn.Linear(3, 3)

    pipe = Pipe()
    control = auto_controller(pipe)
    pipe.model.load_state_dict({name: weight + 1 for name, weight in pipe.model.state_dict().items()})
    assert auto_controller(pipe) is control
    pipe.model.to(torch.bfloat16)
    assert auto_controller(pipe) is not control and auto_controller(pipe) is auto_controller(pipe)


@pytest.mark.parametrize("change", LAYOUTS + WEIGHTS, ids=lambda one: one.__name__)
def test_rounds_are_recorded_again_where_weights_lie_elsewhere_or_other_modules_run(change: Callable) -> None:
    """A recorded graph reads the addresses, and runs the modules, that it was recorded with."""
    recorded, model = [], adapted()
    rounds = Rounds(record=lambda run, device: (recorded.append(1), capture(run, device))[1])
    settings = dict(max_new_tokens=12, **prompt("llama"), **GREEDY)
    for number in range(4):
        if number == 2:
            change(model)
        assert alike(*both(model, rounds, **settings)), number
        in_place = change in (load, write_data)
        assert len(recorded) == (1 if number < 2 or in_place else 2), number


def test_rounds_are_recorded_again_where_the_weights_of_the_drafter_lie_elsewhere() -> None:
    recorded, model, drafter = [], tiny("llama"), copy.deepcopy(chain())
    rounds = Rounds(record=lambda run, device: (recorded.append(1), capture(run, device))[1])
    settings = dict(drafter=drafter, max_new_tokens=12, **prompt("llama"), **GREEDY)
    for number in range(3):
        if number == 2:
            drafter.load_state_dict({n: weight.clone() for n, weight in drafter.state_dict().items()}, assign=True)
        assert alike(*both(model, rounds, **settings))
        assert len(recorded) == 1 + (number == 2)


@pytest.mark.parametrize("change", LAYOUTS + WEIGHTS, ids=lambda one: one.__name__)
def test_a_proof_that_passed_holds_for_its_layout(change: Callable, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is about masks and positions, which the values of weights do not decide."""
    runs, check = [], admission.text_trial
    monkeypatch.setattr(admission, "text_trial", lambda parts: (runs.append(1), check(parts)))
    model = adapted()
    model.__class__ = type("OwnLlama", (type(model),), {})
    for _ in range(2):
        take_apart(model)
    change(model)
    for _ in range(2):
        take_apart(model)
    assert len(runs) == (1 if change in WEIGHTS else 2)


def test_a_proof_that_failed_is_made_again_for_other_weights() -> None:
    """Weights that are not loaded yet are the usual reason."""
    model = copy.deepcopy(SOUND["gpt2"]())
    sound = {name: weight.clone() for name, weight in model.state_dict().items()}
    with torch.no_grad():
        model.transformer.h[0].attn.c_attn.weight.fill_(torch.nan)
    for _ in range(2):
        with pytest.raises(ValueError, match="model: expected"):
            take_apart(model)
    model.load_state_dict(sound)
    assert take_apart(model).model is model


def test_how_far_layers_see_is_looked_at_again_for_another_layout(monkeypatch: pytest.MonkeyPatch) -> None:
    looks, look = [], admission.check_receptive_field
    monkeypatch.setattr(
        admission, "check_receptive_field", lambda parts, slots: (looks.append(slots), look(parts, slots))
    )
    model = copy.deepcopy(tiny("llama"))
    for change in (None, None, load, other_attention):
        if change is not None:
            change(model)
        admission.prove_receptive_field(take_apart(model), 30)
    assert len(looks) == 2


def more_tokens(model: nn.Module) -> None:
    model.resize_token_embeddings(model.config.vocab_size + 8)


def narrower_window(model: nn.Module) -> None:
    model.config.sliding_window = 5


def fewer_layers(model: nn.Module) -> None:
    model.model.layers = model.model.layers[:1]
    model.config.num_hidden_layers = 1


def other_class(model: nn.Module) -> None:
    model.__class__ = type("OwnMistral", (type(model),), {})


def moved_by_a_hook(model: nn.Module) -> None:
    model.model.layers[0].self_attn._hf_hook = SimpleNamespace(execution_device="meta")


@pytest.mark.parametrize(
    ("change", "reads"),
    [
        (more_tokens, lambda parts: parts.vocab_size),
        (lower_precision, lambda parts: parts.dtype),
        (narrower_window, lambda parts: parts.plan.narrow),
        (fewer_layers, lambda parts: (parts.layers, parts.places)),
        (other_class, lambda parts: parts.direct),
        (moved_by_a_hook, lambda parts: parts.places),
    ],
    ids=lambda one: one.__name__.strip("<>"),
)
def test_parts_follow_a_change_of_the_model(change: Callable, reads: Callable) -> None:
    model = copy.deepcopy(tiny("mistral"))
    before = reads(parts_of(model))
    assert reads(parts_of(model)) == before
    change(model)
    after = reads(parts_of(model))
    architectures._REMEMBERED.pop(model)
    assert before != after == reads(parts_of(model))


def test_parts_are_looked_up_once_for_an_unchanged_model(monkeypatch: pytest.MonkeyPatch) -> None:
    finds, find = [], architectures._look_up
    monkeypatch.setattr(architectures, "_look_up", lambda model: (finds.append(1), find(model))[1])
    model = copy.deepcopy(tiny("llava"))
    first = parts_of(model)
    for step in (lambda: None, model.train, model.eval, lambda: load(model)):
        step()
        assert parts_of(model) == first
        mmspec.generate(model, **prompt("llava"), max_new_tokens=4, do_sample=False)
    assert finds == [1]


def test_checkpointing_is_refused_while_a_known_model_trains() -> None:
    model = copy.deepcopy(tiny("llama"))
    model.gradient_checkpointing_enable()
    assert parts_of(model).model is model
    model.train()
    with pytest.raises(ValueError, match="gradient checkpointing"):
        parts_of(model)
    assert parts_of(model.eval()).model is model


def test_an_attention_without_trees_is_refused_for_a_known_model() -> None:
    model = copy.deepcopy(tiny("llama"))
    parts_of(model)
    model.config._attn_implementation = "flash_attention_2"
    with pytest.raises(ValueError, match="attn_implementation: expected 'sdpa' or 'eager'"):
        parts_of(model)
    model.set_attn_implementation("eager")
    assert parts_of(model).model is model


MAKERS = {
    "attention": lambda: tiny("llama"),
    "recurrent": lambda: model_with("Qwen3_5ForCausalLM"),
    "turning": lambda: model_of("llama", "dynamic"),
}


@pytest.mark.default_cells("attention")
@pytest.mark.parametrize("name", MAKERS)
def test_a_deleted_model_is_freed(name: str) -> None:
    model = copy.deepcopy(MAKERS[name]())
    run = mmspec.vlm.start(model, input_ids=torch.tensor([[5, 6, 7, 8]]), max_new_tokens=4, do_sample=False)
    run.run()
    gone, weights = ref(model), ref(model.get_decoder())
    del model, run
    gc.collect()
    assert gone() is None and weights() is None


def test_each_request_reads_the_current_parts_of_the_model() -> None:
    model, inputs = copy.deepcopy(tiny("llama")), prompt("llama")
    before = mmspec.generate(model, **inputs, max_new_tokens=8, do_sample=False)
    head = model.get_output_embeddings()
    new = nn.Linear(head.in_features, head.out_features, bias=False).requires_grad_(False)
    new.weight.copy_(head.weight.flip(0))
    model.set_output_embeddings(new)
    out = mmspec.generate(model, **inputs, max_new_tokens=8, do_sample=False)
    assert torch.equal(out, model.generate(**inputs, max_new_tokens=8, do_sample=False)) and not torch.equal(
        out, before
    )


def test_the_copy_of_a_drafter_follows_writes_through_data() -> None:
    module, like = nn.Linear(3, 3), torch.empty(0, dtype=torch.bfloat16)
    first = module_like(module, like)
    assert module_like(module, like).weight is first.weight
    module.weight.data.mul_(2)
    assert torch.equal(module_like(module, like).weight, module.weight.to(torch.bfloat16))
