"""What is shown is escaped, has its moments in order, and claims no more than is so."""

from __future__ import annotations

import re

from mmspec.core.round.stats import Stats
from mmspec.web.lanes.lane import Lane, LaneRound
from mmspec.web.lanes.markup import figures, grid, headline, lanes, python, slower, status, strip, table, text


def lane(title: str = "plain decoding", seconds: float = 2.0, exact: bool = True, passes: int = 4) -> Lane:
    stats = Stats(exact=exact, target_passes=passes, row_passes=passes, emitted=[8], prefill_s=0.5)
    rounds = [
        LaneRound(0.5, {"pieces": [("a <b>", False)], "own": [0]}, 0),
        LaneRound(
            seconds,
            {"pieces": [("&c", True), ("d", False)], "accepted": [1, 2], "corrected": [3], "drafted": [1, 2, 3]},
            2,
        ),
    ]
    return Lane(title, rounds, seconds, stats, finished=True)


def test_text_of_visitors_and_models_is_escaped() -> None:
    one = lane("<i>")
    shown = lanes([(one, text(one))], unit="tokens", replay=True, legend=("accepted",)) + status("<script>")
    assert "<b>" not in shown and "&lt;b&gt;" in shown and "&amp;c" in shown
    assert "<i>" not in re.sub(r"<i (data-t|class)", "", shown) and "<script>" not in shown


def test_pieces_are_marked_by_who_wrote_them() -> None:
    assert re.findall(r'<span class="(\w+)" data-t="([\d.]+)">', text(lane())) == [
        ("own", "0.5000"),
        ("accepted", "2.0000"),
        ("own", "2.0000"),
    ]


def test_the_strip_has_a_bar_per_round_scaled_by_its_tokens() -> None:
    heights = re.findall(r"height:(\d+)%", strip(lane(), "tokens"))
    assert heights == ["33", "100"]
    assert "2 rounds, 2 drafted tokens accepted" in strip(lane(), "tokens") and strip(Lane("x"), "tokens") == ""


def test_cells_appear_at_their_round_and_drafts_are_judged_between_two() -> None:
    drawn = grid(lane(), 2, 2, lambda cell: divmod(cell, 2))
    assert '<path class="own" data-t="0.5000" d="M0.05 0.05' in drawn
    assert 'class="accepted" data-t="2.0000" d="M1.05 0.05h.9v.9h-.9zM0.05 1.05' in drawn
    assert 'class="drafted" data-from="0.5000" data-to="2.0000" hidden' in drawn
    assert 'aria-label="4 of 4 values"' in drawn


def test_a_replay_lasts_as_long_as_the_slower_lane() -> None:
    slow, fast = lane(seconds=2.0), lane("fast", seconds=0.75)
    pair = [(slow, ""), (fast, "")]
    assert 'data-replay="2.0000"' in lanes(pair, unit="tokens", replay=True, legend=())
    assert "data-replay" not in lanes(pair, unit="tokens", replay=False, legend=())


def test_the_headline_says_identical_only_where_it_is_and_relaxed_where_it_is() -> None:
    plain, fast, loose = lane(), lane("fast", 1.0, passes=2), lane("loose", 1.0, exact=False, passes=2)
    assert "Identical" in headline(plain, fast, True, "tokens")
    assert "Identical" not in headline(plain, fast, False, "tokens") and "same distribution" in headline(
        plain, fast, False, "tokens"
    )
    assert "Relaxed" in headline(plain, loose, False, "tokens") and "same distribution" not in headline(
        plain, loose, False, "tokens"
    )
    by_chance = headline(plain, loose, True, "tokens")
    assert 'class="mm-headline relaxed"' in by_chance and "yet identical here" in by_chance


def test_speedups_are_reported_end_to_end_and_after_the_prefill() -> None:
    said = headline(lane(), lane("fast", 1.0, passes=2), True, "tokens")
    assert "2.00 times the speed of plain decoding end to end, 3.00 times after the prefill" in said
    assert "2 target passes instead of 4" in said


def test_figures_of_a_lane_that_has_not_begun_are_empty_and_tables_have_a_row_a_figure() -> None:
    assert figures(Lane("x")) == {}
    shown = table([figures(lane()), figures(lane("fast", 1.0))], "tokens")
    assert shown.count("<tr>") == 9 and "tokens per second" in shown
    assert "<td>2.00</td><td>1.00</td>" in shown


def test_progress_is_a_bar_only_where_it_is_known() -> None:
    assert "progress" not in status("a") and 'value="0.500"' in status("a", "running", 0.5)


def test_a_slower_lane_has_an_amber_sentence_with_the_reason_and_no_green() -> None:
    plain, fast = lane(seconds=2.0, passes=4), lane("fast", 3.0, passes=2)
    text = headline(plain, fast, True, "tokens")
    assert (
        text.startswith('<p class="mm-amber"') and "Slower here: 0.67 times" in text and "mm-headline same" not in text
    )
    assert "only 2.0 times fewer target passes, and each took 3.0 times as long" in text
    assert "no target pass was saved" in slower(plain, lane("fast", 3.0, passes=4), "tokens")
    assert "only 4.0 times fewer head calls" in slower(plain, fast, "tokens", (400, 100))
    assert slower(plain, lane("fast", 1.0, passes=2), "tokens") == "" and slower(plain, plain, "tokens") == ""


def test_lanes_have_a_caption_each_and_the_program_once_they_are_done() -> None:
    pair, captions = [(lane(), ""), (lane("fast"), "")], ("look <here>", "look there")
    done = lanes(pair, unit="tokens", replay=True, legend=(), captions=captions, code="print('<a>')")
    assert done.index("look &lt;here&gt;") < done.index("look there") < done.index("Copy as Python")
    assert "print(&#x27;&lt;a&gt;&#x27;)" in done and python("x").count("mm-copy") == 1
    assert "Copy as Python" not in lanes(pair, unit="tokens", replay=False, legend=(), captions=captions, code="x")
