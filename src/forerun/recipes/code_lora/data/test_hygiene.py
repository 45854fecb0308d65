import pytest

from forerun.data.instructions import Instruction, instruction_of, read_instructions
from forerun.errors import BadData, MissingExtra
from forerun.recipes.code_lora.data.hygiene import clean, split_hash, split_rows
from forerun.recipes.code_lora.data.tasks import CodeTask

TEXT = "Write a function that takes a list of prices and returns the three cheapest of them in order"
TASK = CodeTask("t", TEXT, "", "", "cheapest_three", "def cheapest_three(x):\n    return sorted(x)[:3]\n", "")
GOOD = Instruction("Add two numbers.", "def plus(a, b):\n    return a + b")


def test_each_fault_is_counted_once():
    rows = [
        GOOD, Instruction("add  two numbers!", "def plus(a, b): return b + a"),
        Instruction(f"Please do: {TEXT.upper()}, quickly.", "def f(x): return x"),
        Instruction("Name the cheapest.", "def cheapest_three(x): return x"),
        Instruction("Say hello.", "Hello, how are you?"),
        Instruction("Fenced.", "Sure:\n```python\nx = 1\n```"),
    ]  # fmt: skip
    report = clean(rows, [TASK])
    assert [row.request for row in report.rows] == ["Add two numbers.", "Fenced."]
    assert (report.input_rows, report.duplicates, report.contaminated, report.unparsable) == (6, 1, 2, 1)
    assert report.unparsable_share == pytest.approx(1 / 3)


def test_twelve_words_in_common_are_allowed_and_thirteen_are_not():
    words = TEXT.split()
    assert len(clean([Instruction("Now " + " ".join(words[:12]), "x = 1")], [TASK]).rows) == 1
    assert len(clean([Instruction("Now " + " ".join(words[:13]), "x = 1")], [TASK]).rows) == 0


def test_a_short_request_that_is_a_tasks_own_is_contaminated():
    """305 of MBPP's 974 tasks ask with 7 to 12 words, and their tests follow in the instruction."""
    request = "Write a function to halve a number."
    task = CodeTask("t", f"{request}\nThe function must pass these tests:\nassert half(4) == 2", "", "", "half", "", "")
    assert not clean([Instruction(request.upper(), "def other(x): return x / 2")], [task]).rows
    rows = [Instruction("Halve a number.", "x = 1"), Instruction(request + " Quickly.", "x = 1")]
    rows.append(Instruction("Say it.", f"'{request}'"))
    assert list(clean(rows, [task]).rows) == rows


def test_requests_that_differ_in_an_operator_are_two():
    rows = [Instruction(f"Is x {sign} y?", "x = 1") for sign in ("<", ">", "<=", "+", "-", "and")]
    assert clean([*rows, Instruction("is  X<y", "x = 1")], []).duplicates == 1
    assert list(clean(rows, []).rows) == rows


def test_rows_that_ask_nothing_are_counted_apart():
    rows = [Instruction("", "x = 1"), Instruction("", "x = 2"), Instruction("?!", "x = 1"), Instruction("...", "x = 1")]
    report = clean([*rows, Instruction("Nothing to say.", "")], [])
    assert list(report.rows) == rows[2:]
    assert (report.without_request, report.duplicates, report.unparsable) == (2, 0, 1)
    assert report.unparsable_share == pytest.approx(1 / 3)


def test_everyday_names_do_not_count():
    task = CodeTask("t", "Something else entirely.", "", "", "solve", "def solve(): return 1\n", "")
    assert clean([Instruction("Do it.", "def solve(): return 2")], [task]).rows


def test_a_row_keeps_its_side_of_the_split():
    rows = [Instruction(f"Request {number}", f"x = {number}") for number in range(400)]
    train, test = split_rows(rows, 0.25)
    assert 60 < len(test) < 140
    assert not set(train) & set(test)
    fewer, _ = split_rows(rows[::2], 0.25)
    assert set(fewer) <= set(train)
    assert split_hash(train, test) != split_hash(train[1:], test)


def test_alpaca_rows():
    row = {"instruction": " Sum them. ", "input": "1, 2", "output": "print(3)\n", "prompt": "ignored"}
    assert instruction_of(row, "here") == Instruction("Sum them.\n\n1, 2", "print(3)")
    assert instruction_of({**row, "instruction": " "}, "here").request == "1, 2"
    assert instruction_of({**row, "input": None}, "here").request == "Sum them."
    with pytest.raises(BadData, match="here: .*output is missing.*answer, instruction"):
        instruction_of({"instruction": "x", "answer": "y"}, "here")
    with pytest.raises(BadData, match="input is missing or no text"):
        instruction_of({"instruction": "x", "output": "y", "input": 3}, "here")


def test_sources(tmp_path, monkeypatch):
    (tmp_path / "rows.json").write_text('[{"instruction": "a", "output": "b"}]')
    assert read_instructions(str(tmp_path / "rows.json")) == [Instruction("a", "b")]
    with pytest.raises(BadData, match="neither"):
        read_instructions("not-a-thing")
    with pytest.raises(BadData, match="cannot be read"):
        read_instructions(str(tmp_path / "none.jsonl"))
    monkeypatch.setitem(__import__("sys").modules, "datasets", None)
    with pytest.raises(MissingExtra, match="hub"):
        read_instructions("owner/name")
