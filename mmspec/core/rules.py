"""The rules under the path that pages name."""

from mmspec.core.round.rules import *  # noqa: F403
from mmspec.core.round.rules import __all__ as __all__
