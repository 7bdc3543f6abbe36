"""What a pass refuses, and that its settings reach it."""

from __future__ import annotations

import pytest
import torch

from mmspec.video import BlockPlan, Cached, FewStep, FlowMap, Rebuilt, WanConfig, wan_from_state_dict
from mmspec.video.wan.checkpoints import causvid, krea, self_forcing
from tests.video.tiny import GRID, apart, film, noise, opened, text, video, wan


@pytest.mark.parametrize(
    ("latents", "times", "sizes", "message"),
    [
        ((1, 4, 2, 4, 4), (1, 2), None, r"latents: expected \[B, 3, F, H, W\]"),
        ((1, 3, 2, 4, 5), (1, 2), None, "multiples of 2 and 2"),
        ((3, 2, 4, 4), (1, 2), None, "latents: expected"),
        ((1, 3, 2, 4, 4), (1,), None, "timestep: expected a number per frame"),
        ((1, 3, 2, 4, 4), (1, 3), None, "timestep: expected a number per frame"),
        ((1, 3, 2, 4, 4), (1, 2), (1, 2), "sizes: expected blocks of at least one frame, 2 together"),
        ((1, 3, 2, 4, 4), (1, 2), (2, 0), "sizes: expected blocks of at least one frame, 2 together"),
    ],
)
@torch.no_grad()
def test_shapes_that_do_not_fit_are_refused(latents: tuple, times: tuple, sizes: tuple | None, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        wan()(torch.zeros(latents), torch.zeros(times), wan().read(text()), sizes=sizes)


@torch.no_grad()
def test_prompts_that_do_not_fit_are_refused() -> None:
    for states in (torch.zeros(1, 5, 9), torch.zeros(5, 10)):
        with pytest.raises(ValueError, match=r"text: expected \[B, L <="):
            wan().read(states)
    with pytest.raises(ValueError, match=r"text: expected \[B, L <= 4, 10\]"):
        wan(text_len=4).read(text())
    state = opened()
    with pytest.raises(ValueError, match="text: expected 1 rows, got 2"):
        state.switch(text(rows=2), 0)
    with pytest.raises(ValueError, match="size: expected multiples of 2 and 2"):
        video().open(text(), noise(), (4, 3))


@torch.no_grad()
def test_a_prompt_is_padded_with_zeros_that_are_attended_to() -> None:
    model, x, t = wan(text_len=8), torch.randn(1, 3, 1, *GRID), torch.full((1, 1), 500.0)
    padded = torch.cat((text(), torch.zeros(1, 3, 10)), 1)
    assert torch.equal(model(x, t, model.read(text())), model(x, t, model.read(padded)))
    assert apart(model(x, t, model.read(text())), wan()(x, t, wan().read(text()))) > 1e-3


@torch.no_grad()
def test_a_timestep_between_two_numbers_is_not_rounded() -> None:
    model, x = wan(), torch.randn(1, 3, 2, *GRID)
    out = [model(x, torch.full((1, 2), t), model.read(text())) for t in (937.0, 937.5)]
    assert apart(*out) > 1e-4


@torch.no_grad()
def test_the_window_of_the_config_is_the_default() -> None:
    rolling = wan(local_attn_size=5, sink_size=1)
    of_config, asked = (opened(context, model) for context, model in ((Cached(), rolling), (Cached(5, 1), wan())))
    assert torch.equal(of_config.generate(film(5)), asked.generate(film(5)))
    assert opened(Cached(9), rolling).cache.window == 9


@torch.no_grad()
def test_flow_maps_know_where_a_step_ends() -> None:
    model = wan(gate_value=0.25)
    blocks = [opened(Cached(), model, sampler=FlowMap(2, until=until)).generate(film(2)) for until in (True, False)]
    assert apart(*blocks) > 1e-3


@pytest.mark.parametrize("context", (Cached(), Cached(7, 1), Rebuilt(3)))
@pytest.mark.parametrize("sampler", (FewStep.krea(), FlowMap(3)))
@torch.no_grad()
def test_every_sampler_draws_behind_every_context(context: object, sampler: object) -> None:
    state = video(context, sampler=sampler, plan=BlockPlan(3, first=1)).open(text(), noise(), GRID)
    committed = []
    for _ in range(3):
        committed.append(state.generate(committed))
    assert [block.shape[2] for block in committed] == [1, 3, 3] and all(block.isfinite().all() for block in committed)
    assert state.passes == 3 * sampler.passes + 2 and state.context_passes == 2


@pytest.mark.parametrize(
    "changed",
    [
        {"ffn_dim": 0},
        {"freq_dim": 3},
        {"attention_head_dim": 5},
        {"out_channels": 4},
        {"qk_norm": "none"},
        {"deltatime_type": "s"},
    ],
)
def test_configs_of_no_model_are_refused(changed: dict) -> None:
    with pytest.raises(ValueError, match=f"{next(iter(changed))}: expected"):
        WanConfig(**changed)


def test_contexts_of_no_size_are_refused() -> None:
    with pytest.raises(ValueError, match="at_once: expected at least 1"):
        Cached(at_once=0)
    with pytest.raises(ValueError, match="frames: expected at least 1"):
        Rebuilt(0)


@pytest.mark.parametrize("context", (Cached(5, 1, at_once=None), Rebuilt(3)))
@torch.no_grad()
def test_half_precision_draws_nearly_the_same(context: object) -> None:
    half = wan_from_state_dict({name: x.bfloat16() for name, x in wan().state_dict().items()}, {"num_heads": 2})
    states = [opened(context, model) for model in (wan(text_len=512), half)]
    wanted, got = (state.generate(film(4)) for state in states)
    assert got.dtype == torch.bfloat16 and wanted.dtype == torch.float32
    assert (got.float() - wanted).norm() < 0.1 * wanted.norm()


@torch.no_grad()
def test_published_models_draw_as_they_were_made_to() -> None:
    for preset, passes, times in (
        (self_forcing, 4, (1000.0, 937.5)),
        (causvid, 3, (1000.0, 757.0)),
        (krea, 5, (1000.0, 937.5)),
    ):
        model = preset(wan())
        assert (model.passes, model.plan, model.sampler.timesteps[:2]) == (passes, BlockPlan(3), times)
        state, committed = model.open(text(), noise(), GRID), []
        for _ in range(3):
            committed.append(state.generate(committed))
        assert state.passes == 3 * passes + 2
    assert isinstance(model.context, Rebuilt) and krea(wan(), steps=4).passes == 4
    four = causvid(wan(), steps=4).sampler.timesteps  # of its own shift, 8 s / (1 + 7 s)
    assert four == pytest.approx((1000.0, 960.0, 888.889, 727.273), abs=1e-3)
    with pytest.raises(ValueError, match="steps: expected 3 or 4, got 5"):
        causvid(wan(), steps=5)
    assert self_forcing(wan(), window=6, sinks=1).open(text(), noise(), GRID).cache.window == 6
