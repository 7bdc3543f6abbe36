"""ImageReward computes what the published model does, and takes no file that would leave a part of it random."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from mmspec.video import ImageRewardScorer, Views, imagereward_from_state_dict
from mmspec.video.rewards.imagereward import LONGEST, ImageReward
from mmspec.video.rewards.imagereward_load import published_name
from tests import parity
from tests.video.rewards.reference import CONFIG, PUBLISHED, published_shapes, random_state, score

IGNORED = ("blip.vision_proj.", "blip.text_proj.", "blip.text_encoder.embeddings.position_ids")
PARITY = {
    "vision": {"img_size": 64, "patch_size": 16, "embed_dim": 32, "depth": 2, "num_heads": 2, "drop_path_rate": 0.1},
    "text": {"hidden_size": 48, "num_attention_heads": 4, "vocab_size": 64, "encoder_width": 32},
}
WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "red", "ball", "moves", "left", "##s", "green", "and"]


def inputs(batch: int = 3, length: int = 9) -> tuple[Tensor, Tensor, Tensor]:
    pixels, ids = torch.randn(batch, 3, 48, 48), torch.randint(5, 30, (batch, length))
    mask = (torch.arange(length) < torch.tensor([length, 6, 4])[:batch, None]).long()
    return pixels, ids * mask, mask


def scorer(vocabulary: Path, **settings) -> ImageRewardScorer:
    vocabulary.write_text("\n".join(WORDS) + "\n", encoding="utf-8")
    return ImageRewardScorer(imagereward_from_state_dict(random_state(), CONFIG), vocabulary, **settings)


def test_it_gives_the_published_scores() -> None:
    case = parity.case("continuous_video/e_imagereward_tiny")
    state = {name.removeprefix("w."): value for name, value in case.items() if name.startswith("w.")}
    model = imagereward_from_state_dict(state, PARITY)
    image = model.image_embeds(case["image"])
    text = model.text_hidden(image, case["input_ids"], case["attention_mask"])
    found = model(case["image"], case["input_ids"], case["attention_mask"])
    torch.testing.assert_close(image, case["image_embeds"], atol=5e-6, rtol=0)
    torch.testing.assert_close(text, case["text_hidden"], atol=5e-6, rtol=0)
    torch.testing.assert_close(found, case["score"].flatten(), atol=2e-6, rtol=0)
    torch.testing.assert_close(model.head.weight, case["mlp_fold_weight"], atol=1e-6, rtol=0)


def test_it_equals_a_forward_written_out() -> None:
    state, (pixels, ids, mask) = random_state(), inputs()
    found = imagereward_from_state_dict(state, CONFIG)(pixels, ids, mask)
    wanted = score(state, pixels, ids, mask)
    torch.testing.assert_close(found, wanted, atol=1e-5, rtol=1e-5)
    assert wanted.std() > 0.1


@pytest.mark.parametrize(
    "config",
    [
        None,
        {"hidden_size": 768, "encoder_width": 768, "model_type": "bert", "add_cross_attention": True},
        PUBLISHED["config"],
    ],
    ids=["none", "med_config.json", "both towers"],
)
def test_the_published_file_loads_at_full_size(config: dict | None) -> None:
    shapes = published_shapes()
    assert len(shapes) == PUBLISHED["num_keys"]
    model = imagereward_from_state_dict(
        {key: torch.empty(shape, device="meta") for key, shape in shapes.items()}, config
    )
    own = {published_name(name): list(value.shape) for name, value in model.state_dict().items()}
    left = {key for key in shapes if key.startswith(IGNORED)}
    assert {key: shape for key, shape in shapes.items() if key not in left and not key.startswith("mlp.")} == {
        key: shape for key, shape in own.items() if not key.startswith("head.")
    }
    assert (model.config.vision.num_heads, model.config.text.num_attention_heads) == (16, 12)
    assert {layer.self_attn.num_heads for layer in model.vision.encoder.layers} == {16}
    assert model.vision.post_layernorm.eps == 1e-6 and model.text.embeddings.LayerNorm.eps == 1e-12


def test_weights_beside_the_towers_are_ignored(tmp_path: Path) -> None:
    state, given = random_state(), inputs()
    wanted = imagereward_from_state_dict(state, CONFIG)(*given)
    bare = {key: value for key, value in state.items() if not key.startswith(IGNORED)}
    more = {**state, "blip.itm_head.weight": torch.zeros(2, 3), "blip.queue": torch.zeros(2)}
    save_file(more, tmp_path / "imagereward.safetensors")
    for sd in (
        bare,
        more,
        {"state_dict": {f"module.{key}": value for key, value in more.items()}},
        tmp_path / "imagereward.safetensors",
    ):
        torch.testing.assert_close(imagereward_from_state_dict(sd, CONFIG)(*given), wanted, atol=0, rtol=0)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda sd: sd.pop("blip.visual_encoder.blocks.1.norm2.bias"),
            r"got no blip\.visual_encoder\.blocks\.1\.norm2\.bias",
        ),
        (
            lambda sd: sd.pop("blip.text_encoder.encoder.layer.0.crossattention.self.key.weight"),
            r"got no .*crossattention",
        ),
        (lambda sd: sd.pop("mlp.layers.4.bias"), r"missing or unknown mlp\.layers\.4\.bias"),
        (lambda sd: sd.update({"mlp.layers.9.weight": torch.zeros(1, 1)}), r"missing or unknown mlp\.layers\.9\.bias"),
        (lambda sd: sd.update({"mlp.layers.7.weight": torch.zeros(2, 4)}), r"widths 20 to 1 .*\(2, 4\)"),
        (lambda sd: [sd.pop(key) for key in list(sd) if key.startswith("mlp.")], "expected linear layers under mlp"),
        (
            lambda sd: sd.update({"blip.visual_encoder.blocks.2.norm1.weight": torch.zeros(24)}),
            "unknown .*blocks.2.norm1",
        ),
        (lambda sd: sd.update({"blip.text_encoder.pooler.dense.bias": torch.zeros(20)}), "unknown .*pooler"),
        (
            lambda sd: sd.update({"blip.visual_encoder.pos_embed": torch.zeros(1, 9, 24)}),
            r"pos_embed of shape \(1, 9, 24\)",
        ),
        (lambda sd: sd.update({"blip.visual_encoder.norm.bias": 3.0}), "expected tensors, got others in"),
    ],
)
def test_a_file_that_would_leave_a_part_random_is_refused(change, message: str) -> None:
    state = random_state()
    change(state)
    with pytest.raises(ValueError, match=message):
        imagereward_from_state_dict(state, CONFIG)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (None, "num_heads: expected it in the config under vision"),
        ({"vision": {"num_heads": 3}}, "num_attention_heads: expected it in the config under text"),
        ({**CONFIG, "audio": {}}, r"expected vision, text and mlp, got \['audio'\]"),
        (
            {**CONFIG, "vision": {"num_heads": 5}},
            "vision: expected a width that is a multiple of its heads, got 24 and 5",
        ),
        ({**CONFIG, "vision": {"num_heads": "3"}}, "num_heads: expected int, got '3'"),
        ({**CONFIG, "vision": 3}, "expected fields under vision, got 3"),
        ({**CONFIG, "text": {**CONFIG["text"], "layers": 2}}, r"got \['layers'\]"),
        ({**CONFIG, "mlp": [20, 12, 1]}, "expected linear layers"),
    ],
)
def test_a_config_that_does_not_fit_is_refused(config: dict | None, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        imagereward_from_state_dict(random_state(), config)


def test_config_fields_known_from_the_weights_are_optional() -> None:
    told = {"vision": {"heads": 3}, "text": {"num_attention_heads": 2}}
    given = inputs()
    found, wanted = (imagereward_from_state_dict(random_state(), config)(*given) for config in (told, CONFIG))
    torch.testing.assert_close(found, wanted, atol=0, rtol=0)


def test_half_precision_weights_stay_as_they_are_under_a_head_in_float32() -> None:
    state, given = (
        {key: value.half() if value.is_floating_point() else value for key, value in random_state().items()},
        inputs(),
    )
    model = imagereward_from_state_dict(state, CONFIG)
    assert model.vision.post_layernorm.weight.dtype == torch.float16 and model.head.weight.dtype == torch.float32
    assert model(*given).dtype == torch.float32


def test_frames_in_a_batch_score_as_they_do_alone(tmp_path: Path) -> None:
    reward = scorer(tmp_path / "vocab.txt", views=Views(48, crops=2), batch=3)
    frames = torch.rand(5, 3, 50, 90) * 2 - 1
    found = reward(frames, "a red ball moves left")
    alone = torch.cat([reward(frame[None], "a red ball moves left") for frame in frames])
    torch.testing.assert_close(found, alone, atol=1e-5, rtol=1e-5)
    assert found.shape == (5,) and (found - reward(frames, "a green ball")).abs().min() > 1e-4


def test_prompts_are_padded_to_35_tokens_and_cut_there(tmp_path: Path) -> None:
    reward = scorer(tmp_path / "vocab.txt")
    ids, mask = reward.tokens("a red ball")
    assert ids.shape == (1, LONGEST) and ids[0, :6].tolist() == [2, 5, 6, 7, 3, 0] and int(mask.sum()) == 5
    long, _ = reward.tokens("ball " * 60)
    assert long.shape == (1, LONGEST) and long[0, 0] == 2 and long[0, -1] == 3
    frames = torch.rand(2, 3, 48, 48) * 2 - 1
    torch.testing.assert_close(reward(frames, "ball " * 60), reward(frames, "ball " * 40))


def test_a_tokenizer_object_serves_as_its_vocabulary_file_does(tmp_path: Path) -> None:
    from transformers import BertTokenizer

    by_file, frames = scorer(tmp_path / "vocab.txt"), torch.rand(2, 3, 48, 48) * 2 - 1
    tokenizer = BertTokenizer(vocab={word: number for number, word in enumerate(WORDS)}, do_lower_case=True)
    by_object = ImageRewardScorer(by_file.model, tokenizer)
    torch.testing.assert_close(by_object(frames, "A red BALL"), by_file(frames, "a red ball"), atol=0, rtol=0)


def test_inputs_that_the_scorer_cannot_use_are_refused(tmp_path: Path) -> None:
    reward = scorer(tmp_path / "vocab.txt")
    with pytest.raises(ValueError, match=r"expected squares of 48 pixels, got 224"):
        scorer(tmp_path / "vocab.txt", views=Views())
    (tmp_path / "other.txt").write_text("a\nb\n", encoding="utf-8")
    with pytest.raises(ValueError, match=r"other\.txt: expected the vocabulary of uncased BERT, got no \[PAD\]"):
        ImageRewardScorer(reward.model, tmp_path / "other.txt")
    (tmp_path / "large.txt").write_text("\n".join([*WORDS[:5], *map(str, range(40)), "ball"]), encoding="utf-8")
    with pytest.raises(ValueError, match="expected ids below 30, got 45"):
        ImageRewardScorer(reward.model, tmp_path / "large.txt")(torch.zeros(1, 3, 48, 48), "ball")
    with pytest.raises(ValueError, match=r"mmspec convert .*ImageReward\.pt OUT\.safetensors --kind reward"):
        imagereward_from_state_dict(tmp_path / "ImageReward.pt")


def test_the_class_builds_at_the_published_sizes_without_weights() -> None:
    from mmspec.video.rewards.imagereward import ImageRewardConfig

    with torch.device("meta"):
        count = sum(value.numel() for value in ImageReward(ImageRewardConfig()).parameters())
    shapes = published_shapes()
    folded = sum(torch.Size(shape).numel() for key, shape in shapes.items() if key.startswith(("mlp.", *IGNORED[:2])))
    assert count == PUBLISHED["num_parameters"] - folded + 769
