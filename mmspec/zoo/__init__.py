"""The embedded zoo: small models, fully trained on a procedural world."""

from mmspec.zoo.files.registry import folder_of, load, names

__all__ = ["folder_of", "load", "names"]
