"""Random tiny LlamaGen models whose laws are not flat."""

from __future__ import annotations

import torch
from transformers import PreTrainedTokenizerFast, T5Config, T5EncoderModel

from mmspec.imagegen.llamagen.llamagen_config import GPTConfig
from mmspec.imagegen.llamagen.transformer import Transformer
from mmspec.imagegen.llamagen.vq import VQConfig, VQModel

CLASS = GPTConfig(dim=32, n_layer=2, n_head=4, vocab_size=16, block_size=16, num_classes=5)
CAPTION = GPTConfig(
    dim=32, n_layer=2, n_head=4, vocab_size=16, block_size=16, model_type="t2i", cls_token_num=6, caption_dim=8
)
CODES = VQConfig(
    codebook_size=16, encoder_ch_mult=(1, 1), decoder_ch_mult=(1, 1), z_channels=8, ch=32, num_res_blocks=1
)
WORDS = "a an red blue circle square on the left right , .".split()


def transformer(config: GPTConfig, scale: float = 6.0) -> Transformer:
    torch.manual_seed(0)
    model = Transformer(config).eval().requires_grad_(False)
    for weight in model.parameters():
        if weight.dim() > 1:
            weight.mul_(scale)
    return model


def tokenizer_model() -> VQModel:
    torch.manual_seed(1)
    return VQModel(CODES).eval().requires_grad_(False)


def word_tokenizer() -> PreTrainedTokenizerFast:
    from tokenizers import Tokenizer, models, pre_tokenizers, processors

    names = ["<pad>", "</s>", "<unk>", *WORDS]
    made = Tokenizer(models.WordLevel({name: i for i, name in enumerate(names)}, unk_token="<unk>"))
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    made.post_processor = processors.TemplateProcessing(single="$A </s>", special_tokens=[("</s>", 1)])
    return PreTrainedTokenizerFast(tokenizer_object=made, pad_token="<pad>", eos_token="</s>", unk_token="<unk>")


def text_encoder() -> T5EncoderModel:
    torch.manual_seed(2)
    config = T5Config(vocab_size=3 + len(WORDS), d_model=8, d_kv=4, d_ff=16, num_layers=1, num_heads=2)
    return T5EncoderModel(config).eval()
