"""Saved training states: what a resumed module must have besides its parameters."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

from mmspec.training.checkpoint import load_state, save_state


class Noted(nn.Module):
    """Weights known under two names, a buffer that counts, and one that is worked out anew."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(3, 2)
        self.again = self.first
        self.register_buffer("noise", torch.randn(4))
        self.register_buffer("table", torch.randn(4), persistent=False)


def test_a_resumed_module_has_its_buffers_and_shared_parts_once(tmp_path: Path) -> None:
    path, module = tmp_path / "state.safetensors", Noted()
    optimizer = torch.optim.AdamW(module.parameters(), lr=0.1)
    module.first(torch.ones(3)).sum().backward()
    optimizer.step()
    save_state(path, module, optimizer, 7)
    other = Noted()
    table, moments = other.table.clone(), torch.optim.AdamW(other.parameters(), lr=0.1)
    assert load_state(path, other, moments) == 7
    assert torch.equal(other.noise, module.noise) and torch.equal(other.table, table)
    assert other.again is other.first and torch.equal(other.first.weight, module.first.weight)
    for mine, theirs in zip(optimizer.state.values(), moments.state.values(), strict=True):
        assert torch.equal(mine["exp_avg"], theirs["exp_avg"])


def test_a_state_of_another_module_is_refused(tmp_path: Path) -> None:
    path, plain = tmp_path / "state.safetensors", nn.Linear(3, 2)
    save_state(path, plain, torch.optim.AdamW(plain.parameters()), 1)
    with pytest.raises(ValueError, match="state.safetensors: expected the state of this module, got a state with no "):
        load_state(path, Noted())
