"""The registry of methods by name, and the parser of their text form."""

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
