"""Data for the guides, from what ships with Forerun: `python make_data.py reviews|chats|forms|documents FILE [ROWS]`.

- `reviews`: a CSV of sentences of film reviews, positive or negative (CC BY 4.0, data/embedded/ATTRIBUTION.md).
- `chats`: JSON lines of short chats about hours, minutes and days, made here.
- `forms`: the same questions, answered with the unit first.
- `documents`: JSON lines of pairs: the beginning of a paragraph of a State of the Union address, and its rest.
"""

import csv
import json
import random
import sys
from collections.abc import Callable
from pathlib import Path

from forerun.data.language_text import open_text
from forerun.data.text_polarity import embedded

UNITS = {"hour": ("minutes", 60), "day": ("hours", 24), "week": ("days", 7), "minute": ("seconds", 60)}
QUESTIONS = ("How many {small} are {n} {big}s?", "What is {n} {big}s in {small}?", "Give me {n} {big}s as {small}.")


def reviews(path: Path, rows: int) -> None:
    """Text and label."""
    chance = random.Random(0)
    sentences = [row for row in embedded() if row.source == "sentence_polarity"]
    with path.open("w", encoding="utf-8", newline="") as file:
        table = csv.writer(file)
        table.writerow(["review", "sentiment"])
        table.writerows(
            [row.text, "positive" if row.is_positive else "negative"] for row in chance.sample(sentences, rows)
        )


def fact(chance: random.Random) -> tuple[int, str, str, int]:
    """A number of units, and what they are in smaller ones."""
    big = chance.choice(list(UNITS))
    small, factor = UNITS[big]
    n = chance.randint(2, 12)
    return n, big, small, n * factor


def chats(path: Path, rows: int) -> None:
    """A question and a short answer."""
    _write_chats(path, rows, 1, lambda small, result: f"{result} {small}.")


def forms(path: Path, rows: int) -> None:
    """A question and its answer, the unit first."""
    _write_chats(path, rows, 2, lambda small, result: f"{small} {result}.")


def _write_chats(path: Path, rows: int, seed: int, answer: Callable[[str, int], str]) -> None:
    chance = random.Random(seed)
    with path.open("w", encoding="utf-8") as file:
        for _ in range(rows):
            n, big, small, result = fact(chance)
            question = chance.choice(QUESTIONS).format(n=n, big=big, small=small)
            turns = [("user", question), ("assistant", answer(small, result))]
            file.write(json.dumps({"messages": [{"role": role, "content": content} for role, content in turns]}) + "\n")


def documents(path: Path, rows: int) -> None:
    """The first sentence of a paragraph, and the rest of it."""
    chance = random.Random(3)
    pairs = []
    for document in [document for split in open_text(None).documents.values() for document in split]:
        for paragraph in document.split("\n"):
            first, _, rest = paragraph.strip().partition(". ")
            if 40 <= len(first) <= 300 and 80 <= len(rest) <= 1500:
                pairs.append({"anchor": f"{first}.", "positive": rest})
    chance.shuffle(pairs)
    with path.open("w", encoding="utf-8") as file:
        file.writelines(json.dumps(pair) + "\n" for pair in pairs[:rows])


if __name__ == "__main__":
    kind, name = sys.argv[1], Path(sys.argv[2])
    count = int(sys.argv[3]) if len(sys.argv) > 3 else 2000
    {"reviews": reviews, "chats": chats, "forms": forms, "documents": documents}[kind](name, count)
