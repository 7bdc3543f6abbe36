"""Users' code around modules: drafted requests run it as `transformers.generate` does, or are refused by its name."""

from __future__ import annotations

import copy
import itertools
import types
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial, wraps

import pytest
import torch
from accelerate import cpu_offload
from accelerate.hooks import ModelHook, add_hook_to_module
from torch import Tensor, nn
from torch.nn.modules import module as torch_module
from torch.utils.hooks import RemovableHandle

import mmspec
from mmspec.core.round import code_state
from mmspec.drafters import PromptLookup, SmallModel
from mmspec.vlm.architectures import parts_of
from tests.vlm.drafters.trained import make
from tests.vlm.tiny import prompt, tiny

GREEDY = dict(max_new_tokens=16, do_sample=False)
Change = Callable[[Tensor], Tensor]


def push(states: Tensor) -> Tensor:
    return states.new_tensor(range(states.shape[-1])).sin() * 1.5


def everywhere(states: Tensor) -> Tensor:
    return states + push(states)


def last_position(states: Tensor) -> Tensor:
    states = states.clone()
    states[:, -1] += push(states)
    return states


def prompts_alone(states: Tensor) -> Tensor:
    return everywhere(states) if states.shape[1] > 1 else states


def long_prompts_alone(states: Tensor) -> Tensor:
    return everywhere(states) if states.shape[1] > 10 else states


def answers_alone(states: Tensor) -> Tensor:
    return everywhere(states) if states.shape[1] == 1 else states


def over_positions(states: Tensor) -> Tensor:
    return states - states.mean(1, keepdim=True) / 2


BY_POSITION = {f.__name__: f for f in (last_position, prompts_alone, long_prompts_alone, answers_alone, over_positions)}
PLACES = {
    "model": lambda model: model,
    "decoder": lambda model: model.model,
    "layer": lambda model: model.model.layers[1],
    "attention": lambda model: model.model.layers[1].self_attn,
    "projection": lambda model: model.model.layers[0].mlp.down_proj,
    "norm": lambda model: model.model.norm,
    "embedding": lambda model: model.model.embed_tokens,
    "head": lambda model: model.lm_head,
}


def changed(output: object, change: Change) -> object:
    """An output of a module with its states changed."""
    for name in ("last_hidden_state", "logits"):
        if hasattr(output, name):
            output[name] = change(output[name])
            return output
    return (change(output[0]), *output[1:]) if isinstance(output, tuple) else change(output)


def forward_hook(module: nn.Module, change: Change) -> Callable[[], None]:
    return module.register_forward_hook(lambda module, args, output: changed(output, change)).remove


def pre_hook(module: nn.Module, change: Change) -> Callable[[], None]:
    return module.register_forward_pre_hook(lambda module, args: (change(args[0]), *args[1:])).remove


def pre_hook_with_kwargs(module: nn.Module, change: Change) -> Callable[[], None]:
    def before(module: nn.Module, args: tuple, kwargs: dict) -> tuple[tuple, dict]:
        return (change(args[0]), *args[1:]), dict(kwargs)

    return module.register_forward_pre_hook(before, with_kwargs=True).remove


def lambda_forward(module: nn.Module, change: Change) -> Callable[[], None]:
    own = module.forward
    module.forward = lambda *args, **kwargs: changed(own(*args, **kwargs), change)
    return partial(delattr, module, "forward")


def method_forward(module: nn.Module, change: Change) -> Callable[[], None]:
    def forward(self: nn.Module, *args: object, **kwargs: object) -> object:
        return changed(type(self).forward(self, *args, **kwargs), change)

    module.forward = types.MethodType(forward, module)
    return partial(delattr, module, "forward")


def partial_forward(module: nn.Module, change: Change) -> Callable[[], None]:
    def forward(own: Callable, *args: object, **kwargs: object) -> object:
        return changed(own(*args, **kwargs), change)

    module.forward = partial(forward, module.forward)
    return partial(delattr, module, "forward")


def wrapping_forward(module: nn.Module, change: Change) -> Callable[[], None]:
    own = module.forward

    @wraps(own)
    def forward(*args: object, **kwargs: object) -> object:
        return changed(own(*args, **kwargs), change)

    module.forward = forward
    return partial(delattr, module, "forward")


def class_forward(module: nn.Module, change: Change) -> Callable[[], None]:
    kind, own = type(module), type(module).forward
    kind.forward = lambda self, *args, **kwargs: changed(own(self, *args, **kwargs), change)
    return partial(setattr, kind, "forward", own)


def global_hook(module: nn.Module, change: Change) -> Callable[[], None]:
    kind = type(module)

    def after(module: nn.Module, args: tuple, output: object) -> object:
        return changed(output, change) if type(module) is kind else None

    return torch_module.register_module_forward_hook(after).remove


class Wrapped(nn.Module):
    """A module in place of another, which it runs."""

    def __init__(self, inner: nn.Module, change: Change):
        super().__init__()
        self.inner, self.change = inner, change

    def forward(self, *args: object, **kwargs: object) -> object:
        return changed(self.inner(*args, **kwargs), self.change)


class Changing(ModelHook):
    """A hook as accelerate installs it."""

    def __init__(self, change: Change):
        self.change = change

    def post_forward(self, module: nn.Module, output: object) -> object:
        return changed(output, self.change)


def accelerate_hook(module: nn.Module, change: Change) -> Callable[[], None]:
    add_hook_to_module(module, Changing(change))
    return lambda: None


WAYS = (
    forward_hook,
    pre_hook,
    pre_hook_with_kwargs,
    lambda_forward,
    method_forward,
    partial_forward,
    wrapping_forward,
    class_forward,
    global_hook,
    accelerate_hook,
)


def drafters() -> dict[str, object]:
    return {"lookup": PromptLookup(), "small": SmallModel(tiny("llama")), "eagle": make("eagle"), "auto": "auto"}


@pytest.fixture
def model() -> nn.Module:
    return copy.deepcopy(tiny("llama"))


@pytest.fixture
def inputs() -> dict:
    return prompt("llama") | GREEDY


@contextmanager
def code_on(module: nn.Module, way: Callable, change: Change) -> Iterator[None]:
    remove = way(module, change)
    try:
        yield
    finally:
        remove()


def same_with_all(model: nn.Module, inputs: dict) -> Tensor:
    expected = model.generate(**inputs)
    for name, drafter in ({"none": None} | drafters()).items():
        assert torch.equal(mmspec.generate(model, drafter=drafter, **inputs), expected), name
    return expected


def refused_with_drafts(model: nn.Module, inputs: dict, sentence: str) -> None:
    expected = model.generate(**inputs)
    assert torch.equal(mmspec.generate(model, **inputs), expected)
    for drafter in drafters().values():
        with pytest.raises(ValueError, match=sentence) as caught:
            mmspec.generate(model, drafter=drafter, **inputs)
        assert "\n" not in str(caught.value) and str(caught.value).count(". ") == 0


@pytest.mark.parametrize("place", PLACES)
def test_code_that_treats_positions_alike_keeps_drafting(model: nn.Module, inputs: dict, place: str) -> None:
    plain = model.generate(**inputs)
    with code_on(PLACES[place](model), forward_hook, everywhere):
        steered = same_with_all(model, inputs)
        stats = mmspec.generate(model, drafter=PromptLookup(), return_dict=True, **inputs).stats
    assert stats.exact and not torch.equal(steered, plain)
    assert torch.equal(mmspec.generate(model, drafter=PromptLookup(), **inputs), plain)


@pytest.mark.covering(strength=1)
@pytest.mark.parametrize("change", BY_POSITION)
@pytest.mark.parametrize("place", PLACES)
def test_code_that_counts_positions_is_refused_by_name(model: nn.Module, place: str, change: str) -> None:
    inputs, module = prompt("llama", batch=4) | GREEDY, PLACES[place](model)
    name = next(name for name, part in model.named_modules() if part is module) or "the model itself"
    with code_on(module, forward_hook, BY_POSITION[change]):
        plain = mmspec.generate(model, **inputs)
        assert torch.equal(plain, model.generate(**inputs))
        with pytest.raises(ValueError, match=rf"remove the forward hook <lambda> on {name}"):
            mmspec.generate(model, drafter=PromptLookup(), **inputs)


@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
def test_every_way_to_add_code_is_proved_or_refused(model: nn.Module, inputs: dict, way: Callable) -> None:
    module = model.model.layers[1].mlp
    with code_on(module, way, everywhere):
        same_with_all(model, inputs)
    with code_on(copied := copy.deepcopy(model).model.layers[1].mlp, way, last_position):
        whole = copy.deepcopy(model)
        whole.model.layers[1].mlp = copied
        refused_with_drafts(whole, inputs, r"remove the .*(hook|forward) .* on (model\.layers\.[01]\.mlp|every module)")


@pytest.mark.parametrize("change", (everywhere, last_position))
@pytest.mark.parametrize("place", ("model.layers.1", "model.layers.0.self_attn", "lm_head"))
def test_a_replaced_module_is_proved_or_refused(model: nn.Module, inputs: dict, place: str, change: Change) -> None:
    model.set_submodule(place, Wrapped(model.get_submodule(place), change))
    if change is everywhere:
        expected = model.generate(**inputs)
        for drafter in (None, PromptLookup(), "auto"):
            assert torch.equal(mmspec.generate(model, drafter=drafter, **inputs), expected)
    else:
        with pytest.raises(ValueError, match=f"remove the module Wrapped on {place}, or decode with drafter=None"):
            mmspec.generate(model, drafter=PromptLookup(), **inputs)
        assert torch.equal(mmspec.generate(model, **inputs), model.generate(**inputs))


def test_a_patched_forward_is_not_asked_for_position_ids(model: nn.Module) -> None:
    """Neither alone nor in a padded batch, whose positions `generate` then counts by slots."""
    own = model.forward
    model.forward = lambda *args, **kwargs: own(*args, **kwargs)
    for inputs in (prompt("llama"), prompt("llama", batch=4)):
        same_with_all(model, inputs | GREEDY)


class Counter:
    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, module: nn.Module, args: tuple, output: Tensor) -> Tensor:
        self.calls += 1
        return everywhere(output) if self.calls % 3 == 0 else output


class CounterOfClass:
    calls = 0

    def hook(self, module: nn.Module, args: tuple, output: Tensor) -> Tensor:
        CounterOfClass.calls += 1
        return everywhere(output) if self.calls > 1000 else output


class CounterModule(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("calls", torch.zeros((), dtype=torch.long))

    def forward(self, module: nn.Module, args: tuple, output: Tensor) -> Tensor:
        self.calls += 1
        return everywhere(output) if self.calls > 1000 else output


def closure() -> Callable:
    calls = 0

    def hook(module: nn.Module, args: tuple, output: Tensor) -> Tensor:
        nonlocal calls
        calls += 1
        return everywhere(output) if calls > 1000 else output

    return hook


def iterator() -> Callable:
    calls = itertools.count()
    return lambda module, args, output: everywhere(output) if next(calls) > 1000 else output


def generator() -> Callable:
    rng = torch.Generator()
    return lambda module, args, output: output + 1e-6 * torch.rand((), generator=rng)


STATEFUL = {
    "counter": (Counter, "keeps state"),
    "class counter": (lambda: CounterOfClass().hook, "keeps state"),
    "module counter": (CounterModule, "keeps state"),
    "closure": (closure, "keeps state"),
    "iterator": (iterator, "keeps state"),
    "own generator": (generator, "keeps state"),
    "noise": (lambda: lambda module, args, output: output + 1e-6 * torch.randn_like(output), "draws random numbers"),
}


@pytest.mark.parametrize("kind", STATEFUL)
def test_code_with_state_is_refused_and_runs_plainly(model: nn.Module, inputs: dict, kind: str) -> None:
    make_hook, sentence = STATEFUL[kind]
    for drafter in drafters().values():
        handle = model.model.layers[0].register_forward_hook(make_hook())
        with pytest.raises(ValueError, match=f"code that {sentence}.*; remove the forward hook .* on model.layers.0"):
            mmspec.generate(model, drafter=drafter, **inputs)
        handle.remove()
    outputs = []
    for run in (model.generate, partial(mmspec.generate, model)):
        handle = model.model.layers[0].register_forward_hook(make_hook())
        torch.manual_seed(3)
        outputs.append(run(**inputs))
        handle.remove()
    assert torch.equal(*outputs)


def test_a_trial_leaves_no_trace_in_the_code(model: nn.Module, inputs: dict) -> None:
    """What a probe has recorded is what the request gave it, and a counter has counted its passes."""
    seen, counter = [], Counter()
    handles = [
        model.model.layers[0].register_forward_hook(lambda module, args, output: seen.append(output.shape[1])),
        model.model.layers[1].register_forward_hook(counter),
    ]
    model.generate(**inputs)
    expected, calls = list(seen), counter.calls
    seen.clear()
    counter.calls = 0
    mmspec.generate(model, **inputs)
    assert seen == expected and counter.calls == calls
    handles[1].remove()
    seen.clear()
    stats = mmspec.generate(model, drafter=PromptLookup(), return_dict=True, **inputs).stats
    assert len(seen) == stats.target_passes and seen[0] == inputs["input_ids"].shape[1]


class Steering:
    """A hook whose settings change between requests."""

    active, last = False, False

    def __call__(self, module: nn.Module, args: tuple, output: Tensor) -> Tensor | None:
        if not self.active:
            return None
        return last_position(output) if self.last else everywhere(output)


def test_a_change_between_requests_is_noticed(model: nn.Module, inputs: dict) -> None:
    steering, vector = Steering(), torch.zeros(32)

    def by_vector(module: nn.Module, args: tuple, output: Tensor) -> Tensor:
        output = output.clone()
        output[:, -1] += vector
        return output

    def drafted() -> bool:
        return torch.equal(mmspec.generate(model, drafter=PromptLookup(), **inputs), model.generate(**inputs))

    handle = model.model.layers[1].register_forward_hook(steering)
    assert drafted()
    steering.active = True
    assert drafted()
    steering.last = True
    with pytest.raises(ValueError, match="the forward hook Steering on model.layers.1"):
        drafted()
    handle.remove()
    assert drafted()
    handle = model.model.layers[1].register_forward_hook(by_vector)
    assert drafted()
    vector += 3
    with pytest.raises(ValueError, match="the forward hook .*by_vector on model.layers.1"):
        drafted()
    handle.remove()
    assert drafted()


def test_a_proof_is_stored_while_a_probe_records(
    model: nn.Module, inputs: dict, monkeypatch: pytest.MonkeyPatch
) -> None:
    trials, seen = [], {"states": [], "norm": 0.0}

    def probe(module: nn.Module, args: tuple, output: Tensor) -> None:
        seen["states"].append(output.detach())
        seen["last"] = output.detach()

    restored = code_state.CodeState.restored
    monkeypatch.setattr(code_state.CodeState, "restored", lambda self: (trials.append(1), restored(self))[1])
    model.model.layers[1].register_forward_hook(probe)
    for _ in range(3):
        mmspec.generate(model, drafter=PromptLookup(), **inputs)
    assert trials == [1]


def test_an_enabled_model_refuses_code_and_goes_on_without_it(model: nn.Module, inputs: dict) -> None:
    plain = model.generate(**inputs)
    with mmspec.enable(model, PromptLookup()):
        handle = forward_hook(model.model.layers[0], last_position)
        with pytest.raises(ValueError, match="on model.layers.0"):
            model.generate(**inputs)
        handle()
        assert torch.equal(model.generate(**inputs), plain)
    with mmspec.enable(model, PromptLookup(), otherwise="plain"), code_on(model.lm_head, forward_hook, last_position):
        with pytest.warns(UserWarning):
            assert torch.equal(model.generate(**inputs), type(model).generate(model, **inputs))


@pytest.mark.parametrize("kind", ("llava", "qwen2_5_vl", "qwen3_vl"))
def test_code_on_models_that_read_pictures(kind: str) -> None:
    model, inputs = copy.deepcopy(tiny(kind)), prompt(kind, 1) | GREEDY
    tower = getattr(model.model, "vision_tower", None) or model.model.visual
    passes: list[int] = []
    handle: RemovableHandle = tower.register_forward_hook(lambda module, args, output: passes.append(1))
    expected = model.generate(**inputs)
    once = len(passes)
    assert not parts_of(model).code  # it runs in the prefill alone, which is the class's own
    for drafter in (None, PromptLookup(), make("msd"), "auto"):
        passes.clear()
        assert torch.equal(mmspec.generate(model, drafter=drafter, **inputs), expected) and len(passes) == once
    handle.remove()
    layer = model.get_decoder().layers[1]
    with code_on(layer, forward_hook, everywhere):
        expected = model.generate(**inputs)
        for drafter in (None, PromptLookup(), make("msd"), "auto"):
            assert torch.equal(mmspec.generate(model, drafter=drafter, **inputs), expected)
    with (
        code_on(layer, forward_hook, last_position),
        pytest.raises(ValueError, match="layers.1, or decode with drafter"),
    ):
        mmspec.generate(model, drafter=make("msd"), **inputs)


def test_the_code_of_libraries_needs_no_proof(model: nn.Module, inputs: dict) -> None:
    expected = model.generate(**inputs)
    compiled = copy.deepcopy(model)
    compiled.model.layers[0] = torch.compile(compiled.model.layers[0], backend="eager", dynamic=True)
    compiled.lm_head.forward = torch.compile(compiled.lm_head.forward, backend="eager", dynamic=True)
    offloaded = copy.deepcopy(model)
    cpu_offload(offloaded, execution_device=torch.device("cpu"))
    weighted = copy.deepcopy(model)
    nn.utils.parametrizations.weight_norm(weighted.lm_head)
    for changed_model in (compiled, offloaded, weighted):
        assert not parts_of(changed_model).code
        assert torch.equal(mmspec.generate(changed_model, drafter=PromptLookup(), **inputs), expected)
    offloaded.model.layers[1].register_forward_hook(lambda module, args, output: last_position(output))
    with pytest.raises(ValueError, match="on model.layers.1"):
        mmspec.generate(offloaded, drafter=PromptLookup(), **inputs)


def test_strict_and_captured_requests_with_code(model: nn.Module, inputs: dict) -> None:
    with code_on(model.model.layers[1], forward_hook, everywhere):
        expected = model.generate(**inputs)
        assert torch.equal(mmspec.generate(model, drafter=PromptLookup(), strict=True, **inputs), expected)
        with pytest.warns(RuntimeWarning, match="capture: .*the forward hook .* on model.layers.1"):
            assert torch.equal(mmspec.generate(model, capture=True, **inputs), expected)
    with code_on(model.model.layers[1], forward_hook, last_position):
        assert torch.equal(mmspec.generate(model, strict=True, **inputs), model.generate(**inputs))
        with pytest.raises(ValueError, match="on model.layers.1"):
            mmspec.generate(model, drafter=PromptLookup(), strict=True, **inputs)


def test_scores_behind_rows_that_end_early(model: nn.Module) -> None:
    inputs = prompt("llama", batch=4) | GREEDY | dict(return_dict_in_generate=True, output_scores=True)
    with code_on(model.model.layers[1], forward_hook, last_position):
        inputs["eos_token_id"] = int(model.generate(**inputs).sequences[0, -8])
        ours, theirs = mmspec.generate(model, **inputs), model.generate(**inputs)
    assert torch.equal(ours.sequences, theirs.sequences)
    for mine, other in zip(ours.scores, theirs.scores, strict=True):
        torch.testing.assert_close(mine, other, rtol=1e-4, atol=1e-3)
