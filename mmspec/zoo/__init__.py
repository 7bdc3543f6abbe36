"""The embedded zoo: small models really trained on a procedural world."""

from .registry import load, names

__all__ = ["load", "names"]
