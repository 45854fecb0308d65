"""What is in a text: which script and language, code, an e-mail address, a secret? By simple signs, stated as such.

A language is that of the most frequent of a few stop words; code is told by its punctuation and key words; a secret by
the published forms of tokens. Nothing that is matched is ever returned: only that it is there.
"""

import re
from collections.abc import Iterable
from typing import Literal

_WORDS = {
    "English": "the of and to in is that it for was with this are not you have what how",
    "German": "der die und das ist nicht ein zu mit den auch es sich auf ich von",
    "French": "le la les et des est que une pas pour dans vous qui sur je au",
    "Spanish": "el los que y las por para con una se del lo como pero su es",
    "Italian": "il che di non per una sono con gli si del come ma anche lo",
    "Portuguese": "o que não uma para com os em da um se mais por mas você",
    "Dutch": "de het een en van dat niet op te zijn met voor ik je maar",
}
STOP_WORDS = {name: frozenset(words.split()) for name, words in _WORDS.items()}
SCRIPTS: dict[str, tuple[tuple[int, int], ...]] = {
    "Cyrillic": ((0x400, 0x52F),), "Greek": ((0x370, 0x3FF),), "Arabic": ((0x600, 0x6FF),), "Hebrew": ((0x590, 0x5FF),),
    "Devanagari": ((0x900, 0x97F),), "Thai": ((0xE00, 0xE7F),), "Japanese": ((0x3040, 0x30FF),),
    "Korean": ((0xAC00, 0xD7AF), (0x1100, 0x11FF)), "Chinese": ((0x4E00, 0x9FFF),),
}  # fmt: skip
LOOKED_AT = 2000
"""Characters of a text that its language is told by."""
CODE = re.compile(
    r"^\s*(def |class |import |from \S+ import |#include|public |private |function |const |let |var |package |using )"
    r"|[;{}]\s*$|\)\s*:\s*$|^\s*(return\b|if\b.*[:{]$|for\b.*[:{]$|@\w+$)",
    re.MULTILINE,
)
EMAIL = re.compile(r"[\w.+-]+@[\w-]+\.[\w.-]*\w")
SECRET = re.compile(
    r"\bAKIA[0-9A-Z]{16}\b|\bgh[pousr]_[A-Za-z0-9]{36}|\bgithub_pat_\w{22,}|\bglpat-[\w-]{20}|\bsk-(?:[\w-]+-)?[A-Za-z0-9]{20,}"
    r"|\bhf_[A-Za-z0-9]{34}\b|\bxox[abprs]-[\w-]{10,}|\bAIza[\w-]{35}|\b[rs]k_live_[A-Za-z0-9]{20,}"
    r"|-----BEGIN (?:[A-Z]+ )?PRIVATE KEY-----|\beyJ[\w-]{10,}\.eyJ[\w-]{10,}\.[\w-]{10,}"
)
"""Keys and tokens as AWS, GitHub, GitLab, OpenAI and others, Hugging Face, Slack, Google and Stripe form them, private
keys in PEM, and signed web tokens."""
FIRST_LETTERS = ("AKIA", "gh", "glpat-", "sk", "rk_", "hf_", "xox", "AIza", "-----BEGIN", "eyJ")
Sign = Literal["email", "secret"]
Markup = Literal["html", "turns"]
HTML = re.compile(
    r"</?(?:p|div|br|span|a|ul|ol|li|table|td|tr|h[1-6]|strong|em|img)\b[^<>]{0,300}>|&(?:nbsp|amp|quot|lt|gt);", re.I
)
TURNS = re.compile(
    r"<\|(?:im_start|start_header_id|user|assistant)\|>|\[/INST\]|<start_of_turn>"
    r"|### ?(?:Human|User|Instruction|Assistant|Response):|^(?:Human|User|Assistant): "
    r"|^\[?\d{1,4}[./-]\d{1,2}[./-]\d{2,4},? \d{1,2}:\d\d[^\n:]{0,12}(?::\d\d)?\]? [^\n:]{1,40}: ",
    re.MULTILINE,
)
"""Where somebody speaks in a text: marks of chat templates and of instructions, and lines of messengers' exports."""


def language_of(text: str) -> str:
    """A language, a script, `code`, or `not told`."""
    head = text[:LOOKED_AT]
    lines = [line for line in head.splitlines() if line.strip()]
    if lines and len(CODE.findall(head)) >= max(2, 0.3 * len(lines)):
        return "code"
    letters = [letter for letter in head if letter.isalpha()]
    if not letters:
        return "not told"
    foreign = [ord(letter) for letter in letters if ord(letter) >= 0x370]
    if len(foreign) > 0.3 * len(letters):
        counts = {name: sum(any(a <= c <= b for a, b in ranges) for c in foreign) for name, ranges in SCRIPTS.items()}
        if counts["Japanese"] > 0.1 * len(foreign):
            return "Japanese"
        best = max(counts, key=lambda name: counts[name])
        return best if counts[best] > 0 else "not told"
    words = head.lower().split()
    hits = {name: sum(word in of_language for word in words) for name, of_language in STOP_WORDS.items()}
    best = max(hits, key=lambda name: hits[name])
    return best if hits[best] >= max(1, 0.05 * len(words)) else "not told"


def markup_in(texts: Iterable[str]) -> dict[Markup, int]:
    """How many texts hold tags of HTML, and how many the turns of a chat written as text."""
    counts: dict[Markup, int] = {"html": 0, "turns": 0}
    for text in texts:
        head = text[:LOOKED_AT]
        counts["html"] += HTML.search(head) is not None
        counts["turns"] += TURNS.search(head) is not None
    return counts


def signs_in(text: str) -> set[Sign]:
    """Whether an e-mail address or the form of a secret occurs."""
    signs: set[Sign] = set()
    if "@" in text and EMAIL.search(text):
        signs.add("email")
    if any(letters in text for letters in FIRST_LETTERS) and SECRET.search(text):
        signs.add("secret")
    return signs
