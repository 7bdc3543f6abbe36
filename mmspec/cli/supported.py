"""`mmspec supported`: the supported models, in short, for a family, or in full."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from mmspec.cli.command import command
from mmspec.cli.console import BadOption, check_writable, save_json, say, screen, spinner
from mmspec.cli.tables import print_table
from mmspec.cli.terminal import say_next

if TYPE_CHECKING:
    from mmspec.run.class_search import ModelMatch

_LABEL = 16  # columns of the labels of a model


@command()
def supported(name: str | None = None, *, everything: bool = False, json: Path | None = None) -> None:
    """Show which models are supported: counts, the classes of a family, or every table.

    Args:
        name (NAME): Family, class or hub id, or a part of them; a summary of all models when left out.
        everything (--all): Print every table: each class, drafter and rule, and how it is tested.
        json (FILE): Also write the tables, or the matching models, to this JSON file.

    Examples:
        mmspec supported
        mmspec supported qwen2.5-vl
        mmspec supported Qwen/Qwen2.5-VL-7B-Instruct
        mmspec supported --all
    """
    if name is not None and everything:
        raise BadOption(f"--all: expected no NAME beside it, got {name!r}, leave one of them out")
    check_writable(json)
    if name is not None:
        _show_matches(name, json)
        return
    with spinner("reading the tables"):
        from mmspec.run.supported import supported as matrix

        tables = matrix()
    save_json(json, tables)
    (_show_everything if everything else _show_summary)(tables)


def _show_summary(tables: dict[str, Any]) -> None:
    classes = tables["greedy table"]["classes"]
    refused = {record["model class"] for record in tables["refused classes"]}
    listed = {record["image-text class"] for record in tables["image-text classes"]}
    groups: dict[str, list[str]] = {"text": [], "text and pictures": []}
    for name, record in classes.items():
        reads_pictures = name in listed or "images" in record.get("inputs", ())
        groups["text and pictures" if reads_pictures else "text"].append(name)
    rows = [
        (label, len(names) - len(refused & {*names}), len(names), _families(names)) for label, names in groups.items()
    ]
    for label, key, head in (
        ("images", "image models", "image model"),
        ("continuous images", "models of vectors", "model of vectors"),
        ("videos of blocks", "video models", "video model"),
    ):
        names = list(dict.fromkeys(_family(record[head]) for record in tables[key]))
        rows.append((label, len(names), len(names), ", ".join(names)))
    heads = ("models", "supported", "tried", "such as")
    version = tables["greedy table"]["transformers"]
    print_table(f"models that mmspec decodes with drafts (transformers {version})", heads, rows, heads[1:3])
    _say_wrapped("Drafters for text: " + ", ".join(record["drafter"] for record in tables["drafters"]) + ".")
    _say_wrapped("A class that was not tried proves itself when it is first used, or is refused with a sentence.\n")
    say("Ask further:")
    for line, about in (
        ("mmspec supported qwen2.5-vl", "the classes of a family, by its name, a class or a hub id"),
        ("mmspec supported --all", "every class, drafter and rule, and how each is tested"),
        ("mmspec check MODEL", "your own model: a folder, a config, or a hub id"),
        ("mmspec methods", "every drafter, decoding and rule"),
    ):
        say(f"  {line:<28}  {about}")


def _say_wrapped(text: str) -> None:
    screen().print(text, markup=False)


def _families(names: list[str]) -> str:
    """Return some well-known families of the classes, for the summary."""
    known = ("Llama", "Qwen3", "Gemma3", "Mistral", "Llava", "Qwen2_5_VL", "Qwen3VL", "InternVL", "Idefics3")
    shown = [name for family in known for name in names if name.startswith(f"{family}For")]
    return ", ".join(dict.fromkeys(map(_family, shown))) + ", ..."


def _family(name: str) -> str:
    """Return the name of a class without its task."""
    return name.removesuffix("ForConditionalGeneration").removesuffix("ForCausalLM")


def _show_matches(name: str, json: Path | None) -> None:
    with spinner("reading the tables"):
        from mmspec.run.class_search import matching_models

        matches = matching_models(name)
    if not matches:
        raise BadOption(
            f"NAME: expected a family, class or hub id of the tables, got {name!r}, which none of them has; run `mmspec "
            "check MODEL` on its folder, config or hub id, since a class proves itself when it is first used"
        )
    save_json(json, {"name": name, "models": [match.record() for match in matches]})
    for match in matches:
        _show_match(match)
    say_next(f"mmspec check {name if '/' in name else 'MODEL'}")


def _show_match(match: ModelMatch) -> None:
    from textwrap import wrap

    say(match.name, "bold")
    room = max(screen().width, 40) - _LABEL - 2
    for label, text in match.facts.items():
        for number, line in enumerate(wrap(text, room, break_long_words=False, break_on_hyphens=False) or ["-"]):
            say(f"  {label if number == 0 else '':<{_LABEL}}{line}")


def _show_everything(tables: dict[str, Any]) -> None:
    from mmspec.run.supported import RULES_BY, UNTESTED

    version = tables["greedy table"]["transformers"]
    sampled = dict.fromkeys(pair["sampled tested by"] for pair in tables["combinations"])
    for title, records in (
        ("models that the suite tests whole, and the drafters whose greedy output is tested", _pairs(tables)),
        (f"every image-text class of transformers {version}", tables["image-text classes"]),
        (f"every supported causal and image-text class of transformers {version}", tables["classes"]),
        ("refused classes: a request ends with a sentence before any token", tables["refused classes"]),
        ("image models, beside LlamaGen", tables["image models"]),
        ("image models of continuous tokens: each decoding is exact or relaxed", tables["models of vectors"]),
        ("video models that draw blocks; any two of the same latents go together", tables["video models"]),
        ("videos: each decoding is exact or relaxed", tables["videos"]),
        ("drafters", tables["drafters"]),
        ("rules for sampled requests; greedy requests are verified by target-match", tables["rules"]),
    ):
        print_table(title, tuple(records[0]), (record.values() for record in records))
    say(
        f"Greedy output is tested by: {tables['models'][0]['tested by']}; the other pairs are {UNTESTED}.\n"
        f"Rules are tested by {RULES_BY}; sampled output by {', and by '.join(sampled)}.\n"
        f"Classes: tiny random models of {len(tables['greedy table']['classes'])} classes, greedily with and without "
        "drafts, against transformers.generate;\nyes: the same tokens, partly: some requests are refused. A class that is "
        "not in the first table proves itself when it is first used; by enable: the first use of a fresh model through "
        "mmspec.enable.\nExact: sampled output has the model's distribution, greedy output its tokens (in fp32; at lower "
        "precision two nearly equal logits can change places)."
    )


def _pairs(tables: dict[str, Any]) -> list[dict[str, str]]:
    """Return a row a model: the drafters whose output with it is exact, by the suite or by the same code elsewhere."""
    from mmspec.run.supported import UNTESTED

    rows = []
    for record in tables["models"]:
        pairs = [pair for pair in tables["combinations"] if pair["model"] == record["model"]]
        tested = [pair["drafter"] for pair in pairs if pair["greedy tested by"] != UNTESTED]
        same = [pair["drafter"] for pair in pairs if pair["greedy tested by"] == UNTESTED]
        rows.append(
            {
                "model": record["model"],
                "prompts hold": record["prompts hold"],
                "exact, tested": ", ".join(tested) or "-",
                "exact, by the same code": ", ".join(same) or "-",
            }
        )
    return rows
