"""Small data sets and settings for each generic workload; `write_set(folder, kind)` returns settings that train on it."""

import csv
import json
import random
import tempfile
from pathlib import Path

import torch

from forerun.models.build import build_model, config_of
from forerun.own.tokens import learned_tokenizer
from forerun.settings.load import settings_from

GOOD, BAD = ["good", "great", "fine", "lovely", "nice", "superb"], ["bad", "awful", "poor", "dull", "weak", "sad"]
FILL = ["the", "film", "was", "a", "story", "of", "people", "in", "town", "with", "music", "and", "rain"]
NUMBER = {"type": "object", "properties": {"number": {"type": "integer"}}, "required": ["number"]}
FORGETS = (
    "{% for m in messages %}<{{ m.role }}>\n{% if m.role == 'assistant' and loop.last %}<think>\n{{ m.reasoning_content }}"
    "\n</think>\n{% endif %}{{ m.content }}</s>\n{% endfor %}{% if add_generation_prompt %}<assistant>\n{% endif %}"
)
"""A template that drops the reasoning of all answers but the last, as Qwen3's does."""
ROWS = 240
SMALL = {
    "optimizer": {"learning_rate": 3e-3, "max_gradient_norm": 1.0},
    "batch": {"micro_batch_size": 8, "gradient_accumulation_steps": 2, "sequence_length": 48, "padding": "bucketed"},
    "schedule": {"epochs": 2, "warmup_steps": 4}, "checkpoints": {"every_steps": 5, "keep_last": 2}, "seed": 3,
    "precision": "fp32",
}  # fmt: skip


def sentence(chance, word):
    """Random words with `word` among them."""
    words = [chance.choice(FILL) for _ in range(chance.randint(4, 18))]
    words.insert(chance.randrange(len(words)), word)
    return " ".join(words)


def labelled(chance):
    """A text whose one telling word decides the label."""
    is_good = chance.random() < 0.5
    text = sentence(chance, chance.choice(GOOD if is_good else BAD))
    return {"text": text, "label": "pos" if is_good else "neg"}


def several(chance):
    """A text of any of three topics."""
    topics = [topic for topic in ("rain", "sun", "snow") if chance.random() < 0.5]
    return {"text": f"{' '.join(chance.choices(['we', 'go', 'out', 'today', 'and', 'then', 'home'], k=6))} {' '.join(topics)}",
            "label": topics}  # fmt: skip


def number(chance):
    """A text that says `much` as often as its number tells."""
    much = chance.randint(0, 6)
    words = ["much"] * much + chance.choices(FILL, k=8)
    chance.shuffle(words)
    return {"text": " ".join(words), "label": 100.0 + 10.0 * much}


def pair(chance):
    """Two texts that end in the same word, or do not."""
    first, second = chance.choice(GOOD), chance.choice(GOOD)
    return {"text": sentence(chance, first), "pair": sentence(chance, second), "label": str(first == second)}


def text(chance):
    """A sentence of a small grammar."""
    return {"text": " and ".join(f"the {a} {b}" for a, b in (chance.choice([("dog", "barks"), ("cat", "sleeps"),
            ("bird", "sings"), ("fish", "swims")]) for _ in range(chance.randint(2, 6)))) + "."}  # fmt: skip


def chat(chance):
    """Two questions with short answers, after a system message."""
    turns = [{"role": "system", "content": "be brief"}]
    for _ in range(2):
        a = chance.randint(0, 4)
        turns += [{"role": "user", "content": f"after {a}?"}, {"role": "assistant", "content": f"{a + 1}"}]
    return {"messages": turns}


def calls(chance):
    """A question, a call of one of two tools, its result and the answer; once again."""
    turns = []
    for _ in range(2):
        tool, number = chance.choice(["after", "before"]), chance.randint(1, 4)
        result = number + 1 if tool == "after" else number - 1
        call = {"type": "function", "function": {"name": tool, "arguments": {"number": number}}}
        turns += [
            {"role": "user", "content": f"{tool} {number}?"}, {"role": "assistant", "content": "", "tool_calls": [call]},
            {"role": "tool", "content": f"{result}"}, {"role": "assistant", "content": f"it is {result}"},
        ]  # fmt: skip
    return {"messages": turns, "tools": [{"type": "function", "function": {"name": name, "parameters": NUMBER}}
                                         for name in ("after", "before")]}  # fmt: skip


def thinking(chance):
    """Two questions, whose answers have reasoning before them."""
    turns = []
    for _ in range(2):
        a = chance.randint(0, 4)
        answer = {"role": "assistant", "content": f"{a + 1}", "reasoning_content": f"{a} then {a + 1}"}
        turns += [{"role": "user", "content": f"after {a}?"}, answer]
    return {"messages": turns}


def completion(chance):
    """A prompt as plain text, and how it goes on."""
    a = chance.randint(0, 4)
    return {"prompt": f"after {a}", "completion": f" comes {a + 1}, then {a + 2}."}


def tagged(chance):
    """Names are two words after `mr`, and all others are O."""
    words, tags = [], []
    for _ in range(chance.randint(2, 4)):
        words += [chance.choice(FILL), "mr", chance.choice(GOOD), chance.choice(BAD)]
        tags += ["O", "O", "B-NAME", "I-NAME"]
    return {"words": words, "tags": tags}


def placed(chance):
    """The same names as places in a text."""
    words, tags = tagged(chance).values()
    starts = [len(" ".join(words[:n])) + bool(n) for n in range(len(words))]
    places = [n for n, tag in enumerate(tags) if tag == "B-NAME"]
    return {"text": " ".join(words), "label": [[starts[n], starts[n + 1] + len(words[n + 1]), "NAME"] for n in places]}


def translation(chance):
    """Words to write in capitals."""
    words = chance.choices(["ab", "ba", "cd", "dc", "ef"], k=chance.randint(1, 4))
    return {"source": " ".join(words), "target": " ".join(word.upper() for word in words)}


def near(chance):
    """Two texts on one thing."""
    thing = f"{chance.choice(GOOD)} {chance.choice(BAD)}"
    return {"anchor": sentence(chance, thing), "positive": sentence(chance, thing)}


def triplet(chance):
    """Two texts on one thing, and one on another."""
    return {**near(chance), "negative": sentence(chance, chance.choice(FILL))}


def preference(chance):
    """The kind answer is preferred."""
    return {"prompt": f"how is the {chance.choice(FILL)}?", "chosen": f"it is {chance.choice(GOOD)}",
            "rejected": f"it is {chance.choice(BAD)}"}  # fmt: skip


def judged(chance):
    """Kind answers are desirable, the others are not."""
    is_kind = chance.random() < 0.6
    return {"prompt": f"how is the {chance.choice(FILL)} of {chance.randint(1, 99)}?",
            "completion": f"it is {chance.choice(GOOD if is_kind else BAD)}", "label": is_kind}  # fmt: skip


SETS = {
    "one": (labelled, "sequence-classification", "tiny-bert"),
    "several": (several, "sequence-classification", "tiny-bert"),
    "number": (number, "sequence-classification", "tiny-bert"),
    "pair": (pair, "sequence-classification", "tiny-bert"),
    "text": (text, "causal-lm", "tiny-gpt2"),
    "packed": (text, "causal-lm", "tiny-llama"),
    "chat": (chat, "causal-lm", "tiny-llama"),
    "tools": (calls, "causal-lm", "tiny-llama"),
    "forgets": (thinking, "causal-lm", "tiny-llama"),
    "completion": (completion, "causal-lm", "tiny-llama"),
    "tags": (tagged, "token-classification", "tiny-bert"),
    "spans": (placed, "token-classification", "tiny-bert"),
    "masked": (text, "masked-lm", "tiny-bert"),
    "translation": (translation, "seq2seq-lm", "tiny-t5"),
    "pairs": (near, "embedding", "tiny-bert"),
    "triplets": (triplet, "embedding", "tiny-bert"),
    "preference": (preference, "preference", "tiny-llama"),
    "kto": (judged, "preference", "tiny-llama"),
}
"""Kind → rows, workload, model."""


LONG = {"tools": 320, "forgets": 64}
"""Kind → tokens of its rows, where they are more than those of the others."""


def forgetting_model(folder, rows):
    """A folder with a small model of random weights and a tokenizer whose template is `FORGETS`, written once."""
    to = folder / "model"
    if not to.exists():
        plain = settings_from({"workload": "causal-lm", "name": "forgets", "model": {"name": "tiny-llama"}})
        tokenizer = learned_tokenizer(plain, (json.dumps(row) for row in rows))
        tokenizer.chat_template = FORGETS
        partial = Path(tempfile.mkdtemp(dir=folder))
        tokenizer.save_pretrained(partial)
        torch.manual_seed(0)
        build_model(config_of(plain), "causal-lm").save_pretrained(partial)
        partial.rename(to)
    return to


def write_set(folder, kind, rows=ROWS, **sections):
    """Write the rows of `kind` into `folder`; returns settings that train on them, with `sections` in place of theirs."""
    make, workload, model = SETS[kind]
    chance = random.Random(kind)
    content = [make(chance) for _ in range(rows)]
    folder.mkdir(parents=True, exist_ok=True)
    if kind == "one":
        path = folder / "rows.csv"
        with path.open("w", newline="") as file:
            writer = csv.DictWriter(file, content[0])
            writer.writeheader()
            writer.writerows(content)
    else:
        path = folder / "rows.jsonl"
        path.write_text("".join(json.dumps(row) + "\n" for row in content))
    if kind == "packed" and "batch" not in sections:
        sections["batch"] = {**SMALL["batch"], "padding": "packed", "micro_batch_size": 4}
    if kind in LONG:
        sections["batch"] = {**SMALL["batch"], **sections.get("batch", {}), "sequence_length": LONG[kind]}
    model = str(forgetting_model(folder, content)) if kind == "forgets" else model
    if kind == "kto":
        sections["preference"] = {"loss": "kto", **sections.get("preference", {})}
    own = {"name": kind, "workload": workload, "model": {"name": model}, **SMALL, **sections}
    labels = {"labels": kind} if kind in ("several", "number") else {}
    data = {"source": str(path), **labels, **own.get("data", {})}
    return settings_from({**own, "data": data})
