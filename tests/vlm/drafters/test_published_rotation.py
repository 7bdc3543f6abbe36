"""What the configs of published files say of rotary positions is read by one reader: honoured, or refused."""

from __future__ import annotations

import pytest
import torch

import mmspec
from mmspec.io.pretrained import SCALED
from tests.vlm.drafters.published_files import PUBLISHED, Published, random_file
from tests.vlm.tiny import HIDDEN

SCALES = ("eagle3",)  # kinds that turn scaled positions
each = pytest.mark.parametrize("published", PUBLISHED.values(), ids=PUBLISHED)


def load(published: Published, **rope: object) -> object:
    """The small file, its config saying only this of positions."""
    config = published.small_config
    layer = config.get("transformer_layer_config", config)
    for name in ("rope_theta", "rope_scaling", "rope_parameters"):
        layer.pop(name, None)
    layer.update(rope)
    return mmspec.vlm.drafter_from_state_dict(published.kind, random_file(published.shapes(config)), config)


@pytest.mark.covering(strength=1)
@each
@pytest.mark.parametrize(
    "rope",
    (
        dict(rope_theta=1e6),
        dict(rope_theta=1e6, rope_scaling=None),
        dict(rope_parameters={"rope_type": "default", "rope_theta": 1e6}),
        dict(rope_parameters={"rope_theta": 1e6}, rope_theta=5.0),
        dict(rope_scaling={"type": "default", "rope_theta": 1e6}),
    ),
)
def test_the_base_is_found_wherever_a_config_has_it(published: Published, rope: dict) -> None:
    drafter = load(published, **rope)
    assert drafter.config.rope_theta == drafter.layer.config.rope_theta == 1e6


@pytest.mark.covering
@each
@pytest.mark.parametrize("name", ("rope_scaling", "rope_parameters"))
@pytest.mark.parametrize("kind", ("linear", "dynamic", "yarn", "longrope", "llama3"))
def test_scaled_positions_are_turned_with_or_refused(published: Published, name: str, kind: str) -> None:
    fields = {"factor": 2.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 64}
    for key in ("type", "rope_type"):
        rope = {name: {key: kind, "rope_theta": 1e5, **fields}}
        if kind in SCALED and published.kind in SCALES:
            drafter = load(published, **rope)
            assert drafter.config.rope_scaling == {"rope_type": kind, **fields} and drafter.config.rope_theta == 1e5
            assert drafter.layer.config.rope_scaling == drafter.config.rope_scaling
            continue
        with pytest.raises(ValueError, match=f"{name}: expected plain rotary positions.*, got '{kind}'"):
            load(published, **rope)


def test_lengths_that_scaled_positions_need_come_from_the_config() -> None:
    published = PUBLISHED["speculators EAGLE-3 for Llama-3.1-8B"]
    yarn = {"rope_type": "yarn", "original_max_position_embeddings": 64}
    drafter = load(published, rope_parameters=yarn, max_position_embeddings=256)
    assert drafter.config.rope_scaling == {**yarn, "factor": 4.0}
    llama3 = {"rope_type": "llama3", "factor": 2.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
    drafter = load(published, rope_parameters=llama3, max_position_embeddings=256)
    assert drafter.config.rope_scaling == {**llama3, "original_max_position_embeddings": 256}
    with pytest.raises(ValueError, match="rope_parameters: expected the fields of llama3 positions"):
        load(published, rope_parameters={"rope_type": "llama3", "factor": 2.0})


@each
def test_unsupported_rotary_settings_are_refused(published: Published) -> None:
    for rope, message in (
        (dict(partial_rotary_factor=0.5), "partial_rotary_factor: expected 1"),
        (dict(rope_parameters={"rope_theta": 1e4, "partial_rotary_factor": 0.25}), "partial_rotary_factor: expected 1"),
        (dict(rope_parameters={"full_attention": {"rope_theta": 1e6}}), "rope_parameters: expected one kind"),
        (dict(rope_scaling="linear"), "rope_scaling: expected fields of rotary positions or null, got 'linear'"),
    ):
        with pytest.raises(ValueError, match=message):
            load(published, **rope)


@each
@pytest.mark.parametrize("kind", ({"type": "mrope"}, {"rope_type": "default"}, {}))
def test_sections_make_no_difference_where_all_axes_are_equal(published: Published, kind: dict) -> None:
    rope = dict(rope_theta=1e6, rope_scaling={**kind, "mrope_section": [1, 1, 2]})
    if published.kind in ("msd", "vispec") or "speculators_model_type" in published.small_config:
        assert load(published, **rope).config.rope_theta == 1e6
        return
    if published.kind == "eagle3":  # which has the target's positions on each axis
        axes = {"rope_type": "default", "mrope_section": [1, 1, 2], "mrope_interleaved": False}
        drafter = load(published, **rope)
        assert drafter.config.rope_scaling == axes and drafter.config.rope_theta == 1e6
        return
    with pytest.raises(ValueError, match="rope_scaling: expected plain rotary positions.*, got 'mrope'"):
        load(published, **rope)


def test_a_flash_file_turns_with_its_classes_base_but_not_with_scaled_positions() -> None:
    published = PUBLISHED["EAGLE-Vicuna-7B-v1.3"]  # the layout of its autoregressive drafter
    state, config = random_file(published.shapes(published.small_config)), published.small_config
    drafter = mmspec.vlm.drafter_from_state_dict("flash", state, dict(config, rope_theta=1e6))
    assert drafter.config.rope_theta == 1e4
    with pytest.raises(ValueError, match="rope_scaling: expected plain rotary positions, got 'linear'"):
        mmspec.vlm.drafter_from_state_dict("flash", state, dict(config, rope_scaling={"type": "linear"}))


def test_the_base_read_is_the_base_turned_with() -> None:
    table = load(PUBLISHED["EAGLE-llama2-chat-7B"], rope_parameters={"rope_theta": 1e6}).layer.rotary(
        8, torch.device("cpu"), torch.float32
    )
    dim = HIDDEN // 4
    angle = torch.arange(8)[:, None] * 1e6 ** (-torch.arange(0, dim, 2) / dim)
    torch.testing.assert_close(table[:, 0, : dim // 2], angle.cos())
