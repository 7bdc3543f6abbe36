"""Instructions for a text model: nine kinds of tasks over many topics, each a pure function of its number."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np

from mmspec.zoo.world.passages import function, letter, news, person, record
from mmspec.zoo.world.scene import pick

InstructionKind = Literal[
    "chat", "story", "code", "summary", "rewriting", "editing", "lists", "extraction", "second_turn"
]
INSTRUCTION_KINDS: tuple[InstructionKind, ...] = get_args(InstructionKind)

_TOPICS = """photosynthesis; the water cycle; black holes; how vaccines work; the French Revolution; compound interest;
machine learning; climate change; the human heart; volcanoes; plate tectonics; the immune system; supply and demand;
renewable energy; the Roman Empire; the Silk Road; DNA; gravity; electric cars; the moon landing; jazz music; chess; yoga;
meditation; public speaking; time management; learning a new language; cooking pasta; baking bread; growing tomatoes;
caring for a cat; training a puppy; running a marathon; riding a bicycle; saving money; writing a resume; job interviews;
remote work; good sleep; healthy eating; drinking enough water; stress at work; making friends; recycling; bees; whales;
coral reefs; rain forests; deserts; penguins; elephants; sharks; the history of paper; the printing press; the telephone;
the internet; computer viruses; passwords; open source software; databases; operating systems; search engines; robots;
3D printing; solar panels; nuclear power; bridges; skyscrapers; the Great Wall of China; the pyramids; Greek mythology;
Shakespeare; poetry; photography; oil painting; origami; knitting; gardening in a small space; camping; hiking in mountains;
sailing; swimming; basketball; football; the Olympic Games; tea; coffee; chocolate; cheese; spices; honey; the sun; stars;
comets; the solar system; oxygen; carbon; water; salt; gold; iron; glass; plastic; cotton; wood; earthquakes; tornadoes;
rainbows; clouds; snow; seasons; tides; rivers; lakes; islands; maps; calendars; clocks; money; banks; taxes; insurance;
elections; democracy; human rights; schools; libraries; museums; newspapers; television; radio; films; video games; toys;
birthdays; weddings; holidays; travelling by train; packing a suitcase; airports; hotels; fractions; prime numbers;
the Pythagorean theorem; probability; statistics; logic; the scientific method; microscopes; telescopes; magnets;
electricity; batteries; light bulbs; sound; memory; dreams; emotions; empathy; leadership; teamwork; negotiation; honesty"""
_HEROES = """a lonely lighthouse keeper; a curious robot; a young baker; two rival gardeners; a lost dog; an old clockmaker;
a girl who talks to birds; a retired pirate; a shy dragon; a night train conductor; a forgetful wizard; a brave mouse;
a painter who lost her colours; twins in a desert town; a fisherman and a whale; a librarian with a secret; a small cloud;
a snail who wants to race; a boy with a paper boat; an astronaut on her last flight; a talking tree; a tired superhero;
a detective who is afraid of the dark; a princess who builds bridges; a cat in a bookshop; a street musician"""
_PROGRAMS = """reverses a string; checks whether a word is a palindrome; counts the vowels in a text; computes a factorial;
prints the Fibonacci numbers; sorts a list of numbers; finds the largest number in a list; removes duplicates from a list;
converts Celsius to Fahrenheit; computes the average of a list; checks whether a number is prime; merges two dictionaries;
reads a CSV file; counts words in a file; generates a random password; flattens a nested list; validates an email address;
computes the area of a circle; finds the second largest number; rotates a list; groups words by their first letter;
computes the greatest common divisor; converts a number to binary; implements a stack; implements a queue; a binary search;
sends an HTTP request; formats a date; draws a triangle of stars; simulates a dice roll; a simple calculator; a to-do list;
checks whether a year is a leap year; capitalises every word; finds common elements of two lists; transposes a matrix"""
_THINGS = """breakfast ideas; books for children; ways to save energy; European capitals; fruits; healthy snacks; board games;
musical instruments; programming languages; inventions; types of clouds; safety rules for a laboratory; questions for a job
interview; things to pack for the beach; indoor plants; exercises without equipment; names for a cat; gifts for a teacher;
reasons to learn history; tips for better sleep; vegetables; planets; famous scientists; ice cream flavours; dog breeds;
ways to say thank you; steps to bake a cake; rules of football; jobs in a hospital; animals of the forest; metals; sports"""

TOPICS, HEROES, PROGRAMS, THINGS = (
    tuple(" ".join(part.split()) for part in text.split(";")) for text in (_TOPICS, _HEROES, _PROGRAMS, _THINGS)
)

_LENGTHS = ("", "", " Answer in one sentence.", " Keep it short.", " Use two paragraphs.", " Give an example.",
            " Answer in about 100 words.", " Be friendly.", " Use simple words.")  # fmt: skip
_QUESTIONS = (
    "What is interesting about {}?", "Can you explain {} to a child?", "Tell me about {}.", "Why does {} matter?",
    "I know nothing about {}. Where should I start?", "What are common mistakes people make with {}?",
    "Give me some advice about {}.", "What is the history of {}?", "What are the advantages and disadvantages of {}?",
    "How would you describe {} in your own words?", "What should everyone know about {}?", "How has {} changed over time?",
    "I have to give a talk on {}. How should I begin?", "Is {} difficult to understand?", "What do people think of {}?",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Instruction:
    kind: InstructionKind
    text: str
    # earlier turns as (role, text), the user's first; empty except for second turns
    history: tuple[tuple[str, str], ...] = ()


def instruction(seed: int, kind: InstructionKind | None = None) -> Instruction:
    rng = np.random.default_rng((seed, 34))
    kind = kind or pick(rng, INSTRUCTION_KINDS + ("chat", "chat", "story"))
    if kind == "second_turn":
        return _second_turn(rng)
    return Instruction(kind, _MAKERS[kind](rng))


def _chat(rng: np.random.Generator) -> str:
    return pick(rng, _QUESTIONS).format(pick(rng, TOPICS)) + pick(rng, _LENGTHS)


def _story(rng: np.random.Generator) -> str:
    form = ("Write a short story about {}.", "Tell me a bedtime story about {}.", "Write a poem about {}.",
            "Write the opening of a novel about {}.", "Write a funny story about {} and {}.",
            "Write a dialogue between {} and {}.", "Invent a legend about {}.", "Describe a day of {}.")  # fmt: skip
    chosen = [HEROES[i] for i in rng.permutation(len(HEROES))[:2]]
    if rng.random() < 0.5:
        chosen[0] = f"{person(rng)}, {chosen[0]}"
    if rng.random() < 0.3:
        chosen[1] = f"someone who knows everything about {pick(rng, TOPICS)}"
    text = pick(rng, form).format(*chosen)
    return text + pick(rng, ("", "", " It takes place in winter.", " Give it a happy ending.", " Use short sentences."))


def _code(rng: np.random.Generator) -> str:
    form = ("Write a Python function that {}.", "Write a Python program: {}.", "Show me Python code that {}.",
            "How do I write JavaScript code that {}?", "Write a Python function that {} and explain it.",
            "Write a C function that {}.", "Write a unit test for a Python function that {}.")  # fmt: skip
    return pick(rng, form).format(pick(rng, PROGRAMS)) + pick(rng, ("", "", " Add comments.", " Show how to use it."))


def _summary(rng: np.random.Generator) -> str:
    form = ("Summarize the following text in one sentence:\n\n{}", "Give a short summary of this article.\n\n{}",
            "{}\n\nSummarize this.", "What are the main points of this text?\n\n{}", "Write a headline:\n\n{}")  # fmt: skip
    return pick(rng, form).format(news(rng, int(rng.integers(4, 9))))


def _rewriting(rng: np.random.Generator) -> str:
    form = ("Rewrite the following text in a formal tone:\n\n{}", "Correct the spelling and grammar:\n\n{}",
            "Make this text friendlier:\n\n{}", "Rewrite this in simple words:\n\n{}", "Rephrase this text:\n\n{}",
            "Rewrite this in the future tense:\n\n{}", "Repeat this, but replace every name:\n\n{}")  # fmt: skip
    return pick(rng, form).format(letter(rng) if rng.random() < 0.6 else news(rng, int(rng.integers(3, 6))))


def _editing(rng: np.random.Generator) -> str:
    form = ("Add type hints to this function:\n\n{}", "Add a docstring to this code:\n\n{}", "Make this code shorter:\n\n{}",
            "Add comments to this code:\n\n{}", "Rename the variables of this code so that they are clearer:\n\n{}",
            "Find bugs in this code and fix them:\n\n{}", "Handle empty input in this code:\n\n{}")  # fmt: skip
    return pick(rng, form).format(f"```python\n{function(rng)}\n```")


def _lists(rng: np.random.Generator) -> str:
    form = ("List {n} {}.", "Give me {n} {}.", "Make a numbered list of {n} {}.", "Name {n} {} and explain each.",
            "Write a bulleted list of {n} {} with one sentence each.", "Make a table of {n} {}.")  # fmt: skip
    things = pick(rng, THINGS) if rng.random() < 0.6 else f"facts about {pick(rng, TOPICS)}"
    return pick(rng, form).format(things, n=int(rng.integers(3, 11)))


def _extraction(rng: np.random.Generator) -> str:
    form = ("Extract the names, dates and places from this text as JSON:\n\n{}",
            "Turn the following into a JSON object:\n\n{}", "Which facts are in this text? Answer with JSON.\n\n{}",
            "{}\n\nList the person, the city and the amount as key: value lines.",
            "Find all numbers in this text and say what they mean:\n\n{}")  # fmt: skip
    text = record(rng) if rng.random() < 0.7 else " ".join(record(rng) for _ in range(2))
    return pick(rng, form).format(text)


def _second_turn(rng: np.random.Generator) -> Instruction:
    form = ("Now make it shorter.", "Can you say that again in simple words?", "Turn this into a list of points.",
            "Write it as an email.", "Which part is the most important?", "Repeat it, but change the city to Rome.",
            "Thank you. What else should I know?", "Make it more cheerful.", "Give me a title for it.")  # fmt: skip
    if rng.random() < 0.25:
        first, reply = _code(rng), f"Here is an example:\n\n```python\n{function(rng)}\n```"
        text = pick(rng, ("Add comments to it.", "Add type hints.", "Explain how it works.", "Rename the variables."))
    else:
        first, reply = pick(rng, ("Write a short news item.", "Write something about my town.")), news(rng, 5)
        text = pick(rng, form)
    return Instruction("second_turn", text, (("user", first), ("assistant", reply)))


_MAKERS = {
    "chat": _chat,
    "story": _story,
    "code": _code,
    "summary": _summary,
    "rewriting": _rewriting,
    "editing": _editing,
    "lists": _lists,
    "extraction": _extraction,
}
