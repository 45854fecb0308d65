"""Lists as Python prints them, `['B-PER', 'O']`: what pandas writes into a CSV whose cells are lists."""

import ast
import io
import re
import tokenize
import warnings
from typing import Any

SIDE_BY_SIDE = re.compile(r"""['"]\s+['"]""")


def python_list(text: str) -> Any:
    """The list or mapping that the text prints, or the text itself where it prints none.

    NumPy prints its arrays without commas, `['B-PER' 'O']`, which Python would read as one joined string: no list.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of "\d" in a string
        try:
            value = ast.literal_eval(text)
        except (ValueError, SyntaxError, RecursionError, MemoryError):
            return text
    if not isinstance(value, list | dict) or (SIDE_BY_SIDE.search(text) and _has_joined_strings(text)):
        return text
    return value


def _has_joined_strings(text: str) -> bool:
    kinds = [token.type for token in tokenize.generate_tokens(io.StringIO(text).readline) if token.type != tokenize.NL]
    return any(one == other == tokenize.STRING for one, other in zip(kinds[:-1], kinds[1:], strict=True))
