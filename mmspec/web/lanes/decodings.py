"""The models and decodings that the page offers for images and videos."""

from __future__ import annotations

from collections.abc import Iterator

from mmspec.methods import MethodCall, MethodInfo, methods

VIDEO_PARTS = ("video", "video/draft", "video/reward")
VIDEO_TOKENS = "video/tokens"
NOT_OFFERED = ("ar", "auto")  # the plain lane, and a choice among the others
FIRST = ("head",)  # decodings at the top of the list
FORMS = {"head": "head:window=32"}  # settings that are faster here than the defaults
VIDEO_FORMS = {"scd": "scd:window=64"}  # the same for videos of tokens, see docs/benchmarks/video-tokens.md


def missing_models() -> str | None:
    """Return a sentence with the commands that build the zoo's model of blocks; None where it is built."""
    from mmspec import zoo

    names = zoo.names()
    absent = [name for name in VIDEO_PARTS if name not in names]
    if not absent:
        return None
    commands = " and ".join(f"mmspec zoo build {name}" for name in absent)
    return f"A video model is missing: run {commands}, then reload this page."


def has_video_tokens() -> bool:
    from mmspec import zoo

    return VIDEO_TOKENS in zoo.names()


def offered(model: str, law: str) -> dict[str, str]:
    """Return the "exact" or "relaxed" decodings of "t2i", "mar", "car" or "video/tokens" whose weights are available:
    the titles by text form."""
    from mmspec.run.model_kinds import CODES, CONTINUOUS_MODELS

    if model in CONTINUOUS_MODELS:
        decodings = dict(_continuous(model, CONTINUOUS_MODELS[model], law == "exact"))
        names = sorted(decodings, key=lambda text: not text.startswith(FIRST))
        return {text: decodings[text] for text in names}
    domain = "video" if model == VIDEO_TOKENS else "image"
    # relaxed decodings of several rows do not fill the grid in raster order
    known = (
        methods(domain, "decoding", exact=True, models=CODES)
        if law == "exact"
        else methods(domain, "rule", exact=False)
    )
    forms = VIDEO_FORMS if model == VIDEO_TOKENS else {}
    return {
        (text := forms.get(method.name, method.name)): f"{text}: {method.about}; {law}"
        for method in known
        if method.name not in NOT_OFFERED and _is_here(method, model)
    }


def _continuous(model: str, kind: str, exact: bool) -> Iterator[tuple[str, str]]:
    """Yield text forms and titles: relaxed methods with a setting that makes them exact, then the other methods. A
    method appears once for each choice of its first setting, or for each rule."""
    from mmspec.run.continuous_models import rule_names

    known = [method for method in methods("continuous", "decoding", models=kind) if _is_here(method, model)]
    texts = [f"{method.name}:{method.facts['exact_at']}" for method in known if exact and "exact_at" in method.facts]
    for method in known:
        if method.exact == exact and method.name not in NOT_OFFERED:
            forms = (
                [f":{method.facts['shown_at']}"]
                if "shown_at" in method.facts
                else [f":{setting.name}={choice}" for setting in method.settings[:1] for choice in setting.choices]
            )
            rules = [f":rule={rule}" for rule in rule_names()] if "rule" in method.facts else [""]
            texts += [FORMS.get(method.name + form, method.name + form) for form in forms or rules]
    for text in texts:
        call, title = continuous_call(text, kind)
        yield text, f"{title}: {call.method.about}"


def continuous_call(text: str, kind: str) -> tuple[MethodCall, str]:
    """Return the decoding of a text, and its title."""
    from mmspec.run.continuous_models import split_rule
    from mmspec.run.decoding_options import decoding_call

    text, rule = split_rule(text, None)
    call = decoding_call(text, "continuous", kind)
    return call, call.title + ("" if rule is None else f", {rule.replace('_', ' ')}")


def _is_here(method: MethodInfo, model: str) -> bool:
    from mmspec import zoo

    return all(f"{model}/{part}" in zoo.names() for part in method.needs)
