from forerun.data.own.formats import recognise
from forerun.runs.data_questions import header_of, other_meanings

TEXTS = [f"some words about thing {n} and {n * n}" for n in range(40)]


def test_a_first_line_that_seems_a_row_is_asked(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text("".join(f"{text},{'ab'[n % 2]}\n" for n, text in enumerate(TEXTS)))
    fields, (question,) = header_of(str(path))
    assert fields == {"header": "none"}
    assert (question.setting, question.others) == ("data.fields", ("header: first, it names them",))
    assert header_of("rows.jsonl") == ({}, [])


def test_folders_may_be_labels_or_places(tmp_path):
    for n, text in enumerate(TEXTS[:8]):
        path = tmp_path / "ab"[n % 2] / f"{n}.md"
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    rows = [{"text": text, "label": "ab"[n % 2]} for n, text in enumerate(TEXTS)]
    (question,) = other_meanings(str(tmp_path), recognise(rows)[0], rows)
    assert "are the 2 folders (a, b) labels to learn" in question.text


def questions(rows):
    return other_meanings("rows.csv", recognise(rows)[0], rows)


def test_a_column_called_label_is_not_passed_over_in_silence():
    (question,) = questions([{"text": text, "label": f"2004-01-{n:02}"} for n, text in enumerate(TEXTS)])
    assert "40 of its 40 values differ (such as '2004-01-00')" in question.text
    (question,) = questions([{"text": text, "entities": [{"start": 0, "label": "A"}]} for text in TEXTS])
    assert "a .conll file" in question.others[0]
    (question,) = questions(
        [{"text": text, "stance": "ab"[n % 2], "shop": "cd"[n % 2]} for n, text in enumerate(TEXTS)]
    )
    assert question.others[0].endswith("label: stance}")
    assert questions([{"text": text} for text in TEXTS]) == []


def test_answers_of_which_some_are_bad_are_asked():
    rows = [{"prompt": text, "completion": text[::-1], "label": n % 2 == 0} for n, text in enumerate(TEXTS)]
    (question,) = questions(rows)
    assert "says yes of some and no of others" in question.text


def test_lines_of_words_and_tags_are_asked():
    (question,) = questions([{"text": f"word{n} O\nname B-PER"} for n in range(40)])
    assert "tags: name the file" in question.others[0]
