"""Properties of a model's answer: its code, whether it parses, and how similar it is to the reference.

Forms of answers: `parses` and, of the rest, `truncated` (generation stopped at the limit of tokens), `empty`, and
`not code`.

BLEU and chrF are those of sacrebleu over the corpus (Post 2018), whose signatures are kept beside them; means of
sentence scores are another quantity.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, get_args

from sacrebleu.metrics.bleu import BLEU
from sacrebleu.metrics.chrf import CHRF

from forerun.recipes.code_lora.data.python_code import parses

Form = Literal["parses", "truncated", "empty", "not code"]
FORMS: tuple[Form, ...] = get_args(Form)


def defines(code: str, name: str) -> bool:
    """Whether a function or class of that name is defined at the outermost level."""
    return re.search(rf"^(?:async\s+)?(?:def|class)\s+{re.escape(name)}\b", code, re.MULTILINE) is not None


def form_of(code: str, *, text: str, is_complete: bool) -> Form:
    """Form of the answer `text` that holds `code`; `is_complete` says that the model ended it itself."""
    if not text.strip() or not code.strip():
        return "empty"
    if parses(code):
        return "parses"
    return "not code" if is_complete else "truncated"


@dataclass(frozen=True)
class TextScores:
    """Similarity to references in percent, with sacrebleu's signatures."""

    bleu: float
    bleu_signature: str
    chrf: float
    chrf_signature: str


def text_scores(answers: Sequence[str], references: Sequence[str]) -> TextScores:
    """Corpus BLEU and chrF of code against one reference each."""
    bleu, chrf = BLEU(), CHRF()
    bleu_score = bleu.corpus_score(list(answers), [list(references)])
    chrf_score = chrf.corpus_score(list(answers), [list(references)])
    return TextScores(
        bleu_score.score, str(bleu.get_signature()), chrf_score.score, str(chrf.get_signature())
    )  # fmt: skip
