"""The supported combinations of model, drafter and rule, with their exactness and tests, as records."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from mmspec import zoo
from mmspec.core.round.rules.by_name import resolve
from mmspec.imagegen.adapters.registry import supported as image_models
from mmspec.io.readers import read_json
from mmspec.methods import MethodInfo, methods
from mmspec.vlm import supported as architectures

RULES_BY = "enumeration of every draft and decision on small vocabularies"
UNTESTED = "not in the suite; the same code"
UNTESTED_CLASS = "same code, untested"


@dataclass(frozen=True, slots=True)
class DraftForm:
    """A form of draft that a rule may have to judge."""

    shape: str
    kind: str  # of distribution that the draft records
    drawn: str  # how draft tokens are drawn from it
    siblings: bool  # whether a node may have more than one child
    copies: bool = False  # whether copied nodes may occur beside drawn nodes

    def rules(self, exact: bool) -> list[str]:
        """Return the exact or the relaxed rules that support this form, without the rule that chooses among others."""
        return [
            info.name for info in methods("vlm", "rule", exact) if info.name != "exact" and self._supported_by(info)
        ]

    def _supported_by(self, info: MethodInfo) -> bool:
        if info.needs:  # a rule with weights names the forms, since it cannot be constructed without them
            return self.shape in info.facts.get("drafts", ())
        rule = resolve(info.name, greedy=False)
        proven = (self.kind, self.drawn) in rule.proven_for and not (rule.chains_only and self.siblings)
        return proven and (rule.takes_copies or not self.copies)


_DRAFT_FORMS = (
    DraftForm("dynamic tree", "onehot", "deterministic", True),
    DraftForm("sampled tree", "categorical", "without_replacement", True),
    DraftForm("sampled chain", "categorical", "without_replacement", False),
    DraftForm("n-grams", "onehot", "deterministic", False),
    DraftForm("sampled tree with copies", "categorical", "without_replacement", True, True),
)
FORMS = {form.shape: form for form in _DRAFT_FORMS}  # by their names in a method's `drafts`


@dataclass(frozen=True, slots=True)
class DrafterRow:
    """A drafter in the table of supported combinations."""

    name: str  # its kind in saved files, or its name
    about: str  # a line that describes it
    training: str  # that it needs
    zoo: str  # its name in the zoo, "-" without weights
    drafts: tuple[DraftForm, ...]
    sampled: str  # the test of the distribution of sampled output
    models: frozenset[str] | None = None  # the model classes that greedy output is tested on, None for all


_TESTED = frozenset(f"{name}ForConditionalGeneration" for name in ("Llava", "LlavaNext", "Qwen2_5_VL", "Qwen3VL"))
_VARIANTS = {"window": "small windows", "dynamic": "dynamic RoPE", "longrope": "longrope", "alibi": "ALiBi"}
_BEHIND_PICTURE = "chi-square of the joint law of three tokens behind a picture, tiny LLaVA"
_OF_TEXT = "chi-square of the joint law of four tokens, tiny Llama"


def drafter_rows() -> list[DrafterRow]:
    """Return every drafter that any target supports, in the order of the registry."""
    rows, built = [], zoo.names()
    for method in methods("vlm", "drafter"):
        if forms := tuple(FORMS[name] for name in method.facts.get("drafts", ())):
            part = f"vlm/{method.name}" if f"vlm/{method.name}" in built else "-"
            name = method.facts.get("saved", method.name)
            test = (_BEHIND_PICTURE, _TESTED) if "saved" in method.facts else (_OF_TEXT, None)
            rows.append(DrafterRow(name, method.about, _training(method), part, forms, *test))
    return rows


def _training(one: MethodInfo) -> str:
    if "saved" in one.facts:
        return "per target: mmspec train vlm-drafter" if "trained" in one.facts else "none here: published files"
    return {("weights",): "that of the trained drafter", ("model",): "none of its own"}.get(one.needs, "none")


def records_of(heads: Sequence[str], rows: Iterable[Sequence]) -> list[dict]:
    """Return records from the names of their fields and the values row by row."""
    return [dict(zip(heads, row, strict=True)) for row in rows]


def model_records() -> list[dict]:
    """Return a record per model class: its inputs, the exactness with each drafter, and its tests."""
    laws = {row.name: law_of(row) for row in drafter_rows()}
    return [
        {"model": architecture.name, "prompts hold": architecture.inputs, **laws, "tested by": architecture.tested}
        for architecture in architectures()
    ]


@cache
def greedy_table() -> dict:
    """Return the results of the test suite for every causal and image-text class of transformers. It holds the version
    of transformers, and by class the inputs, the outcomes by variant, those of a first use through `mmspec.enable`, and
    the reasons. `python -m tests.vlm.classes` writes it; it is not edited by hand."""
    return read_json(Path(__file__).with_name("greedy_table.json"))


def class_records() -> list[dict]:
    """Return a record per class that is supported in its default form: its inputs, and the outcomes of its variants."""
    records = []
    for name, entry in greedy_table()["classes"].items():
        outcomes = entry.get("outcomes", {})
        if "same" in outcomes.get("default", ""):
            forms = {title: _form(outcomes.get(variant)) for variant, title in _VARIANTS.items()}
            # the first use of a fresh model through `mmspec.enable`
            first = {"by enable": _form(entry.get("enable", {}).get("default"))}
            records.append({"model class": name, "prompts hold": ", ".join(entry["inputs"]), **first, **forms})
    return records


def refused_records() -> list[dict]:
    """Return a record per class that is refused in its default form, with the reason."""
    return [
        {"model class": name, "reason": _reason(entry)}
        for name, entry in greedy_table()["classes"].items()
        if "same" not in entry.get("outcomes", {}).get("default", "")
    ]


def image_text_records() -> list[dict]:
    """Return a record per image-text class of the installed transformers: tested, untested, or refused. The reason says
    why it is refused, or which of its variants are."""
    from transformers.models.auto.modeling_auto import MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES as NAMES

    records, classes = [], greedy_table()["classes"]
    for name in sorted(set(NAMES.values())):
        entry = classes.get(name)
        if entry is None:
            status, reason = UNTESTED_CLASS, "proves itself when it is first used"
        elif "images" in entry.get("inputs", ()):
            outcomes = entry["outcomes"]
            left = [_VARIANTS.get(label, label) for label, outcome in outcomes.items() if "refused" in outcome]
            status, reason = "tested", f"refused: {', '.join(left)}" if left else "-"
        elif "same" in entry.get("outcomes", {}).get("default", ""):
            status, reason = UNTESTED_CLASS, "with text; with pictures it proves itself"
        else:
            status, reason = "refused", _reason(entry)
        records.append({"image-text class": name, "status": status, "reason": reason})
    return records


def _reason(entry: dict) -> str:
    if "unbuilt" in entry:
        return f"not built tiny: {entry['unbuilt']}"
    fails = entry["outcomes"]["default"] == "unrunnable"
    return f"transformers.generate itself: {entry['reasons']['default']}" if fails else entry["reasons"]["default"]


def _form(outcome: str | None) -> str:
    if outcome is None:
        return "-"
    return {"same": "yes", "same+refused": "partly", "unrunnable": "-"}.get(outcome, outcome)


def image_model_records() -> list[dict]:
    """Return a record per image model class of transformers: its published sampler, and its tests."""
    heads = ("image model", "guidance", "top-k", "size", "pixels", "tested by")
    sizes, pixels = {True: "chosen", False: "fixed"}, {True: "yes", False: "codes only"}
    return records_of(
        heads,
        (
            (
                model.name,
                model.guidance_scale,
                model.top_k,
                sizes[bool(model.sized)],
                pixels[bool(model.pixels)],
                model.tested,
            )
            for model in image_models()
        ),
    )


def law_of(row: DrafterRow) -> str:
    """Return whether the output under the default rule is exact, greedy and sampled."""
    rule = resolve("exact", greedy=False)
    proven = all((drafts.kind, drafts.drawn) in rule.proven_for for drafts in row.drafts)
    return "exact" if proven and rule.exact and resolve("exact", greedy=True).exact else "relaxed"


def drafter_records() -> list[dict]:
    """Return a record per drafter: its drafts and the training it needs."""
    return records_of(
        ("drafter", "drafts", "shapes", "needs training", "in the zoo"),
        (
            (row.name, row.about, ", ".join(drafts.shape for drafts in row.drafts), row.training, row.zoo)
            for row in drafter_rows()
        ),
    )


def rule_records() -> list[dict]:
    """Return a record per form of draft: the rules that support it."""
    forms = ((form.shape, form.rules(exact=True), form.rules(exact=False)) for form in _DRAFT_FORMS[:4])
    rows = ((shape, ", ".join(exact), ", ".join(relaxed) or "-") for shape, exact, relaxed in forms)
    return records_of(("drafts", "exact rules", "relaxed rules"), rows)


def combination_records() -> list[dict]:
    """Return a record per model class and drafter: the exactness, and the tests of the pair."""
    records = []
    for architecture in architectures():
        for row in drafter_rows():
            law, covered = law_of(row), row.models is None or architecture.name in row.models
            tested = {
                "greedy tested by": architecture.tested if covered else UNTESTED,
                "sampled tested by": row.sampled,
            }
            records.append({"model": architecture.name, "drafter": row.name, "greedy": law, "sampled": law, **tested})
    return records


def supported() -> dict[str, object]:
    """Return the whole matrix for `mmspec supported`: lists of records by title, and the greedy results of every class.

    Every record names its tests, or whether the distribution is preserved.
    """
    from mmspec.run.supported_decodings import continuous_records, router_records, video_model_records

    return {
        "models": model_records(),
        "image models": image_model_records(),
        "models of vectors": continuous_records(),
        "video models": video_model_records(),
        "videos": router_records(),
        "drafters": drafter_records(),
        "rules": rule_records(),
        "combinations": combination_records(),
        "classes": class_records(),
        "refused classes": refused_records(),
        "image-text classes": image_text_records(),
        "greedy table": greedy_table(),
    }
