from mmspec.certify.enumeration import contrasted_tables, expected_accepted, inexactness
from mmspec.core import chain, resolve
from mmspec.imagegen import CoolSD

p, q = contrasted_tables("random", size=3, depth=3, seed=0)  # laws of a value given all values before it
for name in ("token", "block", "match"):
    rule = resolve(name, greedy=False)
    off, kept = inexactness(rule, chain(3), p, q), expected_accepted(rule, chain(3), p, q)
    print(f"{name}: {off:.0e} from the target's law, {kept:.2f} of 3 values accepted")

relaxed = CoolSD(delta=1.5)
print(f"{relaxed.name}: {inexactness(relaxed, chain(3), p, q):.2f} from the target's law")
