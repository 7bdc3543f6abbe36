"""Emu3-Gen: rows of image tokens inside the language model's vocabulary, each row with an end token."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor, nn

from mmspec.imagegen.adapters.decoder_model import (
    DecoderModel,
    ImageVocabulary,
    check_grid,
    codes_in_order,
    latent_side,
    unit_range,
)
from mmspec.imagegen.adapters.prompts import TokenPrompts, token_rows
from mmspec.imagegen.geometry import Geometry

NEGATIVE_PROMPT = (
    "lowres, bad anatomy, bad hands, text, error, missing fingers, extra digit, fewer digits, cropped, worst quality, low "
    "quality, normal quality, jpeg artifacts, signature, watermark, username, blurry."
)
FACTOR = 8  # pixels per code of the published tokenizer
_END_OF_LINE, _END_OF_FRAME, _END_OF_IMAGE = "<|extra_200|>", "<|extra_201|>", "<|image end|>"


class Emu3(DecoderModel):
    """The adapter of `Emu3ForConditionalGeneration`, or of `Emu3ForCausalLM` with its processor ("Emu3: Next-Token
    Prediction is All You Need"); `size` is (height, width) in pixels. End-of-line is forced behind every row, then
    end-of-frame, end-of-image and end-of-sequence. The unconditional branch of texts is the text `negative` with the
    same image header, as in the authors' code but not in transformers' example. For token ids it is
    `negative_prompt_ids`, or else the last token, as in `generate`. Users add the published quality suffix."""

    name = "Emu3"

    def __init__(
        self,
        model: nn.Module,
        processor: object = None,
        size: tuple[int, int] = (720, 720),
        negative: str = NEGATIVE_PROMPT,
    ):
        self.negative = negative
        self.vq = getattr(model.model, "vqmodel", None)
        text = getattr(model.model, "text_model", model.model)
        factor = FACTOR if self.vq is None else self.vq.vision_spatial_factor
        rows, cols = (latent_side(n, factor, name) for n, name in zip(size, ("height", "width"), strict=True))
        codes, specials = _token_ids(model, processor, self.vq)
        count = len(codes)
        geometry = Geometry(((rows, cols),), row_end=count, tail=(count + 1, count + 2, count + 3))
        super().__init__(model, text, geometry, count, processor)
        self.vocabulary = ImageVocabulary(codes, specials, self.device)
        self.size = self.vocabulary.size
        if self.vq is None:
            self.no_pixels = (
                "images: expected pixels=False, got a request for pixels from Emu3ForCausalLM, which has no image "
                "tokenizer; load Emu3ForConditionalGeneration"
            )

    def tokenize(self, text: str) -> Tensor:
        grid = self.geometry
        return self.processor(
            text=[text],
            return_for_image_generation=True,
            ratio=f"{grid.cols}:{grid.rows}",
            image_area=grid.rows * grid.cols * self.processor.downsample_ratio**2,
            return_tensors="pt",
        )["input_ids"][0]

    def prompts(self, rows: tuple[Tensor, ...], inputs: Mapping, *, texts: bool) -> TokenPrompts:
        if inputs.get("image_sizes") is not None:
            check_grid(inputs["image_sizes"], (self.geometry.rows, self.geometry.cols), "image_sizes")
        if texts:
            return TokenPrompts(rows, token_rows([self.tokenize(self.negative)]) * len(rows))
        negative = inputs.get("negative_prompt_ids")
        if negative is None:
            return TokenPrompts(rows, tuple(row[-1:] for row in rows))
        others = token_rows(negative, inputs.get("negative_prompt_attention_mask"))
        if len(others) not in (1, len(rows)):
            raise ValueError(f"negative_prompt_ids: expected 1 row or {len(rows)}, got {len(others)}")
        return TokenPrompts(rows, others * len(rows) if len(others) == 1 else others)

    def embed(self, value: Tensor) -> Tensor:
        return self.embed_tokens(self.vocabulary.ids[value])

    def logits(self, hidden: Tensor) -> Tensor:
        return self.vocabulary.logits(self.model.lm_head, hidden)

    def decode(self, codes: Tensor) -> Tensor:
        if self.vq is None:
            raise ValueError(self.no_pixels)
        return unit_range(self.vq.decode(codes.unflatten(1, (self.geometry.rows, self.geometry.cols))))

    def codebook(self) -> Tensor:
        if self.vq is None:
            raise ValueError(
                "codebook: expected a model with its image tokenizer, got Emu3ForCausalLM; load "
                "Emu3ForConditionalGeneration"
            )
        return self.vq.quantize.embedding.weight.float()


def _token_ids(model: nn.Module, processor: object, vq: nn.Module | None) -> tuple[list[int], list[int]]:
    """Return the ids of the codes, and of end-of-line, end-of-frame, end-of-image and end-of-sequence."""
    names = getattr(model.config, "vocabulary_map", None)
    if names is None:
        if processor is None:
            raise ValueError(
                f"processor: expected a processor, since {type(model).__name__} does not know which tokens are "
                "image codes, got None; give the checkpoint's processor"
            )
        names = processor.tokenizer.get_vocab()
    codes = {int(name[-8:-2]): i for name, i in names.items() if name.startswith("<|visual token")}
    missing = [name for name in (_END_OF_LINE, _END_OF_FRAME, _END_OF_IMAGE) if name not in names]
    if missing or not codes:
        raise ValueError(
            f"vocabulary_map: expected visual tokens and the ends of line, frame and image, got {len(codes)} "
            f"visual tokens, without {missing}; load the checkpoint's own config"
        )
    text = getattr(model.config, "text_config", model.config)
    end = text.eos_token_id[0] if isinstance(text.eos_token_id, (list, tuple)) else text.eos_token_id
    specials = [*(names[name] for name in (_END_OF_LINE, _END_OF_FRAME, _END_OF_IMAGE)), end]
    return codes_in_order(codes, len(codes) if vq is None else vq.config.codebook_size), specials
