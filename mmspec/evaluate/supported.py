"""Which combinations of model, drafter and rule are supported, how exact they are and how that is tested, as records."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from mmspec import zoo
from mmspec.core.rules.by_name import resolve
from mmspec.imagegen.adapters.registry import supported as image_models
from mmspec.io.readers import read_json
from mmspec.methods import MethodInfo, methods, names
from mmspec.vlm import supported as architectures

RULES_BY = "enumeration of every draft and decision on small vocabularies"
UNTESTED = "not in the suite; the same code"
UNTESTED_CLASS = "same code, untested"


@dataclass(frozen=True, slots=True)
class DraftForm:
    """What a rule is given. kind, drawn: of the law on record.   siblings: nodes can have more than one child.
    copies: copied nodes can stand beside drawn ones."""

    shape: str
    kind: str
    drawn: str
    siblings: bool
    copies: bool = False

    def rules(self, exact: bool) -> list[str]:
        """Names of the exact or the relaxed rules that take it, the one that chooses among others left out."""
        found = {name: resolve(name, greedy=False) for name in names("vlm", "rule") if name != "exact"}
        return [
            name
            for name, rule in found.items()
            if rule.exact == exact
            and (self.kind, self.drawn) in rule.proven_for
            and not (rule.chains_only and self.siblings)
            and (rule.takes_copies or not self.copies)
        ]


_MADE = (
    DraftForm("dynamic tree", "onehot", "deterministic", True),
    DraftForm("sampled tree", "categorical", "without_replacement", True),
    DraftForm("sampled chain", "categorical", "without_replacement", False),
    DraftForm("n-grams", "onehot", "deterministic", False),
    DraftForm("sampled tree with copies", "categorical", "without_replacement", True, True),
)
FORMS = {one.shape: one for one in _MADE}  # by the names that `drafts` of a method has


@dataclass(frozen=True, slots=True)
class DrafterRow:
    """A drafter. name: its kind in saved files, or its name.   drafts: what it can hand to a rule.
    sampled: how the law of sampled output is tested.   models: classes greedy output is tested on, None for all."""

    name: str
    what: str
    training: str
    zoo: str
    drafts: tuple[DraftForm, ...]
    sampled: str
    models: frozenset[str] | None = None


_TESTED = frozenset(f"{name}ForConditionalGeneration" for name in ("Llava", "LlavaNext", "Qwen2_5_VL", "Qwen3VL"))
_VARIANTS = {"window": "small windows", "dynamic": "dynamic RoPE", "longrope": "longrope", "alibi": "ALiBi"}
_BEHIND_PICTURE = "chi-square of the joint law of three tokens behind a picture, tiny LLaVA"
_OF_TEXT = "chi-square of the joint law of four tokens, tiny Llama"


def drafter_rows() -> list[DrafterRow]:
    """Every drafter that any target can have, in the order of the registry."""
    rows, built = [], zoo.names()
    for one in methods("vlm", "drafter"):
        if forms := tuple(FORMS[name] for name in one.facts.get("drafts", ())):
            part = f"vlm/{one.name}" if f"vlm/{one.name}" in built else "-"
            name = one.facts.get("saved", one.name)
            test = (_BEHIND_PICTURE, _TESTED) if "saved" in one.facts else (_OF_TEXT, None)
            rows.append(DrafterRow(name, one.about, _training(one), part, forms, *test))
    return rows


def _training(one: MethodInfo) -> str:
    """What training a drafter needs."""
    if "saved" in one.facts:
        return "per target: mmspec train vlm-drafter" if "trained" in one.facts else "none here: published files"
    return {("weights",): "that of the trained drafter", ("model",): "none of its own"}.get(one.needs, "none")


def records_of(heads: Sequence[str], rows: Iterable[Sequence]) -> list[dict]:
    """Records from the names of their fields, and their values row by row."""
    return [dict(zip(heads, row, strict=True)) for row in rows]


def model_records() -> list[dict]:
    """One record per model class: its inputs, the law of the output with each drafter, and how it is tested."""
    laws = {row.name: law_of(row) for row in drafter_rows()}
    return [{"model": one.name, "prompts hold": one.inputs, **laws, "tested by": one.tested} for one in architectures()]


@cache
def greedy_table() -> dict:
    """What the suite found for every causal and image-text class of transformers: its version, and by class the inputs,
    the outcomes by variant, those of a first use through `mmspec.enable`, and the reasons. Made by
    `python -m tests.vlm.classes`, never by hand."""
    return read_json(Path(__file__).with_name("greedy_table.json"))


def class_records() -> list[dict]:
    """One record per class that is taken in its default form: what prompts held, and what became of its variants."""
    records = []
    for name, found in greedy_table()["classes"].items():
        outcomes = found.get("outcomes", {})
        if "same" in outcomes.get("default", ""):
            forms = {title: _form(outcomes.get(variant)) for variant, title in _VARIANTS.items()}
            # the first use of a fresh model through `mmspec.enable`
            first = {"by enable": _form(found.get("enable", {}).get("default"))}
            records.append({"model class": name, "prompts hold": ", ".join(found["inputs"]), **first, **forms})
    return records


def refused_records() -> list[dict]:
    """One record per class that is not taken in its default form, with the sentence that says why."""
    return [
        {"model class": name, "reason": _reason(found)}
        for name, found in greedy_table()["classes"].items()
        if "same" not in found.get("outcomes", {}).get("default", "")
    ]


def image_text_records() -> list[dict]:
    """One record per image-text class of the installed transformers, from its own mapping: tested, the same code but
    untested, or refused, and why or which of its variants are refused."""
    from transformers.models.auto.modeling_auto import MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES as NAMES

    records, classes = [], greedy_table()["classes"]
    for name in sorted(set(NAMES.values())):
        found = classes.get(name)
        if found is None:
            status, reason = UNTESTED_CLASS, "proves itself when it is first used"
        elif "images" in found.get("inputs", ()):
            outcomes = found["outcomes"]
            left = [_VARIANTS.get(label, label) for label, outcome in outcomes.items() if "refused" in outcome]
            status, reason = "tested", f"refused: {', '.join(left)}" if left else "-"
        elif "same" in found.get("outcomes", {}).get("default", ""):
            status, reason = UNTESTED_CLASS, "with text; with pictures it proves itself"
        else:
            status, reason = "refused", _reason(found)
        records.append({"image-text class": name, "status": status, "reason": reason})
    return records


def _reason(found: dict) -> str:
    if "unbuilt" in found:
        return f"not built tiny: {found['unbuilt']}"
    fails = found["outcomes"]["default"] == "unrunnable"
    return f"transformers.generate itself: {found['reasons']['default']}" if fails else found["reasons"]["default"]


def _form(outcome: str | None) -> str:
    if outcome is None:
        return "-"
    return {"same": "yes", "same+refused": "partly", "unrunnable": "-"}.get(outcome, outcome)


def image_model_records() -> list[dict]:
    """One record per image model class of transformers: its published sampler, and how it is tested."""
    heads = ("image model", "guidance", "top-k", "size", "pixels", "tested by")
    sizes, pixels = {True: "chosen", False: "fixed"}, {True: "yes", False: "codes only"}
    return records_of(heads, (
        (one.name, one.guidance_scale, one.top_k, sizes[bool(one.sized)], pixels[bool(one.pixels)], one.tested)
        for one in image_models()
    ))  # fmt: skip


def law_of(row: DrafterRow) -> str:
    """The law of the output under the default rule, greedy and sampled."""
    rule = resolve("exact", greedy=False)
    proven = all((drafts.kind, drafts.drawn) in rule.proven_for for drafts in row.drafts)
    return "exact" if proven and rule.exact and resolve("exact", greedy=True).exact else "relaxed"


def drafter_records() -> list[dict]:
    """One record per drafter: what it drafts and what training it needs."""
    return records_of(("drafter", "drafts", "shapes", "needs training", "in the zoo"), (
        (row.name, row.what, ", ".join(drafts.shape for drafts in row.drafts), row.training, row.zoo)
        for row in drafter_rows()
    ))  # fmt: skip


def rule_records() -> list[dict]:
    """One record per shape of a draft: the rules that take it."""
    found = ((one.shape, one.rules(exact=True), one.rules(exact=False)) for one in _MADE[:4])
    rows = ((shape, ", ".join(exact), ", ".join(relaxed) or "-") for shape, exact, relaxed in found)
    return records_of(("drafts", "exact rules", "relaxed rules"), rows)


def combination_records() -> list[dict]:
    """One record per model class and drafter: the law, and how the pair is tested."""
    records = []
    for one in architectures():
        for row in drafter_rows():
            law, covered = law_of(row), row.models is None or one.name in row.models
            tested = {"greedy tested by": one.tested if covered else UNTESTED, "sampled tested by": row.sampled}
            records.append({"model": one.name, "drafter": row.name, "greedy": law, "sampled": law, **tested})
    return records


def supported() -> dict[str, object]:
    """The whole matrix, which `mmspec supported` prints: lists of records by title, and what greedy output of every class of
    transformers was found to be. Every record says how it is tested, or whether the law is kept."""
    from mmspec.evaluate.supported_decodings import continuous_records, router_records, video_model_records

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
