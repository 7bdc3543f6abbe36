"""Adapters of PEFT and rollouts of TRL: the weights change between calls, and the drafted output follows them."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest
import torch

from tests.attach.clients.programs import STORY, caption_inputs, captioner, drafting, installed, text_inputs, text_model

pytestmark = pytest.mark.whole
GREEDY = dict(max_new_tokens=40, do_sample=False)


@pytest.mark.parametrize("kind", ("text", "captioner"))
def test_an_adapter_on_off_and_switched(kind: str) -> None:
    peft = installed("peft")
    source, inputs = (text_model()[0], text_inputs()) if kind == "text" else (captioner()[0], caption_inputs())
    modules = r".*(?:^|\.)(?:language_model|model)\..*[qv]_proj"
    settings = peft.LoraConfig(r=4, target_modules=modules, init_lora_weights=False)
    model = peft.get_peft_model(copy.deepcopy(source), settings, "first").eval()
    model.add_adapter("second", settings)

    def answers() -> list[list[list[int]]]:
        found = []
        for name in ("first", "second", "first"):
            model.set_adapter(name)
            found.append(model.generate(**inputs, **GREEDY).tolist())
        with model.disable_adapter():
            found.append(model.generate(**inputs, **GREEDY).tolist())
        return found

    plain = answers()
    assert plain[0] == plain[2] and plain[0] != plain[1] and plain[3] not in plain[:3]
    with drafting(model):
        assert answers() == plain


def test_generation_between_optimizer_steps() -> None:
    model = copy.deepcopy(text_model()[0])
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    inputs = text_inputs()
    seen = []
    with drafting(model):
        for _ in range(3):
            model.train()
            model(**inputs, labels=inputs["input_ids"]).loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            model.eval()
            drafted = model.generate(**inputs, **GREEDY)
            assert torch.equal(drafted, type(model).generate(model, **inputs, **GREEDY))
            seen.append(drafted.tolist())
    assert seen[0] != seen[-1], "the weights did not change enough for another text"


def test_rollouts_of_grpo(tmp_path: Path) -> None:
    trl, datasets = installed("trl"), installed("datasets")
    model, tokenizer = copy.deepcopy(text_model()[0]), text_model()[1]
    before = [parameter.detach().clone() for parameter in model.parameters()]
    settings = trl.GRPOConfig(
        output_dir=str(tmp_path),
        per_device_train_batch_size=2,
        num_generations=2,
        max_completion_length=24,
        max_steps=2,
        learning_rate=1e-3,
        report_to=[],
        use_cpu=True,
        bf16=False,
        save_strategy="no",
        disable_tqdm=True,
    )
    trainer = trl.GRPOTrainer(
        model,
        reward_funcs=lambda completions, **_: [float(len(set(text))) for text in completions],
        args=settings,
        train_dataset=datasets.Dataset.from_dict({"prompt": [STORY] * 4}),
        processing_class=tokenizer,
    )
    with drafting(model) as handle:
        trainer.train()
    assert handle.summary().calls == 2
    assert any(not torch.equal(old, new) for old, new in zip(before, model.parameters(), strict=True))
