"""Whether the rows of greedy batches are the same text as their prompts alone."""

from __future__ import annotations

from dataclasses import replace

from mmspec.evaluate.engine.domain import TimedSetting
from mmspec.evaluate.engine.rows import Margin, identical, parting
from mmspec.evaluate.engine.runs import TimedRun
from mmspec.evaluate.vlm.certainty import margins
from mmspec.evaluate.vlm.methods import VlmMethod
from mmspec.evaluate.vlm.requests import VlmPrompt, encode
from mmspec.evaluate.vlm.runner import timed_runner

Output = tuple[int, ...]
_NONE = {"alone": None, "alone_ties": None, "alone_margin": None}


def keep_alone(timed: TimedSetting) -> None:
    """Keep the greedy texts of prompts that were decoded alone, for the batches behind them."""
    for method in timed.methods:
        for number, attempts in enumerate(timed.results[method.key]):
            run = next((one for one in attempts if isinstance(one, TimedRun)), None)
            if run is not None:
                timed.resources.once(_name(timed, method, number), lambda run=run: run.output[0])


def alone_fields(method: VlmMethod, timed: TimedSetting, tie: float) -> dict:
    """Compare the rows of greedy batches with their prompts alone, which are decoded now unless their texts are kept.

    Args:
        method: A method of our own loop.
        timed: A greedy setting of batches.
        tie: The margin below which two tokens are equally likely up to rounding.

    Returns:
        `alone`: the prompts whose text is the same, as "31/32". `alone_ties`: of the others those that part at a tie.
        `alone_margin`: the largest margin at a first difference. All None where nothing was completed.
    """
    setting, made = timed.setting, list(timed.setting.task.make(timed.setting.prompts, timed.setting.seed))
    prompts: list[VlmPrompt] = []
    single, batched = [], []
    for case, attempts in enumerate(timed.results[method.key]):
        run = next((one for one in attempts if isinstance(one, TimedRun)), None)
        for row in range(setting.batch if run is not None else 0):
            number = case * setting.batch + row
            prompts.append(made[number])
            single.append([_as_run(_alone(method, timed, made[number], number))])
            batched.append([_as_run(run.output[row])])
    if not prompts:
        return dict(_NONE)
    model, processor = timed.resources.model, timed.resources.processor

    def of_prompt(index: int) -> Margin:
        return margins(model, encode(processor, [prompts[index]]), single[index][0].output, setting.task.natural)

    found = parting(single, batched, of_prompt, tie)
    return {
        "alone": identical(single, batched),
        "alone_ties": found["ties"],
        "alone_margin": found["margin"],
    }


def _alone(method: VlmMethod, timed: TimedSetting, prompt: VlmPrompt, number: int) -> Output:
    """The text of a prompt alone."""

    def decode() -> Output:
        run = timed_runner(method, timed.resources, replace(timed.setting, batch=1))
        return run(encode(timed.resources.processor, [prompt]), timed.setting.seed).output[0]

    return timed.resources.once(_name(timed, method, number), decode)


def _name(timed: TimedSetting, method: VlmMethod, number: int) -> str:
    setting = timed.setting
    return f"alone: {method.key}, {setting.task.name}, {setting.limit} tokens, seed {setting.seed}, prompt {number}"


def _as_run(output: Output) -> TimedRun:
    """A run of which nothing but its text counts."""
    return TimedRun(0.0, (output,), 0, 0.0)
