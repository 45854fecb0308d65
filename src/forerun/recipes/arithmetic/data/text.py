"""Arithmetic questions as text and as tokens: templates, forms of the answer, and a vocabulary of digits and words.

The prompt is an instruction around the expression, then a line that begins with `Answer:`; the output follows it. The
format is that of Goat's prompts; the wording here is our own. Three forms of the output:

    answer      579
    equation    123 + 456 = 579
    steps       as the equation, with the partial results of a long multiplication or division before it

An answer may be written backwards, units first, as an adder works (Lee et al. 2023, arXiv 2307.03381).

`DigitTokeniser` gives each digit, word and sign one id and drops spaces. `llama_tokens` counts what LLaMA's tokeniser
would make of a text where that tokeniser is not at hand.
"""

import re
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

from forerun.recipes.arithmetic.data.questions import SYMBOLS, ArithmeticQuestion, Operation

Form = Literal["answer", "equation", "steps"]
AnswerOrder = Literal["plain", "reversed"]
TEMPLATES = (
    "What is {x}?", "{x} =", "{x}", "Work out {x}.", "Find {x}.", "Please compute {x}.", "How much is {x}?",
    "Tell me what {x} is.", "Evaluate the expression {x}.", "Give the value of {x}.", "Can you solve {x}?",
    "I need the result of {x}.", "Do this sum in your head: {x}", "Calculate: {x}", "Fill in the blank: {x} = ?",
    "Which number equals {x}?", "Help me with my homework: {x}", "Solve {x} and reply with the result.",
    "What number do I get from {x}?", "Return the exact value of {x}.", "The result of {x} is what?",
    "My calculator is broken. What is {x}?", "Let us check {x} by hand.", "Without rounding, {x} makes how much?",
)  # fmt: skip
SPELLINGS: dict[Operation, tuple[str, ...]] = {
    "addition": ("{a} + {b}", "{a}+{b}", "{a} plus {b}", "the sum of {a} and {b}", "{a} added to {b}"),
    "subtraction": ("{a} - {b}", "{a}-{b}", "{a} minus {b}", "the difference of {a} and {b}"),
    "multiplication": ("{a} * {b}", "{a}*{b}", "{a} times {b}", "the product of {a} and {b}"),
    "division": ("{a} / {b}", "{a}/{b}", "{a} divided by {b}", "the quotient of {a} and {b}"),
}
LEAD = "Answer:"
LLAMA_ASSUMPTION = (
    "LLaMA's tokeniser is not here: its tokens are counted by rule, one per digit, one per sign, one for each eight "
    "letters of a word, one for a space before a number, and one each for the beginning and the end."
)
_PIECES = re.compile(r"\d|[A-Za-z]+|[^\sA-Za-z\d]")
_LLAMA_PIECES = re.compile(r"(?:^| )(?=\d)|\d|[A-Za-z]{1,8}|\n|[^\sA-Za-z\d]")
"""A space before a number; a digit; eight letters of a word, the space before it included; a line end; a sign."""
_LAST_NUMBER = {"plain": re.compile(r"-?\s*\d+\Z"), "reversed": re.compile(r"\d+\s*-?\Z")}


def prompt_of(question: ArithmeticQuestion, wording: int | None, width: int = 0) -> str:
    """Prompt of a question; `wording` picks template and spelling, None gives the bare expression and an equals sign.

    Operands get leading zeros up to `width` digits.
    """
    left, right = f"{question.left:0{width}d}", f"{question.right:0{width}d}"
    if wording is None:
        return f"{left} {SYMBOLS[question.operation]} {right} ="
    spellings = SPELLINGS[question.operation]
    spelled = spellings[wording // len(TEMPLATES) % len(spellings)].format(a=left, b=right)
    return f"{TEMPLATES[wording % len(TEMPLATES)].format(x=spelled)}\n{LEAD}"


def wordings(operation: Operation) -> int:
    """Number of wordings of an operation."""
    return len(TEMPLATES) * len(SPELLINGS[operation])


def output_of(question: ArithmeticQuestion, label: int, form: Form, order: AnswerOrder, width: int = 0) -> str:
    """Target text of a question, ending in `label`."""
    spelled = str(label)[::-1] if order == "reversed" else str(label)
    if form == "answer":
        return spelled
    steps = _steps(question) if form == "steps" else []
    left, right = f"{question.left:0{width}d}", f"{question.right:0{width}d}"
    return " = ".join([f"{left} {SYMBOLS[question.operation]} {right}", *steps, spelled])


def _steps(question: ArithmeticQuestion) -> list[str]:
    """Partial results between the expression and the answer; none where one factor or the quotient has one digit."""
    if question.operation == "multiplication":
        places = [(int(d), 10**p) for p, d in enumerate(reversed(str(question.right))) if d != "0"][::-1]
        if len(places) < 2:
            return []
        parts = [question.left * digit * place for digit, place in places]
        split = " + ".join(f"{question.left} * {digit * place}" for digit, place in places)
        sums = [" + ".join(map(str, [sum(parts[:n]), *parts[n:]])) for n in range(1, len(parts))]
        return [split, *sums]
    if question.operation == "division":
        quotient = str(question.answer)
        terms = [int(d) * 10**p for p, d in enumerate(reversed(quotient)) if d != "0"][::-1]
        return [" + ".join(f"{question.right * each} / {question.right}" for each in terms)] if len(terms) > 1 else []
    return []


def final_integer(text: str, order: AnswerOrder) -> str | None:
    """The whole integer that a reply ends with, digits in the usual order; None where it ends in something else.

    Only the reply's last integer counts: an operand that is repeated, or a longer number that contains the answer, does
    not. After an equals sign there must be nothing but the integer.
    """
    ending = text.rsplit("=", 1)[-1].strip().removesuffix(".").strip()
    match = _LAST_NUMBER[order].search(ending)
    if match is None or ("=" in text and match.group() != ending):
        return None
    number = "".join(match.group().split())
    return number[::-1] if order == "reversed" else number


@dataclass(frozen=True)
class DigitTokeniser:
    """Ids of the small decoder: padding, end, then every digit, sign and word that can occur."""

    pad_id: int = 0
    end_id: int = 1

    @cached_property
    def vocabulary(self) -> list[str]:
        """Tokens by id; the first two are not text."""
        words: set[str] = set()
        for operation, spellings in SPELLINGS.items():
            for text in (*TEMPLATES, *spellings, LEAD, SYMBOLS[operation], "="):
                words |= {piece for piece in _PIECES.findall(re.sub(r"\{\w\}", " ", text)) if not piece.isdigit()}
        return ["<pad>", "<end>", *"0123456789", *sorted(words)]

    @cached_property
    def _ids(self) -> dict[str, int]:
        return {token: number for number, token in enumerate(self.vocabulary)}

    def encode(self, text: str) -> list[int]:
        """Ids of a prompt or output made by this module; a word that none of its templates has is a `KeyError`."""
        return [self._ids[piece] for piece in _PIECES.findall(text)]

    def decode(self, ids: list[int]) -> str:
        """Text again; digits of one number stand together, everything else has spaces around it."""
        text = ""
        for number in ids:
            token = self.vocabulary[number]
            text += token if token.isdigit() and text[-1:].isdigit() else f" {token}"
        return text.strip()


def llama_tokens(text: str) -> int:
    """Tokens of a prompt or output in LLaMA's tokeniser, without beginning and end, by the rule of `LLAMA_ASSUMPTION`.

    Source for one token per digit: Touvron et al. 2023, arXiv 2302.13971, section 2.1 ("we split all numbers into
    individual digits").
    """
    return len(_LLAMA_PIECES.findall(text))
