"""A function as a command: its arguments are the command's, and its docstring holds their help texts and its examples."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any

import typer
from typer.core import TyperCommand, TyperGroup

from mmspec.cli.console import reports_errors, say, screen
from mmspec.run.placement import DEVICE_HELP, DTYPE_HELP

_SHARED = f"""
Args:
    json (FILE): Also write the figures to this JSON file.
    markdown (FILE): Also write the tables to this Markdown page.
    plot (FILE): Also draw the curves into this PNG file (needs mmspec\\[eval]).
    drafter (NAME): Drafter, such as eagle, msd, vispec, lookup or small; auto to choose by measured time; none for plain
        decoding; or a folder with a saved drafter.
    max_new_tokens (N): Longest answer in tokens.
    device (NAME): {DEVICE_HELP}
    dtype (NAME): {DTYPE_HELP}
"""
_ARGUMENT = re.compile(r"^ {4}(\w+)(?: \((.+?)\))?: (.*)$", re.M)


@dataclass(frozen=True, slots=True)
class CommandHelp:
    """The help texts in the docstring of a command; its examples are command lines, and comments that begin with "#"."""

    about: str
    arguments: dict[str, tuple[str, str]] = field(default_factory=dict)  # flags with the value's word, about
    examples: tuple[str, ...] = ()  # command lines, and comments that begin with "#"


def documented(text: str | None) -> CommandHelp:
    """Read a docstring in Google style. An argument's name may have its flags and the word for its value in brackets."""
    rest, _, examples = inspect.cleandoc(text or "").partition("Examples:\n")
    about, _, lines = rest.partition("Args:\n")
    joined = re.sub(r"\n {8,}", " ", lines)
    arguments = {name: (shown, line) for name, shown, line in _ARGUMENT.findall(joined)}
    paragraphs = re.sub(r"(?<!\n)\n(?!\n)", " ", about.strip())  # the screen wraps them
    return CommandHelp(paragraphs, arguments, tuple(line.strip() for line in examples.splitlines() if line.strip()))


SHARED = documented(_SHARED).arguments


def option(shown: str, about: str) -> Any:
    """Return the typer option of a docstring's line; `shown` is the flags, if others, and the word for the value."""
    words = shown.split()
    flags = [word for word in words if word.startswith("--")]
    return typer.Option(*flags, metavar=" ".join(words[len(flags) :]) or None, help=about)


class LateHelp(TyperCommand):
    """A command whose help ends with examples, and is completed late, to name the methods of imported modules too."""

    def format_help(self, *args: Any) -> None:
        texts = {name: text() for name, text in self.callback.texts.items()}
        for parameter in self.params if texts else ():
            parameter.help = (parameter.help or "").format(**texts)
        super().format_help(*args)
        print_examples(self.callback.examples)


class GroupHelp(TyperGroup):
    """A group of commands whose help ends with the examples in the docstring of its callback."""

    def format_help(self, *args: Any) -> None:
        super().format_help(*args)
        print_examples(documented(self.callback.__doc__).examples)


def print_examples(lines: tuple[str, ...]) -> None:
    from rich.text import Text

    if not lines:
        return
    out = screen()
    out.print(Text(" Examples:", style="bold"))
    for line in lines:
        out.print(Text(f"   {line}", style="dim" if line.startswith("#") else ""), soft_wrap=True)
    say("")


def command(**texts: Callable[[], str]) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Decorate a function that is a command. Arguments by position become the command's arguments, those by keyword its
    options. Errors end in one sentence. `texts` are the functions that fill each {name} in help texts."""

    def decorate(work: Callable[..., None]) -> Callable[..., None]:
        run = reports_errors(work)
        help_texts = documented(work.__doc__)
        signature = inspect.signature(work, eval_str=True)
        lines = SHARED | help_texts.arguments
        parameters = [_parameter(parameter, lines) for parameter in signature.parameters.values()]
        run.__signature__ = signature.replace(parameters=parameters)
        run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
        run.__doc__, run.texts, run.examples = help_texts.about, texts, help_texts.examples
        return run

    return decorate


def _parameter(parameter: inspect.Parameter, lines: Mapping[str, tuple[str, str]]) -> inspect.Parameter:
    shown, about = lines.get(parameter.name, ("", ""))
    is_option = parameter.kind is parameter.KEYWORD_ONLY
    info = option(shown, about) if is_option else typer.Argument(metavar=shown or None, help=about, show_default=False)
    return parameter.replace(annotation=Annotated[parameter.annotation, info])
