import ast
import json
from pathlib import Path

import pytest

from forerun.recipes.code_detector.data.corpus import embedded
from forerun.recipes.code_detector.service.plausibility import plausibility

PROSE = "The quick brown fox jumps over the lazy dog, and then it sleeps.\n" * 30
NOT_CODE = {
    "one word": "x" * 2000, "a word a line": "x\n" * 500, "data": json.dumps([{"a": 1, "b": [1, 2, 3]}] * 50),
    "numbers": json.dumps(list(range(500))), "prose": PROSE, "prose in one line": PROSE.replace("\n", " "),
    "table": "a,b,1\n" * 200, "page": "<p class='x'>hello</p>" * 100, "log": "2026-11-23 10:00:00 INFO started 80\n" * 60,
    "noise": "".join(chr(33 + n * 7919 % 90) for n in range(2000)), "nothing": "", "comments": "# only a comment\n" * 50,
}  # fmt: skip


@pytest.mark.parametrize("language", ["python", "java", "cpp"])
@pytest.mark.parametrize("name", NOT_CODE)
def test_what_is_no_code(name, language):
    assert not plausibility(NOT_CODE[name], language).is_code


def test_files_of_the_corpus_are_code():
    files = embedded().samples[::25]
    refused = [file.id for file in files if not plausibility(file.code, file.language).is_code]
    assert len(refused) <= 1, refused
    assert len(files) > 400


def test_code_that_does_not_parse_is_code():
    old = "import sys\nfor line in sys.stdin:\n    print line, len(line)\n    exec line\n"
    broken = Path(ast.__file__).read_text().replace("def parse(", "def parse((")
    for code in (old, broken):
        with pytest.raises(SyntaxError):
            ast.parse(code)
        assert plausibility(code, "python").is_code
