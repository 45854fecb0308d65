from forerun.data.own.formats import recognise
from forerun.runs.data_questions import direction_of, header_of, other_meanings, part_of

TEXTS = [f"some words about thing {n} and {n * n}" for n in range(40)]


def test_a_first_line_that_seems_a_row_is_asked(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text("".join(f"{text},{'ab'[n % 2]}\n" for n, text in enumerate(TEXTS)))
    fields, (question,) = header_of(str(path))
    assert fields == {"header": "none"}
    assert (question.setting, question.others) == ("data.fields", ("header: first, it names them",))
    assert header_of("rows.jsonl") == ({}, [])


def test_a_first_line_of_sentences_is_asked(tmp_path):
    path = tmp_path / "a.tsv"
    path.write_text("".join(f"{text}.\t{text[::-1]} !\tby {n}\n" for n, text in enumerate(TEXTS)))
    fields, (question,) = header_of(str(path))
    assert fields == {"header": "none"}
    assert "Its 'some words about thing 0 and 0.' seems a text" in question.text
    path.write_text(f"{'long ' * 50}\tb\n" * 3 + "a\tb\n")
    assert header_of(str(path))[0] == {"header": "none"}
    path.write_text("What is it?\tOf whom\n" + "".join(f"{text}.\t{n}\n" for n, text in enumerate(TEXTS)))
    assert header_of(str(path)) == ({}, [])
    path.write_text("How are you?\tSince when?\n" + "".join(f"{text}\t{n}\n" for n, text in enumerate(TEXTS)))
    assert header_of(str(path)) == ({}, [])


def test_lines_with_as_many_tabs_are_asked(tmp_path):
    path = tmp_path / "a.txt"
    path.write_text("".join(f"{'ab'[n % 2]}\t{text}\n" for n, text in enumerate(TEXTS)))
    fields, (tabs, first_line) = header_of(str(path))
    assert fields == {"header": "none"}
    assert tabs.others == ("workload: causal-lm, format: text, fields: {header: plain, text: text}",)
    assert "does the first line name the columns" in first_line.text
    path.write_text("\n".join(TEXTS))
    assert header_of(str(path)) == ({}, [])


def test_the_direction_of_a_translation_is_asked_where_languages_name_the_columns():
    (question,) = direction_of(recognise([{"translation": {"en": text, "de": text[::-1]}} for text in TEXTS])[0])
    assert question.default == "source: translation.en, target: translation.de"
    assert question.others == ("fields: {source: translation.de, target: translation.en}",)
    assert direction_of(recognise([{"document": text, "summary": text[:9]} for text in TEXTS])[0]) == []


def test_a_short_text_beside_a_labelled_one_is_asked():
    (question,) = questions(
        [{"title": f"some news of {n}", "review": text, "stars": n % 2} for n, text in enumerate(TEXTS)]
    )
    assert question.others == ("both are: fields: {text: review, pair: title, label: stars}",)


def test_whether_bad_answers_are_to_become_less_likely_is_asked():
    chats = [[{"role": "user", "content": text}, {"role": "assistant", "content": text[::-1]}] for text in TEXTS]
    (question,) = questions([{"prompt": t, "completion": t[::-1], "label": n % 2} for n, t in enumerate(TEXTS)])
    assert (question.setting, question.default) == ("workload", "they are")
    assert "the column 'label' says no" in question.text
    assert "format: prompt-completion, fields: {prompt: prompt, completion: completion}" in question.others[0]
    (question,) = questions([{"messages": chat, "kto_tag": n % 2 > 0} for n, chat in enumerate(chats)])
    assert "format: messages, fields: {messages: messages}" in question.others[0]
    rows = [{"instruction": t, "input": "", "output": t[::-1], "kto_tag": n % 2} for n, t in enumerate(TEXTS)]
    (question,) = questions(rows)
    assert "format: alpaca, fields: {instruction: instruction, output: output, input: input}" in question.others[0]
    (question,) = questions([{"messages": chat, "accepted": n % 2 > 0} for n, chat in enumerate(chats)])
    assert question.default == "all"
    assert "unpaired-preference, fields: {prompt: messages, desirable: accepted}, pref" in question.others[1]


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
    (question,) = questions([{"text": text, "annotations": [{"value": {"choices": ["A"]}}]} for text in TEXTS])
    assert "a list of [start, end, label]" in question.others[0]
    (question,) = questions(
        [{"text": text, "stance": "ab"[n % 2], "shop": "cd"[n % 2]} for n, text in enumerate(TEXTS)]
    )
    assert question.others[0].endswith("label: stance}")
    assert questions([{"text": text} for text in TEXTS]) == []


def test_answers_of_which_some_are_bad_are_asked():
    rows = [{"prompt": text, "completion": text[::-1], "label": n % 2 == 0} for n, text in enumerate(TEXTS)]
    (question,) = questions(rows)
    assert question.others[2].endswith("fields: {text: prompt, pair: completion, label: label}")
    (question,) = questions(
        [{"instruction": r["prompt"], "output": r["completion"], "input": "", "label": r["label"]} for r in rows]
    )
    assert "says yes of some and no of others" in question.text
    assert "fields: {prompt: instruction, completion: output, input: input, desirable: label}" in question.others[1]
    assert question.others[2].endswith("fields: {text: instruction, pair: output, label: label}")


def test_answers_with_a_score_are_asked():
    rows = [{"prompt": text, "response": text[::-1], "helpfulness": n % 5, "seed": n} for n, text in enumerate(TEXTS)]
    (question,) = questions(rows)
    assert "The column 'helpfulness' has a number for each." in question.text
    assert question.others[1].endswith("fields: {text: prompt, pair: response, label: helpfulness}, labels: number")
    assert (
        questions([{"prompt": row["prompt"], "response": row["response"], "seed": row["seed"]} for row in rows]) == []
    )


def test_chats_of_which_some_are_bad_are_asked():
    rows = [
        {"messages": [{"role": "user", "content": text}, {"role": "assistant", "content": "ok"}], "passed": n % 2 == 0}
        for n, text in enumerate(TEXTS)
    ]
    (question,) = questions(rows)
    assert "The column 'passed' says yes of some and no of others." in question.text
    assert question.others[0].startswith("only good ones")


def test_choices_that_are_left_out_are_asked_about():
    rows = [{"question": text, "choices": [text[:9], text[9:]], "answer": n % 4} for n, text in enumerate(TEXTS)]
    (question,) = questions(rows)
    assert "The column 'choices' holds some." in question.text
    assert question.default == "without"


def test_lists_beside_a_text_of_unknown_name_are_asked_about():
    rows = [{"prompt": text, "completions": [text, text[::-1]], "labels": [True, False]} for text in TEXTS]
    (question,) = questions(rows)
    assert question.text.startswith("shall the column 'completions' not be learned?")


def test_lines_of_words_and_tags_are_asked():
    (question,) = questions([{"text": f"word{n} O\nname B-PER"} for n in range(40)])
    assert "tags: name the file" in question.others[0]


def test_a_table_of_single_words_with_tags_is_asked_whether_sentences_are_meant():
    tags = ["B-PER", "I-PER", "O"]
    (question,) = questions([{"Wort": f"Wort{n}", "Tag": tags[n % 3]} for n in range(40)])
    assert question.default == "words"
    assert ".conll" in question.others[0]
    assert questions([{"Wort": f"ein Wort {n} hier", "Tag": tags[n % 3]} for n in range(40)]) == []


def test_a_column_of_parts_by_another_name_says_them():
    rows = [{"text": text, "kind": "ab"[n % 2], "set": ("train", "dev", "test")[n % 3]} for n, text in enumerate(TEXTS)]
    best = recognise(rows)[0]
    assert best.fields == {"text": "text", "label": "kind"}
    fields, (question,) = part_of(best, rows)
    assert fields == {"split": "set"}
    assert "words such as dev, test, train." in question.text
    assert part_of(best, [{**row, "split": "train"} for row in rows]) == ({}, [])
    assert part_of(best, [{**row, "set": "test"} for row in rows]) == ({}, [])


def test_what_is_not_read_beside_a_text_is_not_passed_over_in_silence():
    (question,) = questions([{"text": text, "price": f"{n},{n + 100} €"} for n, text in enumerate(TEXTS)])
    assert "shall the column 'price' not be learned? Its values, such as '0,100 €', are amounts" in question.text
    (question,) = questions([{"query": text, "hits": [text[::-1], text]} for text in TEXTS])
    assert "shall the column 'hits' not be learned?" in question.text
    (question,) = questions(
        [{"title": text, "mapping": {f"{n}": {"content": text * 3}}} for n, text in enumerate(TEXTS)]
    )
    assert "the column 'mapping'" in question.text
    assert questions([{"text": text, "meta": {"page": n}} for n, text in enumerate(TEXTS)]) == []


def test_reasoning_beside_an_answer_is_asked():
    rows = [{"prompt": text, "thinking": text * 2, "completion": text[::-1]} for text in TEXTS]
    (question,) = questions(rows)
    assert "The column 'thinking' holds some." in question.text
