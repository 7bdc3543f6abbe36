import mmspec
from mmspec.imagegen import SCD

pipe = mmspec.zoo.load("t2i")  # a LlamaGenPipeline
out = pipe("a large red star on a navy background", decoding=SCD(window=16), seed=0)

out.images[0].save("star.png")
print(out.tokens.shape[1], "codes in", out.stats.target_passes, "passes, exact:", out.stats.exact)
