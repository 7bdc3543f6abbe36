"""Extractors read pictures as their networks were trained to, name their weights, and refuse others."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from torchvision.models.inception import Inception3, InceptionA

from mmspec.evaluate.base.prompt import EvaluationPrompt
from mmspec.evaluate.engine.judges import extractor_of
from mmspec.evaluate.quality.features import clip_scores
from mmspec.evaluate.quality.inception import Inception, published_inception, resized
from mmspec.evaluate.quality.rewards import RewardScorer, reward_scorer_of
from tests.evaluate.tiny_run import noise


def saved(model: torch.nn.Module, file: Path) -> Path:
    save_file({name: value.contiguous() for name, value in model.state_dict().items()}, file)
    return file


def scaled(model: torch.nn.Module) -> torch.nn.Module:
    """Random weights and statistics under which activations neither die nor grow."""
    generator = torch.Generator().manual_seed(0)
    for name, value in model.state_dict().items():
        if name.endswith("running_var"):
            value.uniform_(0.5, 1.5, generator=generator)
        elif name.endswith(("running_mean", "bn.bias", "fc.bias")):
            value.normal_(0, 0.1, generator=generator)
        elif value.dim() > 1:
            value.normal_(0, (2 / value[0].numel()) ** 0.5, generator=generator)
    return model.eval()


def test_the_zoo_clip_is_the_default_and_describes_itself() -> None:
    zoo = extractor_of("zoo")
    read = zoo.images([noise(1), noise(2, 64)])
    assert zoo.name == "zoo CLIP" and zoo.dim == 128 and len(zoo.hash) == 16
    assert read.features.shape == (2, 128) and read.probabilities.shape == (2, 64)
    assert read.probabilities.sum(1) == pytest.approx(1.0, abs=1e-5)
    assert zoo.texts(["a red circle"]).shape == (1, 128) and zoo.hash == extractor_of("zoo").hash


def test_the_zoos_clip_tells_its_worlds_classes_apart() -> None:
    from PIL import Image

    from mmspec.zoo.world.image import HELD_OUT, class_image_scene, render_image_scene

    labels = list(range(0, 64, 4))
    pictures = [Image.fromarray(render_image_scene(class_image_scene(label, HELD_OUT + label))) for label in labels]
    found = extractor_of("zoo").images(pictures).probabilities.argmax(1)
    assert np.mean(found == labels) > 0.8


@pytest.mark.parametrize("size", [(5, 9), (299, 299), (640, 300), (1, 1)])
def test_the_published_resize_reads_pixel_i_at_i_times_the_ratio(size: tuple) -> None:
    pixels = torch.rand(1, 2, *size)
    out = resized(pixels, 7)
    for row in range(7):
        for column in (0, 3, 6):
            y, x = row * size[0] / 7, column * size[1] / 7
            low = (int(y), int(x))
            high = tuple(min(bound + 1, most - 1) for bound, most in zip(low, size, strict=True))
            a, b = y - low[0], x - low[1]
            corners = [
                (1 - a) * (1 - b) * pixels[0, :, low[0], low[1]],
                (1 - a) * b * pixels[0, :, low[0], high[1]],
                a * (1 - b) * pixels[0, :, high[0], low[1]],
                a * b * pixels[0, :, high[0], high[1]],
            ]
            assert torch.allclose(out[0, :, row, column], sum(corners), atol=1e-5)
    smooth = F.interpolate(pixels, (7, 7), mode="bilinear", align_corners=False)
    assert size in ((1, 1),) or not torch.allclose(out, smooth, atol=1e-3)


@pytest.mark.whole
@pytest.mark.slow
def test_both_forms_of_inception_are_recognised_by_their_files(tmp_path: Path) -> None:
    plain = scaled(Inception3(num_classes=1000, aux_logits=True, transform_input=False, init_weights=False))
    published = scaled(published_inception())
    first = Inception(saved(plain, tmp_path / "torchvision.safetensors"))
    second = Inception(saved(published, tmp_path / "published.safetensors"))
    assert "torchvision" in first.name and "published" in second.name and first.hash != second.hash
    picture = noise(3, 32)
    one, two = first.images([picture]), second.images([picture])
    assert one.features.shape == two.features.shape == (1, 2048)
    assert one.probabilities.shape == (1, 1000) and two.probabilities.shape == (1, 1008) and first.texts(["x"]) is None
    # torchvision's own forward pass, from pixels prepared here
    pixels = torch.from_numpy(np.array(picture)).permute(2, 0, 1)[None].float() / 255
    mean, spread = torch.tensor([0.485, 0.456, 0.406]), torch.tensor([0.229, 0.224, 0.225])
    large = F.interpolate(pixels, (299, 299), mode="bilinear", antialias=True)
    with torch.no_grad():
        logits = plain((large - mean.view(1, 3, 1, 1)) / spread.view(1, 3, 1, 1))
    assert one.probabilities == pytest.approx(logits.softmax(1).numpy(), abs=1e-5)
    # the published blocks are torchvision's but for what their pooled branches average over
    state = published.state_dict()
    block = published.Mixed_5b
    x = torch.rand(1, 192, 5, 5)
    with torch.no_grad():
        own, torchvisions = block(x), torch.cat(InceptionA._forward(block, x), 1)
    assert torch.allclose(own[..., 1:-1, 1:-1], torchvisions[..., 1:-1, 1:-1], atol=1e-5)
    assert not torch.allclose(own[..., 0, :], torchvisions[..., 0, :], atol=1e-3)
    assert state["fc.weight"].shape == (1008, 2048) and not any(name.startswith("AuxLogits") for name in state)


def test_weights_of_another_network_are_refused(tmp_path: Path) -> None:
    save_file({"fc.weight": torch.zeros(10, 2048)}, tmp_path / "ten.safetensors")
    save_file({"fc.weight": torch.zeros(1000, 2048), "other": torch.zeros(1)}, tmp_path / "few.safetensors")
    with pytest.raises(ValueError, match="expected Inception v3 with 1000 classes .* or 1008 .*, got 10"):
        extractor_of(f"inception={tmp_path / 'ten.safetensors'}")
    with pytest.raises(ValueError, match="too few and 1 unknown"):
        extractor_of(f"inception={tmp_path / 'few.safetensors'}")
    with pytest.raises(ValueError, match="expected a safetensors file"):
        extractor_of("inception=/nowhere.safetensors")
    with pytest.raises(ValueError, match="expected a model of open_clip, got 'ViT-Z'"):
        extractor_of("open_clip=ViT-Z@x.safetensors")


@pytest.mark.parametrize("text", ["magic", "inception", "inception=", "open_clip=ViT-B-32", "clip", "zoo=1"])
def test_other_forms_are_refused(text: str) -> None:
    with pytest.raises(
        ValueError, match="--extractor: expected zoo, inception=FILE, open_clip=MODEL@FILE or clip=FOLDER, got"
    ):
        extractor_of(text)


def test_open_clip_with_a_file_of_the_users(tmp_path: Path) -> None:
    import open_clip

    tower = {
        "embed_dim": 16,
        "vision_cfg": {"image_size": 32, "layers": 1, "width": 64, "head_width": 32, "patch_size": 16},
        "text_cfg": {"context_length": 77, "vocab_size": 49408, "width": 64, "heads": 2, "layers": 1},
    }
    (tmp_path / "tiny-tower.json").write_text(json.dumps(tower))
    open_clip.add_model_config(tmp_path / "tiny-tower.json")
    model, _, prepare = open_clip.create_model_and_transforms("tiny-tower", load_weights=False)
    made = extractor_of(f"open_clip=tiny-tower@{saved(model.eval(), tmp_path / 'w.safetensors')}")
    with torch.no_grad():
        expected = model.encode_image(prepare(noise(1))[None])
    read = made.images([noise(1), noise(2)])
    assert read.features.shape == (2, made.dim) == (2, 16) and read.probabilities is None
    assert read.features[:1] == pytest.approx(expected.numpy(), abs=1e-5)
    assert clip_scores(read.features, made.texts(["a", "b"])).shape == (2,)
    save_file({"w": torch.zeros(1)}, tmp_path / "other.safetensors")
    with pytest.raises(ValueError, match="expected the weights of open_clip's tiny-tower"):
        extractor_of(f"open_clip=tiny-tower@{tmp_path / 'other.safetensors'}")


def test_a_clip_of_transformers_from_its_folder(tmp_path: Path) -> None:
    from transformers import CLIPConfig, CLIPImageProcessor, CLIPModel, CLIPProcessor, CLIPTokenizerFast

    words = ["a", "b", "a</w>", "b</w>", "<|startoftext|>", "<|endoftext|>"]
    (tmp_path / "vocab.json").write_text(json.dumps({word: number for number, word in enumerate(words)}))
    (tmp_path / "merges.txt").write_text("#version: 0.2\n")
    tokenizer = CLIPTokenizerFast(str(tmp_path / "vocab.json"), str(tmp_path / "merges.txt"))
    sizes = dict(hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2)
    config = CLIPConfig(
        text_config={**sizes, "vocab_size": 6, "max_position_embeddings": 8, "bos_token_id": 4, "eos_token_id": 5},
        vision_config={**sizes, "image_size": 16, "patch_size": 8},
        projection_dim=12,
    )
    model = CLIPModel(config).eval()
    crop = {"height": 16, "width": 16}
    CLIPProcessor(CLIPImageProcessor(size={"shortest_edge": 16}, crop_size=crop), tokenizer).save_pretrained(
        tmp_path / "clip"
    )
    model.save_pretrained(tmp_path / "clip")
    made = extractor_of(f"clip={tmp_path / 'clip'}")
    read, said = made.images([noise(1), noise(2)]), made.texts(["a", "b"])
    assert read.features.shape == said.shape == (2, 12) and made.dim == 12 and "clip" in made.name
    given = made.processor(images=[noise(1)], text=["a"], return_tensors="pt", padding=True)
    with torch.no_grad():
        both = model(**given)
    cosine = float(both.logits_per_image[0, 0] / model.logit_scale.exp())
    assert clip_scores(read.features[:1], said[:1])[0] == pytest.approx(max(100 * cosine, 0.0), abs=1e-3)


def test_a_reward_scores_pictures_and_films_by_the_mean_of_their_frames() -> None:
    seen: list[tuple] = []

    def bright(frames: torch.Tensor, prompt: str) -> torch.Tensor:
        seen.append((tuple(frames.shape), frames.dtype, prompt))
        return frames.float().mean((1, 2, 3))

    scorer = RewardScorer(bright, "hash")
    film = np.stack([np.full((4, 6, 3), value, np.uint8) for value in (10, 30)])
    picture = noise(1, 8)
    found = scorer([picture, film], [EvaluationPrompt("a", ("x",)), EvaluationPrompt("b", ("y",))])
    assert found == pytest.approx([np.asarray(picture).mean(), 20.0])
    assert seen == [((1, 3, 8, 8), torch.uint8, "x"), ((2, 3, 4, 6), torch.uint8, "y")]


@pytest.mark.parametrize("text", ["magic", "imagereward=a", "hpsv2=", "hpsv2=a@b", "pickscore", "zoo=1"])
def test_other_forms_of_rewards_are_refused(text: str) -> None:
    with pytest.raises(
        ValueError, match="--reward: expected zoo, imagereward=FILE@VOCABULARY, hpsv2=FILE or pickscore=FILE"
    ):
        reward_scorer_of(text)
