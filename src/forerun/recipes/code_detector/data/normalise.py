"""Source code in a form that says nothing about how it was formatted: what is left when style is taken away.

Formatting separates human from AI-written code so well that a detector can score high on it alone, so every baseline
is also scored on this form. Python: comments and docstrings go, the syntax tree is printed back. Java and C++: comments
and `package` lines go, tokens are joined by one blank and laid out one statement a line.

**Not covered:** names, literals and the order of statements stay as they are. Python that does not parse (mostly
Python 2) only loses comments, blank lines, trailing blanks and tabs. The printed tree depends slightly on the version
of Python (quotes inside f-strings changed in 3.12).
"""

import ast
import re
import warnings

INDENT = "    "

_PYTHON_PIECES = re.compile(
    r"(?P<string>[rbuRBUfF]{0,2}(?:\"\"\"[\s\S]*?\"\"\"|'''[\s\S]*?'''|\"(?:\\.|[^\"\\\n])*\"|'(?:\\.|[^'\\\n])*'))"
    r"|(?P<comment>#[^\n]*)"
)
_C_PIECES = re.compile(
    r"(?P<comment>//[^\n]*|/\*[\s\S]*?(?:\*/|\Z))"
    r"|(?P<directive>^[ \t]*#(?:\\\r?\n|[^\n])*)"
    r"|(?P<token>\"(?:\\.|[^\"\\\n])*\"|'(?:\\.|[^'\\\n])*'"
    r"|[A-Za-z_$][\w$]*|\.?\d(?:[eEpP][+-]|[\w.'])*"
    r"|>>>=|<<=|>>=|\.\.\.|->|::|\+\+|--|<<|>>|[<>=!+\-*/%&|^]=|&&|\|\||\S)",
    re.MULTILINE,
)
_COMMENT = re.compile(r"//.*|/\*.*?(?:\*/|\Z)", re.DOTALL)
_PACKAGE = re.compile(r"^package [^;\n]*;\n?", re.MULTILINE)


def normalise_code(code: str, language: str) -> str:
    """`code` without its formatting; `language` is python, java or cpp, any other is treated like C++."""
    return _normalise_python(code) if language == "python" else _normalise_braces(code)


def _normalise_python(code: str) -> str:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # invalid escapes in other people's string literals
            return ast.unparse(_without_docstrings(ast.parse(code)))
    except (SyntaxError, ValueError, RecursionError, MemoryError):  # Python 2, fragments, null bytes, deep nesting
        return _strip_lines(code)


def _without_docstrings(tree: ast.Module) -> ast.Module:
    for node in ast.walk(tree):
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
            body = [
                s for s in node.body if not (isinstance(s, ast.Expr) and isinstance(getattr(s.value, "value", 0), str))
            ]
            node.body = body or ([] if isinstance(node, ast.Module) else [ast.Pass()])
    return tree


def _strip_lines(code: str) -> str:
    plain = _PYTHON_PIECES.sub(lambda match: match["string"] or "", code)
    lines = (line.rstrip().replace("\t", INDENT) for line in plain.splitlines())
    return "\n".join(line for line in lines if line)


def _normalise_braces(code: str) -> str:
    layout = _Layout()
    for match in _C_PIECES.finditer(code):
        if match.lastgroup == "directive":
            layout.add_directive(match[0])
        elif match.lastgroup == "token":
            layout.add(match[0])
    layout.end_line()
    return _PACKAGE.sub("", "\n".join(layout.lines))


class _Layout:
    """Tokens to lines: a line ends at a brace, and at a semicolon that no parenthesis of its block encloses."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.line: list[str] = []
        self.open_parentheses = [0]
        """One count per open block, the outermost first."""

    def add(self, token: str) -> None:
        """Append one token."""
        self.open_parentheses[-1] = max(0, self.open_parentheses[-1] + (token == "(") - (token == ")"))
        if token == "}":
            self.end_line()
            if len(self.open_parentheses) > 1:
                self.open_parentheses.pop()
        self.line.append(token)
        if token in "{}" or (token == ";" and not self.open_parentheses[-1]):
            self.end_line()
        if token == "{":
            self.open_parentheses.append(0)

    def add_directive(self, text: str) -> None:
        """Append a preprocessor line, which keeps its own line."""
        self.end_line()
        self.lines.append(" ".join(_COMMENT.sub("", text).split()))

    def end_line(self) -> None:
        """Close the line, if it holds anything."""
        if self.line:
            self.lines.append(INDENT * (len(self.open_parentheses) - 1) + " ".join(self.line))
            self.line = []
