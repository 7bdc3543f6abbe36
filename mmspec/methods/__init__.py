"""The registry of methods: what can be asked for by name, and the text form it is asked in."""

from __future__ import annotations

from mmspec.methods.registry import Domain, Kind, MethodInfo, MethodParts, find, method, methods, names
from mmspec.methods.settings import MethodSetting
from mmspec.methods.text import MethodCall, parse

__all__ = [
    "Domain",
    "Kind",
    "MethodInfo",
    "MethodCall",
    "MethodSetting",
    "MethodParts",
    "find",
    "method",
    "methods",
    "names",
    "parse",
]
