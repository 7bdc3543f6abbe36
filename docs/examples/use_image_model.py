import torch
from image_model import Painter
from transformers import LlamaConfig, LlamaForCausalLM

from mmspec.imagegen import ImagePipeline

# random weights in the place of yours: ids 0 to 31 are words, 32 begins a picture, 33 to 48 are its codes
torch.manual_seed(0)
config = LlamaConfig(vocab_size=49, hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4)
pipe = ImagePipeline(Painter(LlamaForCausalLM(config).eval(), torch.rand(16, 3), first=33, begin=32, side=8))

prompts = [[3, 14, 15], [9, 26]]  # token ids; texts where the adapter has a tokenizer
greedy = dict(guidance_scale=3.0, temperature=0.0)
out = pipe(prompts, decoding="sjd:window=8", **greedy)
print("identical:", out.tokens.equal(pipe(prompts, **greedy).tokens), out.images[0].size)

out = pipe(prompts, decoding="scd:window=16", guidance_scale=3.0, seed=0)
print("exact:", out.stats.exact, out.tokens.shape[1], "codes in", out.stats.target_passes, "passes")
