"""ROUGE-L: how much of a reference's words an answer has, in their order; from 0 to 1.

The F1 of the longest common subsequence of words: with L its length, 2L / (words of the answer + words of the
reference), which is the measure of Lin 2004 with β = 1. Words are runs of letters and digits of any script, without
regard to case; nothing is stemmed (rouge-score keeps only a to z and 0 to 9, and so sees no other script).

Source: Lin 2004, "ROUGE: A Package for Automatic Evaluation of Summaries", section 3.1 (ACL W04-1013).
Not covered: ROUGE-Lsum, which takes sentences one by one; several references.
"""

import re
from collections.abc import Sequence

WORD = re.compile(r"\w+")


def rouge_l(answer: str, reference: str) -> float:
    """F1 of the longest common subsequence of words; 1 where neither has any."""
    one, other = (WORD.findall(text.lower()) for text in (answer, reference))
    if not one or not other:
        return float(one == other)
    return 2 * common_length(one, other) / (len(one) + len(other))


def common_length(one: Sequence[str], other: Sequence[str]) -> int:
    """Length of the longest common subsequence; time is the product of the lengths, memory the second's."""
    row = [0] * (len(other) + 1)
    for word in one:
        diagonal = 0
        for place, match in enumerate(other, start=1):
            above = row[place]
            row[place] = diagonal + 1 if word == match else max(above, row[place - 1])
            diagonal = above
    return row[-1]
