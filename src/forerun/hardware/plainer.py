"""What is left of a card's name without what people type around it?

Input: "ASUS TUF Gaming RTX 4070 Ti Super OC", "dual 3090", "two 4080s", "h 100". Output: the plainer texts that it can
mean ("rtx 4070 ti super", "2x 3090", …), several where a letter has two readings. A word that is neither listed in
`aliases.toml` nor part of a name stays, so that a card without a row ("7900 GRE") is still refused.
"""

import re
from collections.abc import Mapping

NUMBERS = {"dual": 2, "twin": 2, "two": 2, "zwei": 2, "three": 3, "drei": 3, "four": 4, "quad": 4, "vier": 4} | {
    "six": 6, "eight": 8, "acht": 8,
}  # fmt: skip
"""Words for how many cards there are."""
FANS = re.compile(r"(?<=[a-z\d] )(?:[23]x|x[23])\b")
"""How many fans a maker's series has ("Ventus 2X", "X3"), which is no number of cards."""
WRITTEN_APART = re.compile(r"\b([abhlptv]) (?=\d{1,3}(?!\d))")
"""A letter and the number behind it: "h 100", but not "a 3090"."""
BRIEF_SUPER = re.compile(r"\b((?:rtx|gtx)? ?\d{4}) ?(s ?ti|ti ?s|s)\b")
"""The S of "4070S", "4070TiS" and the "4070S Ti" of one marketplace: Super, or a plural."""
PLURAL = re.compile(r"(?<=\d)s$")


def singular(text: str) -> str:
    """The text without a plural's s, where its other letters are capitals ("8x V100s"); else as it is."""
    return PLURAL.sub("", text) if text[:-1] == text[:-1].upper().replace("X ", "x ") else text


def plainer(text: str, unsaid: Mapping[str, str]) -> list[list[str]]:
    """Groups of texts that `text` can mean without words of `unsaid` (lists of words by kind), the likeliest first.

    They are in lower case, and none is the text itself. All texts of one group are meant alike.
    """
    plain = re.sub(r"[^\x00-\x7f]|[(),;!?®™]", " ", text.lower().replace("_", " ").replace("×", "x"))
    plain = re.sub(r"(?<=\d)ti ?super", " ti super", plain)
    plain = re.sub(r"max-?q\b", "max-q", re.sub(r"colab[ -](?:pro\+?|plus|free)", "colab", plain))
    plain = WRITTEN_APART.sub(r"\1", re.sub(r"\bpci\b", "pcie", " ".join(plain.split())))
    words = plain.split()
    if set(words) & set(unsaid["makers"].split()):
        words = FANS.sub("", " ".join(word for word in words if word not in NUMBERS)).split()
    left_out = set(" ".join(unsaid.values()).split())
    rest = " ".join(f"{NUMBERS[word]}x" if word in NUMBERS else word for word in words if word not in left_out)
    brief, plural = BRIEF_SUPER.sub(_super, rest), PLURAL.sub("", rest)
    groups = [[brief, plural]] if re.search(r"\d ?x ?\S", rest) else [[brief], [plural]]
    return [[reading for reading in group if reading != text.lower()] for group in groups]


def _super(match: re.Match[str]) -> str:
    return f"{match[1]} {'ti super' if 'ti' in match[2] else 'super'}"
