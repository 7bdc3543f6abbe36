import torch
from domain import Whistle, compose

generator = torch.Generator().manual_seed(0)
table = 2 * torch.randn(12, 12, generator=generator)
drafter = Whistle(table + 0.5 * torch.randn(12, 12, generator=generator))  # nearly right

melodies, stats = compose(table, drafter, torch.zeros(3, dtype=torch.long), 32)
print(melodies[0].tolist())
print(stats.rule, stats.exact, "notes a pass:", round(stats.accept_length, 2))
