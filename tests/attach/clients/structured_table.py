"""Tokens a pass and speed of drafted JSON, as a Markdown table: `python -m tests.attach.clients.structured_table`.

Every drafter and transformers decode the same held-out pictures in turn; a ratio is the median over pictures of transformers'
seconds over the drafter's, the prompt and the compiling of the grammar included in neither.
"""

from __future__ import annotations

from collections.abc import Callable
from statistics import median
from time import perf_counter

import torch

import mmspec
from tests.attach.clients.programs import caption_inputs, captioner
from tests.attach.clients.test_structured import LONGEST, enforcer, outlines, xgrammar

PICTURES, REPEATS = 6, 3
DRAFTERS = ("lookup", "eagle@zoo:vlm/eagle", "dspark@zoo:vlm/dspark", "both@zoo:vlm/eagle")
Constraint = Callable[[], dict]


def measured(constraint: Constraint, drafter: str) -> tuple[float, float]:
    """Tokens a pass, and the speed in times of transformers.

    Raises:
        AssertionError: The drafted tokens are others than those of transformers.
    """
    model = captioner()[0]
    tokens = passes = 0
    ratios = []
    for number in range(PICTURES):
        inputs, limits = caption_inputs(number), dict(max_new_tokens=LONGEST, do_sample=False)
        for _ in range(REPEATS):
            settings = [constraint() for _ in range(2)]
            began = perf_counter()
            plain = model.generate(**inputs, **limits, **settings[0])
            half = perf_counter()
            made = mmspec.generate(model, drafter=drafter, return_dict=True, **inputs, **limits, **settings[1])
            ratios.append((half - began) / (perf_counter() - half))
            assert torch.equal(made.sequences, plain), (constraint.__name__, drafter, number)
        tokens += plain.shape[1] - inputs["input_ids"].shape[1]
        passes += made.stats.target_passes
    return tokens / passes, median(ratios)


def main() -> None:
    """Print the table."""
    torch.set_num_threads(1)
    constraints: dict[str, Constraint] = {
        "none": dict,
        "xgrammar": xgrammar,
        "outlines": outlines,
        "lm-format-enforcer": enforcer,
    }
    print(f"| | {' | '.join(constraints)} |\n|---|{'---|' * len(constraints)}")
    for drafter in DRAFTERS:
        cells = [measured(constraint, drafter) for constraint in constraints.values()]
        print(f"| {drafter} | {' | '.join(f'{length:.2f}, {speed:.2f}x' for length, speed in cells)} |", flush=True)


if __name__ == "__main__":
    main()
