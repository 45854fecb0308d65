"""Python in text: the code of an answer, and whether it parses."""

import ast
import re
import warnings

FENCE = re.compile(r"```[a-zA-Z0-9_+-]*[ \t]*\n(.*?)(?:\n?```|\Z)", re.DOTALL)


def code_of(answer: str) -> str:
    """The first fenced block of an answer, also where its end is missing, or else all of it."""
    match = FENCE.search(answer)
    return (match.group(1) if match else answer).strip("\n")


def parses(code: str) -> bool:
    """Whether `ast.parse` takes it and it holds a statement."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of invalid escapes and comparisons in code that is not ours
            return bool(ast.parse(code).body)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False
