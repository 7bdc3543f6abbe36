"""Procedural passages for text requests: news items, records, letters and functions; pure functions of a generator."""

from __future__ import annotations

import numpy as np

from mmspec.zoo.world.scene import pick

_FIRST = """Anna Boris Carla David Elena Felix Grace Henry Irene Jonas Karim Laura Marco Nadia Oscar Paula Quentin Rosa Samir
Teresa Ursula Victor Wanda Xavier Yara Zoe Amara Bruno Chen Dalia Emil Farah Goran Hana Igor Julia""".split()
_LAST = """Adler Bauer Costa Dubois Eriksen Fischer Garcia Haddad Ivanov Jansen Keller Lopez Meyer Novak Okafor Petrov Quinn
Rossi Silva Tanaka Ueda Vargas Weber Yilmaz Zhang Brandt Moreau Lindqvist""".split()
_CITIES = """Lisbon Oslo Vienna Porto Riga Dublin Lyon Bergen Krakow Seville Utrecht Ghent Turin Graz Malmo Bristol Leipzig
Valencia Toulouse Tampere Nairobi Kyoto Hanoi Quito Denver Perth Halifax""".split()
_PLACES = (
    "library", "market hall", "train station", "botanical garden", "city museum", "old harbour", "public pool",
    "community kitchen", "primary school", "concert hall", "bicycle workshop", "town archive", "sports ground", "bakery",
)  # fmt: skip
_EVENTS = (
    "reopened after two years of repairs", "will host a weekend festival", "closed for the winter",
    "received a grant for new equipment", "moved to a larger building", "started a course for beginners",
    "extended its opening hours", "introduced a quiet hour every morning", "hired three new members of staff",
    "was damaged by a storm", "celebrated its fiftieth anniversary", "began a project with local farmers",
)  # fmt: skip
_DETAILS = (
    "Entry is free for children under twelve.", "Visitors should bring their own bags.",
    "The roof was replaced and the heating is new.", "Volunteers planted more than two hundred trees.",
    "A small cafe serves soup, bread and coffee.", "Parking is limited, so guests are asked to come by bus.",
    "The work cost less than expected.", "Neighbours had asked for this change for years.",
    "Tickets can be bought online or at the door.", "The organisers expect a large crowd.",
    "Some residents worry about noise in the evening.", "A second stage is planned for next spring.",
    "Local schools took part in the planning.", "The old furniture was given to charity.",
)  # fmt: skip
_MONTHS = """January February March April May June July August September October November December""".split()
_GOODS = """notebook lamp backpack kettle umbrella keyboard chair blanket bicycle camera speaker bottle jacket drill
toaster desk""".split()
_ROLES = ("engineer", "nurse", "teacher", "accountant", "designer", "cook", "driver", "librarian", "plumber", "editor")


def person(rng: np.random.Generator) -> str:
    return f"{pick(rng, _FIRST)} {pick(rng, _LAST)}"


def date(rng: np.random.Generator) -> str:
    return f"{pick(rng, _MONTHS)} {int(rng.integers(1, 29))}"


def news(rng: np.random.Generator, sentences: int = 4) -> str:
    """Return a local news item of `sentences` sentences, at least two."""
    city, place = pick(rng, _CITIES), pick(rng, _PLACES)
    details = [_DETAILS[i] for i in rng.permutation(len(_DETAILS))[: max(sentences - 2, 0)]]
    words = pick(rng, ("We are very happy", "It was hard work", "This is a good day", "We hope many people come"))
    speaker = f'"{words}," said {person(rng)}, who has been in charge since {int(rng.integers(1995, 2024))}.'
    return " ".join([f"The {place} in {city} {pick(rng, _EVENTS)} on {date(rng)}.", *details, speaker])


def letter(rng: np.random.Generator) -> str:
    name, other = pick(rng, _FIRST), pick(rng, _FIRST)
    middle = (
        f"i wanted to ask about the {pick(rng, _GOODS)} i ordered on {date(rng)}. it still did not arrive and nobody "
        f"answers the phone. can you please check what happened and tell me when it will come?",
        f"sorry but i cant make it to the meeting on {date(rng)}, my train from {pick(rng, _CITIES)} is late. maybe we "
        f"can talk the day after? i will bring the numbers you wanted.",
        f"thanks for the nice weekend in {pick(rng, _CITIES)}. the kids loved the {pick(rng, _PLACES)} and they keep "
        f"talking about it. next time you have to come to us and stay a bit longer.",
        f"we looked at your offer for {int(rng.integers(3, 60))} {pick(rng, _GOODS)}s and the price is a bit too high "
        f"for us. if you can go down by ten percent we would sign this week.",
    )
    return f"hi {name}, {pick(rng, middle)} best, {other}"


def record(rng: np.random.Generator) -> str:
    who, city, goods = person(rng), pick(rng, _CITIES), pick(rng, _GOODS)
    price, count = int(rng.integers(5, 900)), int(rng.integers(1, 12))
    mail = f"{who.split()[0].lower()}.{who.split()[1].lower()}@example.com"
    return pick(
        rng,
        (
            f"On {date(rng)}, {who} from {city} bought {count} {goods}s for {price} euros and paid by card. The order goes "
            f"to the {pick(rng, _PLACES)}; questions go to {mail}.",
            f"{who}, {int(rng.integers(19, 80))} years old, works as a {pick(rng, _ROLES)} in {city}. The phone number is "
            f"555-{int(rng.integers(1000, 9999))} and the email address is {mail}.",
            f"Invoice {int(rng.integers(1000, 9999))}: {count} x {goods} at {price} euros each, due on {date(rng)}, issued "
            f"to {who}, {int(rng.integers(1, 200))} Station Road, {city}.",
            f"The meeting with {who} and {person(rng)} takes place in {city} on {date(rng)} at {int(rng.integers(8, 18))}:30 "
            f"in the {pick(rng, _PLACES)}. The budget is {price} euros.",
        ),
    )


def function(rng: np.random.Generator) -> str:
    name, values = pick(rng, ("total", "result", "count", "score")), pick(rng, ("values", "items", "numbers", "rows"))
    limit = int(rng.integers(2, 50))
    return pick(
        rng,
        (
            f"def sum_above({values}):\n    {name} = 0\n    for x in {values}:\n        if x > {limit}:\n"
            f"            {name} = {name} + x\n    return {name}",
            f"def find_longest({values}):\n    best = ''\n    for word in {values}:\n        if len(word) > len(best):\n"
            f"            best = word\n    return best",
            f"def average({values}):\n    {name} = 0\n    for x in {values}:\n        {name} += x\n"
            f"    return {name} / len({values})",
            f"def count_words(text):\n    {name} = {{}}\n    for word in text.split():\n        if word not in {name}:\n"
            f"            {name}[word] = 0\n        {name}[word] += 1\n    return {name}",
            f"def read_lines(path):\n    f = open(path)\n    {values} = []\n    for line in f:\n"
            f"        {values}.append(line.strip())\n    f.close()\n    return {values}",
            f"class Account:\n    def __init__(self, owner):\n        self.owner = owner\n        self.balance = {limit}\n\n"
            f"    def deposit(self, amount):\n        self.balance += amount",
            "def is_prime(n):\n    for i in range(2, n):\n        if n % i == 0:\n            return False\n    return True",
            f"def reverse({values}):\n    {name} = []\n    for i in range(len({values}) - 1, -1, -1):\n"
            f"        {name}.append({values}[i])\n    return {name}",
            f"def merge(a, b):\n    {name} = {{}}\n    for key in a:\n        {name}[key] = a[key]\n    for key in b:\n"
            f"        {name}[key] = b[key]\n    return {name}",
            f"def discount(price, percent={limit}):\n    return price - price * percent / 100",
        ),
    )
