"""`mmspec image` and `mmspec bench image` end to end on tiny random models, and what they refuse."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from PIL import Image
from typer.testing import CliRunner

from mmspec.cli import app
from mmspec.cli.pipelines import IMAGE_EXAMPLE
from tests.check.test_source import cached
from tests.evaluate.tiny_images import captioned, classed, use_tiny_images
from tests.imagegen.adapters.models import tiny as tiny_model
from tests.imagegen.adapters.processors import processor
from tests.imagegen.llamagen.tiny import CAPTION

pytestmark = pytest.mark.usefixtures("built_once")

runner = CliRunner()


@pytest.fixture(autouse=True)
def tiny(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    use_tiny_images(monkeypatch)
    monkeypatch.chdir(tmp_path)


def invoke(*arguments: str):
    result = runner.invoke(app, list(arguments))
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result


def drawn(*arguments: str) -> dict:
    """The record of a picture that must succeed, whose screen line shows the record's figures."""
    result = invoke("image", *arguments, "--json", "out.json")
    assert result.exit_code == 0, result.stderr
    record = json.loads(Path("out.json").read_text())
    for shown in (
        f"{record['seconds']} s",
        f"{record['step_compression']} values a pass",
        f"seed {record['seed']}",
        "(exact)" if record["exact"] else "(relaxed)",
        record["out"],
    ):
        assert shown in result.stdout
    assert result.stdout.count("(relaxed)") == (not record["exact"])
    assert Image.open(record["out"]).format == "PNG"
    return record


@pytest.mark.parametrize("decoding", ["ar", "sjd", "scd", "pac", "rows", "eagle", "memory", "zipar", "pjd", "mulo"])
def test_every_decoding_draws(decoding: str) -> None:
    record = drawn("a red circle", "--decoding", decoding, "--seed", "1")
    assert record["exact"] == (decoding not in ("zipar", "pjd", "mulo")) and record["plain_passes"] == 16
    # a window as wide as the picture makes ZipAR plain decoding
    assert record["target_passes"] == 16 if decoding in ("ar", "zipar") else record["target_passes"] < 16
    assert record["step_compression"] == pytest.approx(16 / record["target_passes"], abs=0.05)


@pytest.mark.covering(strength=1)
@pytest.mark.parametrize("rule", ["lantern", "gsd", "cool"])
@pytest.mark.parametrize("drafts", ["sjd", "scd", "eagle"])
def test_relaxed_rules_judge_any_drafts(rule: str, drafts: str) -> None:
    record = drawn("a red circle", "--decoding", rule, "--drafter", drafts)
    assert not record["exact"] and "relaxed" in record["rule"]


def test_exact_decodings_draw_the_same_greedy_picture() -> None:
    plain = drawn("a red circle", "--decoding", "ar", "--temperature", "0", "--out", "ar.png")
    for decoding in ("sjd", "scd", "pac", "rows", "eagle"):
        drawn("a red circle", "--decoding", decoding, "--temperature", "0", "--out", f"{decoding}.png")
        assert Image.open(f"{decoding}.png").tobytes() == Image.open(plain["out"]).tobytes()


def test_a_grid_repeats_prompts_and_each_place_keeps_its_seed() -> None:
    common = ("a red circle", "a blue square", "--grid", "5", "--seed", "7", "--guidance", "3", "--top-k", "6")
    record = drawn(*common, "--batch", "5", "--out", "a.png")
    assert record["prompts"] == ["a red circle", "a blue square"] * 2 + ["a red circle"] and record["images"] == 5
    assert Image.open("a.png").size == (3 * 8 + 2 * 2, 2 * 8 + 2)
    drawn(*common, "--batch", "2", "--out", "b.png")
    assert Image.open("a.png").tobytes() == Image.open("b.png").tobytes()


def test_a_picture_can_be_had_again() -> None:
    first = drawn("a red circle", "--out", "first.png")
    drawn("a red circle", "--out", "again.png", "--seed", str(first["seed"]))
    assert Image.open("first.png").tobytes() == Image.open("again.png").tobytes()


@pytest.mark.parametrize(
    "options, decoding",
    [
        (("--temperature", "0"), "auto"),
        (("--temperature", "0", "--window", "4"), "scd"),
        ((), "scd"),
        (("--decoding", "auto"), "auto"),
    ],
)
def test_the_choice_is_left_to_measured_time_unless_a_seed_has_to_give_its_picture_again(
    options: tuple[str, ...], decoding: str
) -> None:
    record = drawn("a red circle", *options)
    assert record["decoding"] == decoding and record["exact"]
    assert record["drafter"].startswith("goodput(SCD" if decoding == "auto" else "SCD gumbel(")


def test_settings_reach_the_decoding() -> None:
    options = ("--window", "4", "--coupling", "maximal", "--init", "up", "--rule", "gsd:group=3", "--top-p", "0.9",
               "--filter-order", "top_p_first")  # fmt: skip
    record = drawn("a red circle", "--decoding", "scd", *options)
    assert record["drafter"] == "SCD maximal(4) up" and record["rule"] == "gsd (relaxed)" and not record["exact"]
    assert record["guidance"] == 2.0 and record["top_k"] == 0  # the model's own
    assert record["filter_order"] == "top_p_first"


def test_models_in_folders() -> None:
    captioned(CAPTION).save_pretrained("captions")
    classed().save_pretrained("classes")
    record = drawn("a red circle", "--model", "captions")
    assert record["model"] == "captions"
    assert drawn("7", "8", "--model", "classes")["images"] == 2
    assert "expected a label from 0 to 63, got 'a red circle'" in refused(2, "a red circle", "--model", "classes")
    assert "expected a model of the zoo" in refused(2, "a", "--model", "captions", "--decoding", "eagle")


def test_a_model_of_videos_is_refused_before_anything_is_drawn() -> None:
    captioned(replace(CAPTION, frames=3, time_pairs=2)).save_pretrained("videos")
    assert "--model: expected a model of pictures, got 'videos', which draws 3 frames, call `mmspec video`" in refused(
        2, "a red circle", "--model", "videos"
    )


def test_a_model_of_transformers_in_a_folder() -> None:
    tiny_model("janus").save_pretrained("janus")
    assert "expected a processor beside the model" in refused(2, "a red cube", "--model", "janus")
    processor("janus").save_pretrained("janus")
    record = drawn("a red cube", "--model", "janus", "--decoding", "sjd")
    assert record["exact"] and record["model"] == "janus" and record["plain_passes"] == 16


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The user's Hugging Face cache, empty."""
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    return tmp_path / "hub"


def test_a_hub_id_of_a_class_that_draws(cache: Path) -> None:
    snapshot = cached(cache, "owner/janus")
    tiny_model("janus").save_pretrained(snapshot)
    processor("janus").save_pretrained(snapshot)
    record = drawn("a red cube", "--model", "owner/janus", "--decoding", "scd", "--dtype", "float32")
    assert record["exact"] and record["model"] == "owner/janus" and record["plain_passes"] == 16


def test_a_hub_id_of_another_class_is_refused_by_its_config(cache: Path) -> None:
    from tests.vlm.tiny import tiny as tiny_text

    tiny_text("llama").config.save_pretrained(cached(cache, "owner/llama"))
    config = cache / "models--owner--llama" / "snapshots" / ("0" * 40) / "config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | {"architectures": ["LlamaForCausalLM"]}))
    line = refused(2, "a red cube", "--model", "owner/llama")
    assert "--model: expected a hub id of JanusForConditionalGeneration" in line and "LlamaForCausalLM" in line
    assert "--model: expected a hub id of a transformers model that draws, got 'owner/absent'" in refused(
        2, "a red cube", "--model", "owner/absent"
    )


def test_words_that_the_model_does_not_know_are_named_with_a_prompt_that_works() -> None:
    result = invoke("image", "a red circle", "a red zebra in a circle", "--seed", "1")
    assert result.exit_code == 0
    (line,) = result.stderr.splitlines()
    assert "Warning: the model does not know 'zebra'" in line and f'"{IMAGE_EXAMPLE}"' in line
    assert invoke("image", "a red circle", "--seed", "1").stderr == ""
    assert f'a prompt that works: "{IMAGE_EXAMPLE}"' in refused(2, "zebra")


def test_classes_by_name() -> None:
    numbered = drawn("0", "--model", "c2i", "--seed", "1", "--out", "0.png")
    named = drawn("a red circle", "--model", "c2i", "--seed", "1", "--out", "name.png")
    assert Image.open("0.png").tobytes() == Image.open("name.png").tobytes()
    assert numbered["step_compression"] == named["step_compression"]
    assert "a name such as 'red circle'" in refused(2, "a purple nothing", "--model", "c2i")


def spoiled(*labels: int) -> None:
    """A class pipeline in the folder "spoiled" that gives NaN for some labels."""
    pipeline = classed()
    pipeline.model.transformer.cls_embedding.embedding_table.weight[list(labels)] = float("nan")
    pipeline.save_pretrained("spoiled")


@pytest.mark.parametrize("batch", ["1", "4"])
def test_a_failed_picture_leaves_the_others(batch: str) -> None:
    spoiled(1, 3)
    common = ("--model", "spoiled", "--seed", "5", "--json", "out.json")
    for label in (0, 2):
        assert (
            invoke("image", str(label), *common[:2], "--seed", str(5 + label), "--out", f"{label}.png").exit_code == 0
        )
    result = invoke("image", "0", "1", "2", "3", *common, "--batch", batch, "--out", "x4.png")
    assert result.exit_code == 1 and "x4.png: 3" not in result.stdout and "x4.png: 2 pictures in " in result.stdout
    (line,) = result.stderr.splitlines()
    reason = "expected finite logits, got NaN or Inf after 0 of 16 values; the row stopped there"
    assert line == f"Error: image 1: {reason}; image 3: {reason}"
    record = json.loads(Path("out.json").read_text())
    assert record["errors"] == {"1": reason, "3": reason} and record["images"] == 2 and record["out"] == "x4.png"
    assert record["plain_passes"] == 16 and record["prompts"] == ["0", "1", "2", "3"]
    drawn = Image.open("x4.png")
    cells = [drawn.crop((x, y, x + 8, y + 8)) for y in (0, 10) for x in (0, 10)]
    white = Image.new("RGB", (8, 8), "white").tobytes()
    assert [cell.tobytes() for cell in cells] == [
        Image.open("0.png").tobytes(),
        white,
        Image.open("2.png").tobytes(),
        white,
    ]


def test_only_failed_pictures_leave_the_record() -> None:
    spoiled(3)
    result = invoke("image", "3", "--model", "spoiled", "--out", "none.png", "--json", "out.json")
    assert result.exit_code == 1 and result.stdout == "" and result.stderr.startswith("Error: image 0: expected finite")
    record = json.loads(Path("out.json").read_text())
    assert record["images"] == 0 and record["out"] is None and list(record["errors"]) == ["0"]
    assert not Path("none.png").exists()


def refused(code: int, *arguments: str) -> str:
    """The one line of stderr of a command that must end with `code` and write nothing."""
    result = runner.invoke(app, ["image", *arguments, "--out", "refused.png"])
    assert result.exit_code == code, (result.stdout, result.stderr, result.exception)
    assert result.stdout == "" and not Path("refused.png").exists()
    (line,) = result.stderr.splitlines()
    assert line.startswith("Error: ")
    return line


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (("--decoding", "magic"), "--decoding: expected one of ar, sjd, scd"),
        (
            ("--decoding", "ar", "--window", "4"),
            "--window: expected options that --decoding ar takes (none of its own)",
        ),
        (("--decoding", "zipar", "--coupling", "gumbel"), "--coupling: expected options that --decoding zipar takes"),
        (
            ("--decoding", "gsd", "--drafter", "eagle", "--window", "8"),
            "--window: expected options that --drafter eagle",
        ),
        (("--decoding", "gsd", "--drafter", "medusa"), "--drafter: expected one of sjd, scd, eagle"),
        (("--decoding", "mulo", "--upsampler", "magic"), "upsampler: expected pixels or learned"),
        (("--model", "nowhere"), "--model: expected one of t2i, c2i, a folder with a saved pipeline or a hub id"),
        (("--model", "video/tokens"), "--model: expected a model of pictures, got the zoo's 'video/tokens'"),
        (("--temperature", "-1"), "--temperature: expected a number of at least 0, got -1"),
        (("--temperature", "nan"), "--temperature: expected a number of at least 0, got nan"),
        (("--guidance", "-1"), "--guidance: expected a number of at least 0"),
        (("--top-k", "-1"), "--top-k: expected a number of at least 0"),
        (("--top-p", "0"), "--top-p: expected a number above 0 and up to 1"),
        (("--filter-order", "top_p"), "--filter-order: expected one of top_k_first, top_p_first, got 'top_p'"),
        (("--seed", "-1"), "--seed: expected a number of at least 0"),
        (("--grid", "0"), "--grid: expected a number of at least 1"),
        (("--grid", "5000"), "--grid: expected at most 1024 images"),
        (("a blue square", "a red square", "--grid", "2"), "--grid: expected at least 3 images (the prompts), got 2"),
        (("--batch", "0"), "--batch: expected a number of at least 1"),
        (("--json", "no/such/folder.json"), "expected an existing folder"),
        (("--json", "refused.png"), "expected a file of its own for every output, got 'refused.png' twice"),
    ],
)
def test_a_refused_option_is_a_usage_error(options: tuple[str, ...], sentence: str) -> None:
    assert sentence in refused(2, "a red circle", *options)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (("--window", "1"), "window: expected at least 2, got 1"),
        (("--coupling", "magic"), "coupling: expected maximal or gumbel, got 'magic'"),
        (("--init", "magic"), "init: expected random, uniform"),
        (("--rule", "magic"), "rule: expected one of exact"),
        (("--rule", "gsd:groups=3"), "expected a setting of gsd (group"),
        (("--rule", "block"), "rule 'block': expected drafts drawn anew every round"),
        (("--rule", "reflection"), "--rule: expected one of exact, token, block"),
        (("--decoding", "zipar", "--rule", "gsd"), "decoding 'zipar_8' is relaxed and brings its own"),
        (("--decoding", "mulo", "--upsampler", "learned"), "expected weights of t2i/upsampler, got none"),
    ],
)
def test_invalid_decoding_options_are_refused(options: tuple[str, ...], sentence: str) -> None:
    assert sentence in refused(2, "a red circle", *options)


def test_an_empty_prompt_and_a_folder_without_a_model() -> None:
    assert "PROMPT: expected a text, got an empty one" in refused(2, " ")
    Path("empty").mkdir()
    assert "expected a .safetensors file, got none there" in refused(2, "a red circle", "--model", "empty")


@pytest.mark.parametrize(
    ("file", "contents"),
    [
        ("config.json", b"[1]"),
        ("config.json", b'{"architectures": [[1]]}'),
        ("model_index.json", b'{"guidance_scale": '),
        ("transformer/config.json", b'{"dim": "wide", "n_head": 4}'),
        ("transformer/model.safetensors", b"cut"),
        ("text_encoder/config.json", b"[1]"),
        ("tokenizer/tokenizer.json", b""),
    ],
)
def test_a_damaged_model_reports_one_error(file: str, contents: bytes) -> None:
    captioned(CAPTION).save_pretrained("damaged")
    Path("damaged", file).write_bytes(contents)
    line = refused(2, "a red circle", "--model", "damaged")
    assert line.startswith("Error: --model: expected a folder with a saved pipeline, got 'damaged' (")


def test_only_png_is_written() -> None:
    result = runner.invoke(app, ["image", "a red circle", "--out", "a.jpg"])
    assert result.exit_code == 2 and "--out: expected a file that ends in .png, got 'a.jpg'" in result.stderr


def test_bench_files_match_the_printed_table() -> None:
    asked = ("--prompts", "1", "--images", "8", "--batch", "1", "--guidance", "2", "--top-k", "0", "--temperature", "1")
    files = ("--json", "bench.json", "--markdown", "bench.md")
    result = invoke("bench", "image", *asked, "--methods", "sjd-16", "--threads", "1", *files)
    assert result.exit_code == 0, result.stderr
    rows = json.loads(Path("bench.json").read_text())["rows"]
    assert [row["key"] for row in rows] == ["ar", "sjd-16"]
    for row in rows:
        assert all(str(row[name]) in result.stdout for name in ("seconds", "frechet", "clip_score", "step_compression"))
        assert f"| {row['seconds']} |" in Path("bench.md").read_text()
    assert f"mean top-1 probability {rows[0]['top1_probability']}" in result.stdout
    assert not Path("bench.json.part.jsonl").exists()  # a finished bench is in its file


@pytest.mark.whole
def test_a_pareto_curve() -> None:
    asked = ("--suite", "pareto", "--images", "8", "--methods", "sjd-gsd", "--threads", "1", "--plot", "curve.png")
    result = invoke("bench", "image", *asked)
    assert result.exit_code == 0, result.stderr
    assert Path("curve.png").stat().st_size > 1000 and "GSD on SJD 32, group 25" in result.stdout


def test_a_greedy_mismatch_fails_the_bench(monkeypatch: pytest.MonkeyPatch) -> None:
    from mmspec.evaluate.engine import rows
    from mmspec.evaluate.engine import rows as identity

    monkeypatch.setattr(identity, "TIE", 0.0)
    make = rows.identical
    spoiled = {"own": 0}

    def identical(plain, own):
        spoiled["own"] += 1
        if spoiled["own"] == 2:  # the drafted row
            for case in own:
                case[:] = [
                    replace(run, output=tuple(tuple(15 - code for code in row) for row in run.output)) for run in case
                ]
        return make(plain, own)

    monkeypatch.setattr(rows, "identical", identical)
    asked = (
        "--suite",
        "speed",
        "--prompts",
        "1",
        "--batch",
        "1",
        "--guidance",
        "1",
        "--temperature",
        "0",
        "--threads",
        "1",
    )
    result = invoke("bench", "image", *asked, "--methods", "sjd-16", "--json", "bench.json")
    assert result.exit_code == 1 and "expected the codes of plain decoding, got them in 0 of 1" in result.stderr
    assert "0/1" in result.stdout and Path("bench.json").is_file()


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("--suite", "magic"),
        ("--model", "vlm"),
        ("--prompts", "0"),
        ("--images", "4"),
        ("--batch", "x"),
        ("--batch", "64"),
        ("--batch", ""),
        ("--guidance", "-1"),
        ("--top-k", "-1"),
        ("--methods", "magic"),
        ("--methods", "ar,"),
        ("--methods", ""),
        ("--temperature", "-1"),
        ("--seed", "-1"),
        ("--plot", "curve.png"),
    ],
)
def test_a_refused_bench(option: str, value: str) -> None:
    result = runner.invoke(app, ["bench", "image", option, value])
    assert result.exit_code == 2 and f"{option}: expected" in result.stderr and result.stdout == ""


def test_prompts_of_unknown_words_are_refused() -> None:
    assert "expected words this model knows, got none in 'zebra'" in refused(2, "a red circle", "zebra")


def test_parts_have_the_zoos_names_too() -> None:
    short = drawn("a red circle", "--decoding", "eagle", "--seed", "3", "--out", "short.png")
    long = drawn("a red circle", "--decoding", "t2i/eagle", "--seed", "3", "--out", "long.png")
    assert long["drafter"] == short["drafter"] and Path("long.png").read_bytes() == Path("short.png").read_bytes()
    assert drawn("a red circle", "--decoding", "gsd", "--drafter", "t2i/eagle")["drafter"] == short["drafter"]
    assert "expected weights of t2i/upsampler" in refused(2, "a", "--decoding", "mulo", "--upsampler", "t2i/upsampler")
