"""Python programs of the page's requests: each draws the same output as the fast lane."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

GIF_MS = 125  # milliseconds of a frame


def caption_code(
    text: str, drafter: str, part: str | None, *, relaxed: bool, sampling: Mapping[str, Any], seed: int, tokens: int
) -> str:
    """Return the program of a caption. `part` is the name of the drafter's weights in the zoo, None for a drafter
    without weights. `relaxed` means typical acceptance. `sampling` sets the temperature for `generate`."""
    lines = ["import mmspec", "from mmspec.io.images import open_image"]
    lines += ["from mmspec.core.round.rules.typical import TypicalAcceptance"] if relaxed else []
    lines += ["", 'model, processor = mmspec.zoo.load("vlm")']
    if part is None:
        lines.append(f"drafter = {drafter!r}")
    elif drafter == "small":
        lines += [
            "from mmspec.core.length.controls import FixedLength",
            f"drafter = mmspec.drafters.SmallModel(mmspec.zoo.load({part!r})[0], FixedLength(5))",
        ]
    else:
        lines.append(f"drafter = mmspec.zoo.load({part!r})")
    lines += [
        'picture = {"type": "image", "image": open_image("picture.png")}',
        f'question = [picture, {{"type": "text", "text": {text!r}}}]',
        'inputs = processor.apply_chat_template([{"role": "user", "content": question}], add_generation_prompt=True,',
        '                                       tokenize=True, return_dict=True, return_tensors="pt")',
        f"out = mmspec.generate(model, drafter=drafter, rule={'TypicalAcceptance()' if relaxed else repr('exact')}, "
        f"seed={seed},",
        f"                      max_new_tokens={tokens}, {_arguments(sampling)}, return_dict=True, **inputs)",
        'answer = out.sequences[0, inputs["input_ids"].shape[1]:]',
        "print(processor.decode(answer, skip_special_tokens=True))",
    ]
    return "\n".join(lines)


def picture_code(model: str, prompt: Any, arguments: Mapping[str, Any], *, is_video: bool = False) -> str:
    """Return the program of an image or of a video of tokens, whose frames are saved as a GIF. The prompt may be the
    number of a class. Decodings and rules among the arguments of the pipeline are in their text form."""
    lines = [
        "import mmspec",
        "",
        f"pipe = mmspec.zoo.load({model!r})",
        f"out = pipe([{prompt!r}], {_arguments(arguments)})",
    ]
    if is_video:
        lines += ["first, *frames = out.videos[0]", _saved("first", "frames")]
    else:
        lines.append('out.images[0].save("image.png")')
    return "\n".join(lines)


def block_code(prompt: str, threshold: float, arguments: Mapping[str, Any]) -> str:
    """Return the program of a video of blocks. The threshold is the least score of an accepted block; infinity accepts
    none."""
    return "\n".join(
        [
            "import mmspec",
            "from PIL import Image",
            "",
            'pipe = mmspec.zoo.load("video")',
            'drafter, reward = mmspec.zoo.load("video/draft"), mmspec.zoo.load("video/reward")',
            f'decoding = mmspec.video.SDVG(drafter, reward, threshold=float("{threshold:g}"))',
            f"out = pipe({prompt!r}, decoding=decoding, {_arguments(arguments)})",
            "first, *frames = [Image.fromarray(frame) for frame in out.videos[0]]",
            _saved("first", "frames"),
        ]
    )


def _arguments(values: Mapping[str, Any]) -> str:
    return ", ".join(f"{name}={value!r}" for name, value in values.items())


def _saved(first: str, frames: str) -> str:
    return f'{first}.save("video.gif", save_all=True, append_images={frames}, duration={GIF_MS}, loop=0)'
