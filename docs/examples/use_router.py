from router import Rising

import mmspec
from mmspec.video import SDVG

pipe, drafter, reward = (mmspec.zoo.load(name) for name in ("video", "video/draft", "video/reward"))

for router in (Rising(0.3, step=0.2), mmspec.methods.parse("rising:least=inf", kind="router").make()):
    decoding = SDVG(drafter, reward, router=router)
    out = pipe("a red circle moves to the right", decoding=decoding, blocks=4, seed=0)
    print(out.stats.rule, "exact:", out.stats.exact, "drafts kept:", out.stats.accepted_share)
