import gzip
import json

import pytest

from forerun.data.json_rows import read_rows
from forerun.errors import BadData
from forerun.recipes.code_lora.data.tasks import read_tasks

HUMANEVAL = {
    "task_id": "Own/0", "entry_point": "double",
    "prompt": 'from typing import List\n\n\ndef double(x: int) -> int:\n    """Twice x."""\n',
    "canonical_solution": "    return 2 * x\n", "test": "def check(candidate):\n    assert candidate(4) == 8\n",
}  # fmt: skip
MBPP = {
    "task_id": 7, "text": "Write a function to halve a number.", "code": "def half(x):\r\n  return x / 2",
    "test_setup_code": "import math", "test_list": ["assert half(4) == 2", "assert math.isclose(half(1), 0.5)"],
}  # fmt: skip


def tasks_file(tmp_path, rows, name="tasks.jsonl"):
    path = tmp_path / name
    path.write_text("\n".join(json.dumps(row) for row in rows))
    return path


@pytest.mark.parametrize("row", [HUMANEVAL, MBPP, {**MBPP, "prompt": MBPP["text"], "text": None}])
def test_both_formats_hold_together(tmp_path, row):
    (task,) = read_tasks(tasks_file(tmp_path, [{k: v for k, v in row.items() if v is not None}]))
    exec(task.reference + "\n" + task.tests, {})
    with pytest.raises((AssertionError, TypeError)):
        exec(f"def {task.entry_point}(*given): return None\n{task.tests}", {})


def test_fields_of_each_format(tmp_path):
    first, second = read_tasks(tasks_file(tmp_path, [HUMANEVAL, MBPP]))
    assert (first.entry_point, first.preamble) == ("double", "from typing import List\n\n\n")
    assert first.instruction.count("def double") == 1
    assert second.entry_point == "half"
    assert "assert half(4) == 2" in second.instruction


@pytest.mark.parametrize(
    ("row", "words"),
    [
        ({"question": "x", "answer": "y"}, ["HumanEval", "MBPP", "answer, question"]),
        ({**MBPP, "test_list": ["assert third(4) == 2"]}, ["half", "test_list"]),
        ({**MBPP, "code": "def half(:"}, ["Python"]),
        ({**HUMANEVAL, "task_id": None}, ["HumanEval", "task_id"]),
        ({**HUMANEVAL, "entry_point": "treble"}, ["row 1", "treble", "def double"]),
        ({**HUMANEVAL, "test": "assert double(4) == 8"}, ["row 1", "check(candidate)"]),
    ],
)
def test_other_rows_are_refused(tmp_path, row, words):
    with pytest.raises(BadData) as error:
        read_tasks(tasks_file(tmp_path, [{k: v for k, v in row.items() if v is not None}]))
    assert all(word in str(error.value) for word in words)


def test_a_task_that_stands_twice_is_said(tmp_path):
    with pytest.raises(BadData, match=r"row 3: each task has a task_id of its own; found Own/0 again"):
        read_tasks(tasks_file(tmp_path, [HUMANEVAL, MBPP, HUMANEVAL]))


def test_files_are_read_in_every_form(tmp_path):
    (tmp_path / "a.json").write_text(json.dumps([{"x": 1}, {"x": 2}]))
    content = b'{"x": 1}\n\n{"x": 2}\n'
    (tmp_path / "b.jsonl.gz").write_bytes(gzip.compress(content))
    (tmp_path / "C.JSONL.GZ").write_bytes(gzip.compress(content))
    (tmp_path / "windows.jsonl").write_bytes(b"\xef\xbb\xbf" + content.replace(b"\n", b"\r\n"))
    for name in ("a.json", "b.jsonl.gz", "C.JSONL.GZ", "windows.jsonl"):
        assert read_rows(tmp_path / name) == [{"x": 1}, {"x": 2}], name


def test_a_row_may_hold_line_ends_that_json_does_not_escape(tmp_path):
    rows = [{"x": "a\u2028b\x85c\u2029\x1e"}, {"x": "d"}]
    (tmp_path / "a.jsonl").write_text("\n".join(json.dumps(row, ensure_ascii=False) for row in rows), encoding="utf-8")
    assert read_rows(tmp_path / "a.jsonl") == rows


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("a.csv", b"x", "jsonl"), ("a.jsonl", b"", "at least one row"), ("a.jsonl", b'{"x": 1}\n{"x":', "line 2"),
        ("a.json", b"[1]", "row 1"), ("a.json", b"[", "JSON list"), ("a.jsonl.gz", b"no gzip", "gz"),
        ("a.jsonl", b"\xff\xfe", "UTF-8.*Save it as UTF-8"), ("none/a.jsonl", None, "cannot be read"),
    ],
)  # fmt: skip
def test_bad_files_are_said(tmp_path, name, content, words):
    if content is not None:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(BadData, match=words):
        read_rows(tmp_path / name)
