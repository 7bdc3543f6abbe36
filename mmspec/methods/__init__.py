"""The registry of methods: what can be asked for by name, and the text form it is asked in."""

from __future__ import annotations

from mmspec.methods.registry import Domain, Kind, MethodInfo, MethodParts, decoding_with, find, method, methods, names
from mmspec.methods.settings import MethodSetting
from mmspec.methods.text import MethodCall, parse, value_of

__all__ = [
    "Domain",
    "Kind",
    "MethodInfo",
    "MethodCall",
    "MethodSetting",
    "MethodParts",
    "decoding_with",
    "find",
    "method",
    "methods",
    "names",
    "parse",
    "value_of",
]
