"""Muon beside AdamW: its steps are torch's, and runs are resumed."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from mmspec.training.muon import hidden_matrices
from mmspec.training.schedule import Schedule
from mmspec.zoo.training.loop import TrainingPlan, train

LR, GAIN = 1e-2, 2.5


class _Words(nn.Module):
    """An embedding that is the head too, a linear layer, a norm."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.hidden, self.norm = nn.Embedding(12, 8), nn.Linear(8, 8), nn.LayerNorm(8)
        self.head = nn.Linear(8, 12, bias=False)
        self.head.weight = self.table.weight

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.head(self.norm(self.hidden(self.table(ids))))


def _problem():
    torch.manual_seed(0)
    model = _Words()

    def loss_of(step):
        ids = torch.randint(12, (8, 5), generator=torch.Generator().manual_seed(step))
        return nn.functional.cross_entropy(model(ids).flatten(0, 1), (ids + 1).flatten() % 12), {}

    return model, loss_of


def test_matrices_move_as_under_torchs_muon_and_the_rest_as_under_adamw() -> None:
    (model, loss_of), (other, other_loss) = _problem(), _problem()
    schedule = Schedule(10, LR, weight_decay=0.05, muon=GAIN)
    assert hidden_matrices(model) == [model.hidden.weight]
    both = schedule.optimizer(model)
    matrix = torch.optim.Muon(
        [other.hidden.weight], lr=LR * GAIN, weight_decay=0.05, adjust_lr_fn="match_rms_adamw", nesterov=True
    )
    rest = [parameter for parameter in other.parameters() if parameter is not other.hidden.weight]
    tables, vectors = ([one for one in rest if (one.ndim > 1) == table] for table in (True, False))
    groups = [{"params": tables}, {"params": vectors, "weight_decay": 0.0}]
    adam = torch.optim.AdamW(groups, lr=LR, betas=schedule.betas, weight_decay=0.05)
    before = model.hidden.weight.detach().clone()
    for step in range(4):
        for loss, optimizers in ((loss_of(step)[0], (both,)), (other_loss(step)[0], (matrix, adam))):
            for optimizer in optimizers:
                optimizer.zero_grad()
            loss.backward()
            for optimizer in optimizers:
                optimizer.step()
    moved, wanted = model.hidden.weight.detach() - before, other.hidden.weight.detach() - before
    assert float((moved - wanted).norm() / wanted.norm()) < 1e-6
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(parameter, other.get_parameter(name), atol=5e-3, rtol=0)
    # none of it is AdamW's own step, whose matrices move elsewhere
    plain, plain_loss = _problem()
    adam = Schedule(10, LR, weight_decay=0.05).optimizer(plain)
    for step in range(4):
        adam.zero_grad()
        plain_loss(step)[0].backward()
        adam.step()
    assert float((plain.hidden.weight.detach() - before - moved).norm() / moved.norm()) > 0.3


def test_a_resumed_run_matches_an_uninterrupted_run(tmp_path) -> None:
    plan = TrainingPlan(steps=10, lr=LR, warmup=2, save_every_s=0.0, muon=GAIN)
    whole, loss_of = _problem()
    train(whole, loss_of, plan, tmp_path / "whole", "t")
    cut, loss_of = _problem()

    def stopping(step):
        if step == 6:
            raise KeyboardInterrupt
        return loss_of(step)

    with pytest.raises(KeyboardInterrupt):
        train(cut, stopping, plan, tmp_path / "cut", "t")
    cut, loss_of = _problem()
    train(cut, loss_of, plan, tmp_path / "cut", "t")
    assert all(torch.equal(a, b) for a, b in zip(whole.parameters(), cut.parameters(), strict=True))


def test_a_matrix_without_a_gradient_and_a_copied_optimizer_go_on(tmp_path) -> None:
    def made() -> nn.Module:
        torch.manual_seed(0)
        return nn.ModuleDict({"used": nn.Linear(4, 4, bias=False), "idle": nn.Linear(4, 4, bias=False)})

    module = made()
    plan = TrainingPlan(steps=2, lr=LR, warmup=1, muon=GAIN)
    train(module, lambda step: (module["used"].weight.square().sum(), {}), plan, tmp_path, "t")
    plan = TrainingPlan(steps=4, lr=LR, warmup=1, muon=GAIN)
    module = made()
    train(module, lambda step: (module["used"].weight.square().sum(), {}), plan, tmp_path, "t")
    assert torch.equal(module["idle"].weight, made()["idle"].weight)
    optimizer = copy.deepcopy(Schedule(4, LR, muon=GAIN).optimizer(module))
    (matrix, *_) = optimizer.param_groups[0]["params"]
    before, matrix.grad = matrix.detach().clone(), torch.ones(4, 4)
    optimizer.step()
    assert not torch.equal(before, matrix)


@pytest.mark.parametrize("before, now", ((0.0, GAIN), (GAIN, 0.0)))
def test_a_state_of_the_other_optimizer_is_refused_and_changes_nothing(tmp_path, before: float, now: float) -> None:
    layer = nn.Linear(4, 4, bias=False)  # moments of the same shape, of another kind

    def loss_of(step):
        return layer.weight.square().sum(), {}

    train(layer, loss_of, TrainingPlan(steps=2, lr=LR, warmup=1, muon=before), tmp_path, "t")
    trained, fresh = layer.weight.detach().clone(), torch.ones(4, 4)
    layer.weight.data.copy_(fresh)
    with pytest.raises(ValueError, match=f"moments of {'Muon' if now else 'AdamW'}"):
        train(layer, loss_of, TrainingPlan(steps=4, lr=LR, warmup=1, muon=now), tmp_path, "t")
    assert torch.equal(layer.weight, fresh) and not torch.equal(trained, fresh)
