"""A function as a command: its arguments are the command's, and its docstring holds their help texts."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping
from typing import Annotated, Any

import typer
from typer.core import TyperCommand

from mmspec.cli.console import reports_errors

_SHARED = """
Args:
    json (FILE): Also write the figures to this file.
    markdown (FILE): Also write a Markdown page to this file.
    plot (FILE): Also draw the curves as PNG (needs mmspec\\[eval]).
    drafter (NAME): auto, eagle, msd, vispec or another of `mmspec supported`, vlm/eagle... being the same; small, lookup,
        recycling, none, or a folder with a saved drafter.
    max_new_tokens (N): Longest answer in tokens.
"""
_ARGUMENT = re.compile(r"^ {4}(\w+)(?: \((.+?)\))?: (.*)$", re.M)


def documented(text: str | None) -> tuple[str, dict[str, tuple[str, str]]]:
    """Read a docstring.

    Args:
        text: The docstring, in Google style; behind an argument's name stand in brackets its flags and the word for its value.

    Returns:
        The text in front of the arguments; and for each argument its text in brackets and its description.
    """
    about, _, lines = inspect.cleandoc(text or "").partition("Args:\n")
    joined = re.sub(r"\n {8,}", " ", lines)
    return about.strip(), {name: (shown, line) for name, shown, line in _ARGUMENT.findall(joined)}


SHARED = documented(_SHARED)[1]


def option(shown: str, about: str) -> Any:
    """The option of a line of a docstring.

    Args:
        shown: The flags, where they are not its name, and the word for its value.
        about: The help text.
    """
    words = shown.split()
    flags = [word for word in words if word.startswith("--")]
    return typer.Option(*flags, metavar=" ".join(words[len(flags) :]) or None, help=about)


class LateHelp(TyperCommand):
    """A command whose help texts are completed when they are shown, so that they name imported methods too."""

    def format_help(self, *args: Any) -> None:
        """Put the texts of `command` in their places and write the help."""
        texts = {name: text() for name, text in self.callback.texts.items()}
        for one in self.params if texts else ():
            one.help = (one.help or "").format(**texts)
        super().format_help(*args)


def command(**texts: Callable[[], str]) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Decorate a function that is a command.

    Arguments by position become the command's arguments, those by keyword its options. Errors end in one sentence.

    Args:
        **texts: What stands for {name} in the help texts of options, see `LateHelp`.
    """

    def decorate(work: Callable[..., None]) -> Callable[..., None]:
        run = reports_errors(work)
        about, lines = documented(work.__doc__)
        signature = inspect.signature(work, eval_str=True)
        parameters = [_parameter(one, SHARED | lines) for one in signature.parameters.values()]
        run.__signature__ = signature.replace(parameters=parameters)
        run.__annotations__ = {one.name: one.annotation for one in run.__signature__.parameters.values()}
        run.__doc__, run.texts = about, texts
        return run

    return decorate


def _parameter(one: inspect.Parameter, lines: Mapping[str, tuple[str, str]]) -> inspect.Parameter:
    shown, about = lines.get(one.name, ("", ""))
    is_option = one.kind is one.KEYWORD_ONLY
    info = option(shown, about) if is_option else typer.Argument(metavar=shown or None, help=about, show_default=False)
    return one.replace(annotation=Annotated[one.annotation, info])
