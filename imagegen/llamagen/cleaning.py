"""Captions from the web into plain lower-case text."""

from __future__ import annotations

import html
import re
from urllib.parse import unquote_plus

_DASHES = "‐‑‒–—―−⸺⸻﹘﹣－"
_DOUBLE, _SINGLE = "“”„‟«»″`´", "‘’‚‛"
_SAME = str.maketrans({**dict.fromkeys(_DASHES, "-"), **dict.fromkeys(_DOUBLE, '"'), **dict.fromkeys(_SINGLE, "'")})

# in this order: what is cut, and what stands there instead
_CUTS = [
    (re.compile(pattern), into)
    for pattern, into in (
        (r"<(?!person>)[^<>]*>", " "),
        (r"<person>", "person"),
        (r"(?:https?://|www\.)\S+", ""),
        (r"\b[\w-]+\.(?:com|co|ru|net|org|edu|gov|it)\b(?:/\S*)?", ""),
        (r"@[\w\d]+\b", ""),
        (r"[\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff]+", ""),  # Japanese and Chinese, which the encoder does not know
        (r"\b\d{1,3}(?:\.\d{1,3}){3}\b", " "),
        (r"\b\d{3,4}\s*[x×]\s*\d{3,4}\b", ""),
        (r"#\d+\b|\b\d{6,}\b", ""),
        (r"\S+\.(?:png|jpe?g|bmp|webp|eps|pdf|apk|mp4|gif)\b", ""),
        (r"\b(?:png|jpe?g|bmp|webp|eps|pdf|apk|mp4)\b", ""),
        (r"\b(?:worldwide\s+)?free\s+(?:shipping|download)\b|\bclick\b\s(?:for|on)\s\w+", " "),
        (r"\bpage\s+\d+\b", " "),
        (r"\b(?=[a-z]*\d)(?=\d*[a-z])[a-z\d]{9,}\b", ""),  # ids of letters and digits
        (r"[\"']{2,}", '"'),
        (r"\.{2,}", " "),
        (r"[#®•©™&@·º½¾¿¡§~()\[\]{}|\\/*]+", " "),
        (r"\s+\.\s+", " "),
    )
]
_TIDY = [
    (re.compile(pattern), into)
    for pattern, into in (
        (r"\s+([,.:;!?])", r"\1"),
        (r"([,;!?])(?=[^\s\d\"'])", r"\1 "),
        (r":(?=[^\s\d])", ": "),
        (r"\s+", " "),
        (r"^[\s'_,:;-]+|[\s'_,:;-]+$", ""),
        (r"^[\"'](.+)[\"']$", r"\1"),
        (r"^\.\S+$", ""),
    )
]


def clean(text: str) -> str:
    """`text` in lower case without addresses, markup, file names and ids, and with plain punctuation.

    Our own wording of the cleaner that DeepFloyd IF and PixArt use and LlamaGen applies twice; ordinary sentences come out
    the same, but odd leftovers of the web may not.
    """
    text = unquote_plus(str(text)) if re.search(r"%[0-9a-fA-F]{2}", text) else str(text)
    text = html.unescape(html.unescape(text)).strip().lower().translate(_SAME)
    for pattern, into in _CUTS:
        text = pattern.sub(into, text)
    if len(re.findall(r"[-_]", text)) > 3:
        text = re.sub(r"[-_]", " ", text)
    for pattern, into in _TIDY:
        text = pattern.sub(into, text)
    return text.strip()
