import pytest

from forerun.recipes.code_detector.similarity.compare import Sizes, SourceFile, base_code, prepare
from forerun.recipes.code_detector.similarity.pieces import MOST_LINES, pieces_of

BODY = "".join(f"    total = total + values[{n}] * {n}\n" for n in range(6))
OTHER = "".join(f"        if value > {n}:\n            count -= step({n})\n" for n in range(6))
PYTHON = (
    f"import os\n\ndef first(values):\n{BODY}    return total\n\n"
    f"class A:\n    def second(self, value):\n{OTHER}        return count\n"
)


def spans(code, language, base=()):
    sizes = Sizes()
    handed_out = base_code([SourceFile("b", text, language) for text in base], sizes)
    return [
        (p.first_line, p.last_line)
        for p in pieces_of(code, prepare(SourceFile("a", code, language), sizes, handed_out))
    ]


def test_functions_and_methods_are_pieces():
    lines = PYTHON.split("\n")
    piece_spans = spans(PYTHON, "python")
    assert [lines[first - 1].strip() for first, _ in piece_spans] == ["def first(values):", "def second(self, value):"]
    assert lines[piece_spans[0][1] - 1] == "    return total"


@pytest.mark.parametrize(
    ("language", "code"),
    [
        ("java", "class A {{\n  int f(int[] values) {{\n    int total = 0;\n{0}    return total;\n  }}\n}}\n"),
        ("cpp", "#include <x>\nint f(int* values) {{\n    int total = 0;\n{0}    return total;\n}}\n"),
    ],
)
def test_other_languages_too(language, code):
    body = "".join(f"    total = total + values[{n}] * {n};\n" for n in range(6))
    code = code.format(body)
    (first, last) = spans(code, language)[0]
    assert "(int" in code.split("\n")[first - 1]
    assert code.split("\n")[last - 1].strip() == "}"


def test_long_code_is_cut_and_short_code_is_one_piece():
    long = "".join(f"total = total + values[{n}] * {n}\n" for n in range(100))
    piece_spans = spans(long, "python")
    assert piece_spans[0][0] == 1
    assert all(second[0] == first[1] + 1 for first, second in zip(piece_spans, piece_spans[1:], strict=False))
    assert all(last - first < MOST_LINES for first, last in piece_spans)
    assert spans("x = 1", "python") == [(1, 1)]
    assert spans("", "python") == [(1, 1)]


def test_what_was_handed_out_is_no_piece():
    handed = PYTHON[: PYTHON.index("class A")]
    assert [first for first, _ in spans(PYTHON, "python", base=[handed])] == [13]
