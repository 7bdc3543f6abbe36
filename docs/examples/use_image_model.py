import torch
from image_model import Painter
from transformers import LlamaConfig, LlamaForCausalLM

from mmspec.imagegen import ImagePipeline

# random weights in the place of yours: ids 0 to 31 are words, 32 begins a picture, 33 to 48 are its codes
torch.manual_seed(0)
config = LlamaConfig(vocab_size=49, hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4)
pipe = ImagePipeline(Painter(LlamaForCausalLM(config).eval(), torch.rand(16, 3), first=33, begin=32, side=8))

settings = dict(guidance_scale=3.0, temperature=0.0)
plain = pipe([[3, 14, 15], [9, 26]], **settings)
for decoding in ("sjd:window=8", "scd:window=16"):
    out = pipe([[3, 14, 15], [9, 26]], decoding=decoding, **settings)
    print(
        decoding, "identical:", out.tokens.equal(plain.tokens), "passes:", out.stats.target_passes, out.images[0].size
    )
