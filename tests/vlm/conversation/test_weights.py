"""A conversation whose model changes between two turns reads everything again, and says what a fresh prompt says."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import mmspec
from mmspec.vlm.conversation import Past
from tests.vlm.conversation.talks import speaking, talk
from tests.vlm.drafters.trained import make
from tests.vlm.layer_kinds import model_with, ragged
from tests.vlm.tiny import tiny

GREEDY = dict(max_new_tokens=8, do_sample=False)


class Adapter(nn.Module):
    """A linear layer with a choice of low-rank changes, as PEFT's layers are; not PEFT's own class."""

    def __init__(self, base: nn.Linear, scale: float = 0.8):
        super().__init__()
        self.base, self.active_adapters, self.scaling = base, ["first"], {"first": 1.0, "second": 1.0}
        size = (base.out_features, base.in_features)
        seeds = {name: torch.Generator().manual_seed(n) for n, name in enumerate(self.scaling)}
        self.changes = nn.ParameterDict({n: scale * torch.randn(size, generator=seed) for n, seed in seeds.items()})

    @property
    def weight(self) -> Tensor:
        return self.base.weight

    def forward(self, x: Tensor) -> Tensor:
        return self.base(x) + sum(self.scaling[n] * (x @ self.changes[n].T) for n in self.active_adapters)


def adapted() -> nn.Module:
    """A tiny Llama whose attention outputs carry adapters."""
    model = copy.deepcopy(tiny("llama"))
    for layer in model.get_decoder().layers:
        layer.self_attn.o_proj = Adapter(layer.self_attn.o_proj)
    return model.requires_grad_(False)


def other_state(model: nn.Module) -> dict[str, Tensor]:
    """Other weights of the same shapes."""
    dice = torch.Generator().manual_seed(5)
    return {n: weight + 0.5 * torch.randn(weight.shape, generator=dice) for n, weight in model.state_dict().items()}


def load(model: nn.Module) -> None:
    model.load_state_dict(other_state(model))


def assign(model: nn.Module) -> None:
    model.load_state_dict(other_state(model), assign=True)


def copy_into(model: nn.Module) -> None:
    with torch.no_grad():
        for parameter in model.get_decoder().layers[0].parameters():
            parameter.copy_(parameter + 0.5)


def write_data(model: nn.Module) -> None:
    for parameter in model.get_decoder().layers[0].parameters():
        parameter.data.add_(torch.randn(parameter.shape, generator=torch.Generator().manual_seed(1)))


def replace_data(model: nn.Module) -> None:
    weight = model.get_decoder().layers[0].self_attn.v_proj.weight
    weight.data = weight.data.flip(0)


def step(model: nn.Module) -> None:
    weights = list(model.get_decoder().layers.parameters())
    for weight in weights:
        weight.requires_grad_(True)
        weight.grad = torch.ones_like(weight)
    torch.optim.SGD(weights, lr=0.3).step()
    for weight in weights:
        weight.requires_grad_(False).grad = None


def swap_module(model: nn.Module) -> None:
    layer = model.get_decoder().layers[0]
    old = layer.self_attn.v_proj
    new = layer.self_attn.v_proj = nn.Linear(old.in_features, old.out_features, bias=False).requires_grad_(False)
    new.weight.copy_(old.weight.flip(0))


CHANGES = (load, assign, copy_into, write_data, replace_data, step, swap_module)


def switch(model: nn.Module) -> None:
    for module in model.modules():
        if isinstance(module, Adapter):
            module.active_adapters = ["second"]


def rescale(model: nn.Module) -> None:
    for module in model.modules():
        if isinstance(module, Adapter):
            module.scaling["first"] = -2.0


def turns_around(model: nn.Module, change: Callable[[nn.Module], None], drafter: object = None) -> None:
    """Two turns with a change of the model between them, and one more without."""
    past, ids = Past(model), ragged((12,), seed=3)["input_ids"]
    for number in range(3):
        if number == 1:
            change(model)
        truth = model.generate(ids, attention_mask=torch.ones_like(ids), **GREEDY)
        out = mmspec.generate(model, drafter=drafter, past_key_values=past, input_ids=ids, return_dict=True, **GREEDY)
        assert torch.equal(out.sequences, truth), number
        assert (out.read == ids.shape[1]) == (number < 2), number
        ids = torch.cat([truth, torch.tensor([[7, 8, 9]])], 1)


@pytest.mark.covering(strength=1)
@pytest.mark.parametrize("change", CHANGES, ids=lambda one: one.__name__)
@pytest.mark.parametrize("name", ("LlamaForCausalLM", "Qwen3_5ForCausalLM"))
def test_a_turn_behind_a_change_of_weights_reads_everything_again(name: str, change: Callable) -> None:
    if name != "LlamaForCausalLM" and change in (replace_data, swap_module):
        pytest.skip("its first layer has no v_proj: it is recurrent")
    turns_around(copy.deepcopy(model_with(name)), change)


@pytest.mark.parametrize("change", (switch, rescale), ids=lambda one: one.__name__)
def test_a_turn_behind_a_switched_adapter_reads_everything_again(change: Callable) -> None:
    turns_around(adapted(), change)


def test_a_turn_behind_another_attention_implementation_reads_everything_again() -> None:
    turns_around(copy.deepcopy(model_with("LlamaForCausalLM")), lambda model: model.set_attn_implementation("eager"))


@pytest.mark.parametrize("name", ("set_adapter", "disable_adapter_layers", "merge_adapter"))
def test_a_turn_behind_a_change_of_peft_reads_everything_again(name: str) -> None:
    peft = pytest.importorskip("peft", reason="needs peft")
    base = copy.deepcopy(model_with("LlamaForCausalLM"))
    config = peft.LoraConfig(r=4, target_modules=["q_proj", "v_proj"], init_lora_weights=False, lora_alpha=64)
    model = peft.get_peft_model(base, config, adapter_name="first").eval()
    model.add_adapter("second", config)
    actions = {
        "set_adapter": lambda: model.set_adapter("second"),
        "disable_adapter_layers": lambda: model.base_model.disable_adapter_layers(),
        "merge_adapter": lambda: model.merge_adapter(),
    }
    turns_around(model.get_base_model(), lambda _: actions[name]())


def test_the_pictures_of_a_turn_before_the_change_are_encoded_again() -> None:
    chat = talk("llava")
    chat.model = copy.deepcopy(chat.model)
    past = Past(chat.model)
    said = mmspec.generate(chat.model, past_key_values=past, **chat.turn(0, None), **GREEDY)
    with torch.no_grad():
        for parameter in chat.model.model.multi_modal_projector.parameters():
            parameter.mul_(-1.5)
    inputs = chat.turn(1, said)
    bare = {"input_ids": inputs["input_ids"]}  # pictures of earlier turns may still be left out
    out = mmspec.generate(chat.model, past_key_values=past, return_dict=True, **bare, **GREEDY)
    assert torch.equal(out.sequences, chat.model.generate(**inputs, **GREEDY))
    assert out.read == inputs["input_ids"].shape[1]


@pytest.mark.parametrize("name", ("eagle", "msd"))
def test_a_drafter_whose_weights_change_opens_anew(name: str) -> None:
    chat, drafter = talk("llava"), copy.deepcopy(make(name))
    past, said, states = Past(chat.model), None, []
    for number in range(3):
        if number == 1:
            with torch.no_grad():
                for parameter in drafter.parameters():
                    parameter.mul_(0.5)
        inputs = chat.turn(number, said)
        out = mmspec.generate(chat.model, drafter=drafter, past_key_values=past, **inputs, **GREEDY, return_dict=True)
        said = out.sequences
        assert torch.equal(said, chat.model.generate(**inputs, **GREEDY))
        assert (out.read == inputs["input_ids"].shape[1]) == (number < 2)
        states.append(past.state)
    assert states[0].cache is not states[1].cache


def test_another_precision_is_named_and_read_after_forget() -> None:
    model, ids = copy.deepcopy(model_with("LlamaForCausalLM")), ragged((12,), seed=3)["input_ids"]
    past = Past(model)
    said = mmspec.generate(model, past_key_values=past, input_ids=ids, **GREEDY)
    model.to(torch.bfloat16)
    with pytest.raises(ValueError, match=r"model: expected torch\.float32.*, got torch\.bfloat16.*forget\(\)"):
        mmspec.generate(model, past_key_values=past, input_ids=said, **GREEDY)
    past.forget()
    out = mmspec.generate(model, past_key_values=past, input_ids=said, return_dict=True, **GREEDY)
    assert torch.equal(out.sequences, model.generate(said, attention_mask=torch.ones_like(said), **GREEDY))
    assert out.read == said.shape[1]


def test_a_session_on_the_shipped_model_matches_fresh_calls_after_a_weight_change() -> None:
    model, processor = mmspec.zoo.load("vlm")
    session = mmspec.Session(model, processor, **GREEDY)
    session.ask("Hello there.")
    weights = {n: weight * (1.3 if "layers" in n else 1) for n, weight in model.state_dict().items()}
    model.load_state_dict(weights)
    session.add("And now?")
    inputs = session.inputs()
    truth = model.generate(**inputs, **GREEDY)
    assert torch.equal(session.generate().sequences, truth) and session.last.stats.exact
    assert session.last.read == inputs["input_ids"].shape[1]


def test_conversations_with_unchanged_weights_read_only_new_tokens() -> None:
    """Passes write nothing that counts as a change: `generate`, other conversations and gradients switched on leave it."""
    model, ids = speaking(copy.deepcopy(tiny("llama"))), ragged((9,), seed=2)["input_ids"]
    past = Past(model)
    said = mmspec.generate(model, past_key_values=past, input_ids=ids, **GREEDY)
    model.generate(ids, **GREEDY)
    model.requires_grad_(True)
    model.requires_grad_(False)
    on = torch.cat([said, torch.tensor([[7, 8]])], 1)
    out = mmspec.generate(model, past_key_values=past, input_ids=on, return_dict=True, **GREEDY)
    assert out.read == 3 and torch.equal(
        out.sequences, model.generate(on, attention_mask=torch.ones_like(on), **GREEDY)
    )
