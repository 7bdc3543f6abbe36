"""The captioning tab: a picture, a question, and two lanes of text."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import gradio as gr

from mmspec.web.lanes import markup as drawn
from mmspec.web.lanes import markup as told
from mmspec.web.lanes.pixels import enlarged
from mmspec.web.lanes.vlm import VlmLane, VlmLaneRequest, identical, offered, vlm_lanes
from mmspec.web.limits import LARGEST_SEED, checked_choice, checked_number, checked_text, checked_whole
from mmspec.web.tabs.controls import (
    ALONE,
    QUIET,
    READY,
    UNCHECKED,
    PageContext,
    cancels,
    checked_law,
    handler,
    lanes_column,
    law_switch,
    paced,
    run_row,
    seed_row,
    small_handler,
    status_line,
)
from mmspec.web.uploads import open_uploaded

ID = "caption"
LEGEND = ("accepted", "own")
LONGEST = 192
PREVIEW_SIDE = 768  # pixels of the longer side of what is shown of a picture
QUESTIONS = ("Describe this picture in detail.", "What do you see in this picture?", "List the objects.")


def vlm_tab(bench: PageContext) -> None:
    """Builds the tab."""
    with gr.Row():
        with gr.Column(scale=1, min_width=280):
            file = gr.File(label="Picture: PNG, JPEG or WebP", elem_id=f"{ID}-picture", height=120)
            seen = gr.Image(interactive=False, visible=False, label="What the model is shown", show_label=False, height=200,
                            buttons=[], format="png", elem_id=f"{ID}-seen")  # fmt: skip
            gr.HTML('<p class="mm-label">Or pick one from the zoo\'s world</p>', container=False)
            examples = gr.Gallery([picture for picture, _ in _examples()], columns=3, height=120, show_label=False,
                                  label="Pictures of the zoo's world", allow_preview=False, object_fit="contain",
                                  buttons=[], interactive=False, elem_id=f"{ID}-examples")  # fmt: skip
            text = gr.Textbox(QUESTIONS[0], label="Question", lines=2, max_length=bench.limits.characters,
                              elem_id=f"{ID}-question")  # fmt: skip
            run, cancel = run_row(ID, "Ask")
            line = status_line(ID)
            law, warning = law_switch("Captions use typical acceptance, which keeps whatever the model finds plausible; at "
                                      "temperature 0 it changes nothing.")  # fmt: skip
            drafter = gr.Dropdown(offered("exact"), value="msd", label="Drafter")
            with gr.Accordion("Sampling and length", open=False):
                temperature = gr.Slider(0, 2, 0, step=0.05, label="Temperature (0 is greedy)")
                tokens = gr.Slider(1, bench.limits.tokens, LONGEST, step=1, label="Longest answer, in tokens")
            seed = seed_row()
        told_of = lanes_column(ID)
    examples.select(_picker(bench), outputs=[file, text], **QUIET)
    file.change(_gate(bench), file, [seen, line], api_visibility="private", concurrency_id="gate", concurrency_limit=2,
                show_progress="hidden", **UNCHECKED)  # fmt: skip
    law.change(_switch, law, [warning, drafter, temperature], **QUIET)
    asked = [file, text, drafter, law, temperature, seed, tokens]
    event = run.click(_handler(bench), asked, [line, *told_of], api_name="caption",
                      show_progress="hidden", **ALONE)  # fmt: skip
    cancels(cancel, event, line)


@small_handler
def _switch(law: Any) -> tuple[Any, Any, Any]:
    choices = offered(checked_law(law))
    relaxed = law == "relaxed"
    return gr.update(visible=relaxed), gr.update(choices=choices, value=choices[0][1]), 1.0 if relaxed else 0.0


def _examples() -> list[tuple[Any, str]]:
    """Pictures that no training saw, each with a question."""
    from mmspec.evaluate.vlm.requests import demo_scenes
    from mmspec.zoo.world.render import render

    return [(render(scene), question) for scene, question in zip(demo_scenes(len(QUESTIONS)), QUESTIONS, strict=True)]


def _picker(bench: PageContext) -> Any:
    """Has an example stand where a visitor's own picture would."""
    from mmspec.io.files import replacing

    @small_handler
    def pick(event: gr.SelectData) -> tuple[str, str]:
        number = checked_whole("example", event.index, 0, len(QUESTIONS) - 1)
        picture, question = _examples()[number]
        path = bench.uploads / f"example-{number + 1}.png"
        with replacing(path) as temporary:
            picture.save(temporary)
        return str(path), question

    return pick


def _gate(bench: PageContext) -> Any:
    """Shows a picture as the gate lets it in, or says why it does not."""

    @small_handler
    def show(file: Any) -> tuple[Any, str]:
        if file is None:
            return gr.update(value=None, visible=False), told.status(READY)
        try:
            picture = open_uploaded(file, bench.uploads, bench.limits)
        except ValueError as error:
            return gr.update(value=None, visible=False), told.status(str(error), "refused")
        picture.thumbnail((PREVIEW_SIDE, PREVIEW_SIDE))
        return gr.update(value=enlarged(picture), visible=True), told.status(READY)

    return show


def _handler(bench: PageContext) -> Any:
    limits = bench.limits

    @handler(rest=4)
    def ask(file, text, drafter, law, temperature, seed, tokens) -> Iterator[tuple]:
        law = checked_law(law)
        asked = VlmLaneRequest(
            open_uploaded(file, bench.uploads, limits),
            checked_text("question", text, limits),
            checked_choice("drafter", drafter, tuple(name for _, name in offered(law))),
            law,
            checked_number("temperature", temperature, 0, 2),
            checked_whole("seed", seed, 0, LARGEST_SEED),
            checked_whole("length", tokens, 1, limits.tokens),
        )
        yield told.status("Loading the model and warming up.", "running"), "", "", "", None
        for plain, fast in paced(vlm_lanes(bench.shelf.vlm_resources(), asked, limits.seconds)):
            yield _shown(plain, fast, asked)

    return ask


def _shown(plain: VlmLane, fast: VlmLane, asked: VlmLaneRequest) -> tuple:
    """Outputs of the tab."""
    done = fast.finished or fast.stopped is not None
    view = drawn.lanes(
        [(plain, drawn.text(plain)), (fast, drawn.text(fast))], unit="tokens", replay=done, legend=LEGEND
    )
    same = identical(plain, fast)
    record = {"identical": same, "done": done, **{name: told.figures(lane) | {"text": lane.text.strip()}
              for name, lane in (("plain", plain), ("fast", fast))}}  # fmt: skip
    if not done:
        lane = fast if fast.rounds else plain
        line = told.status(f"{lane.title}: {len(lane.ids)} tokens", "running", min(len(lane.ids) / asked.tokens, 1))
        return line, gr.skip(), view, gr.skip(), record
    line = told.status(f"Done: seed {asked.seed}, temperature {asked.temperature:g}.", "done")
    headline = told.headline(plain, fast, same, "tokens") if fast.finished and plain.finished else ""
    return line, headline, view, told.table([told.figures(plain), told.figures(fast)], "tokens"), record
