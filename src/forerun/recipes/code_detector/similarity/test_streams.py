import numpy as np
import pytest

from forerun.errors import NotSupported
from forerun.recipes.code_detector.similarity.streams import streams_of, token

COUNTED = "def f(n):\n    total = 0\n    for i in range(n):\n        total += i\n    return total\n"
RENAMED = 'def g(m):\n    """Adds."""\n    s = 0  # sum\n\n    for k in range(m):\n        s += k\n    return s\n'
JAVA_FOR = "class A { int f(int n) { int t = 0; for (int i = 0; i < n; i++) { t += i; } return t; } }"
JAVA_WHILE = "class B {\n int g(int m) { int s = 0; int k = 0; while (k < m) { s += k; k += 1; } return s; } }"
CPP_FOR = "#include <x>\nint f(int n) { int t = 0; for (int i = 0; i < n; ++i) t += i; return t; }"


def same(first, second):
    return np.array_equal(first.tokens, second.tokens)


def test_names_comments_docstrings_and_layout_do_not_matter():
    one, two = streams_of(COUNTED, "python"), streams_of(RENAMED, "python")
    assert same(one.words, two.words)
    assert same(one.syntax, two.syntax)


def test_loop_forms_are_one():
    one, two = streams_of(JAVA_FOR, "java"), streams_of(JAVA_WHILE, "java")
    assert same(one.syntax, two.syntax)
    assert not same(one.words, two.words)


def test_languages_share_a_vocabulary():
    java, cpp = streams_of(JAVA_FOR, "java").syntax.tokens, streams_of(CPP_FOR, "cpp").syntax.tokens
    assert set(cpp.tolist()) <= set(java.tolist())
    python = streams_of(COUNTED, "python").syntax.tokens
    assert {token("loop"), token("end loop"), token("return"), token("function")} <= set(python.tolist())


def test_an_else_if_is_an_elif():
    python = streams_of(
        "def f(a):\n    if a:\n        g()\n    elif b:\n        h()\n", "python"
    ).syntax.tokens.tolist()
    java = streams_of("class A { void f() { if (a) { g(); } else if (b) { h(); } } }", "java").syntax.tokens.tolist()
    place = [text for text in (token(t) for t in ("if", "else", "end if"))]
    assert [t for t in python if t in place].count(token("if")) == 2
    assert [t for t in python if t in place] == [t for t in java if t in place]


def test_lines_are_those_of_the_text():
    words = streams_of(RENAMED, "python").words
    assert words.first_lines.min() == 1
    assert words.last_lines.max() == 7
    assert 2 not in words.first_lines  # the docstring
    end = streams_of(RENAMED, "python").syntax.tokens.tolist().index(token("end loop"))
    assert streams_of(RENAMED, "python").syntax.last_lines[end] == 6


@pytest.mark.parametrize("code", ["", "\x00", "\ud800", "def (", "((((", "print 'x'", "}" * 3000, "(" * 3000])
@pytest.mark.parametrize("language", ["python", "java", "cpp"])
def test_anything_can_be_read(code, language):
    streams = streams_of(code, language)
    assert len(streams.words.tokens) == len(streams.words.first_lines) == len(streams.words.last_lines)


def test_other_languages_are_an_error():
    with pytest.raises(NotSupported, match=r"rust.*python, java, cpp"):
        streams_of("fn main() {}", "rust")
