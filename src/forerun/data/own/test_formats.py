import pytest

from forerun.data.own.canonical import canonical_row
from forerun.data.own.format_parts import PARTS
from forerun.data.own.formats import layout_of, recognise
from forerun.errors import BadData, InvalidSettings
from forerun.settings.schema import DataSettings

USER, ANSWER = {"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello"}
LONG = "a sentence that is long enough to be a text and not a name of anything, number "
ROWS = {
    "labelled": {"text": "good film", "label": "pos"},
    "labelled aliases": {"Review": "good film", "Sentiment": "pos"},
    "labelled stars": {"text": "good film", "stars": 5},
    "labelled pair": {"premise": "A man sleeps.", "hypothesis": "He is awake.", "label": 0},
    "labelled glue": {"sentence1": "A man sleeps.", "sentence2": "He is awake.", "label": 0, "idx": 3},
    "messages": {"messages": [USER, ANSWER]},
    "messages under another name": {"conversations": [USER, ANSWER]},
    "messages in a cell": {"messages": '[{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Ho"}]'},
    "conversations": {"conversations": [{"from": "human", "value": "Hi"}, {"from": "gpt", "value": "Ho"}]},
    "alpaca": {"instruction": "Add.", "input": "1 2", "output": "3", "text": "Below is an instruction. Add."},
    "alpaca oasst": {"INSTRUCTION": "Add.", "RESPONSE": "3"},
    "prompt-completion": {"prompt": "Add 1 and 2.", "completion": "3"},
    "prompt-completion spoken": {"user": "Add 1 and 2.", "assistant": "3"},
    "preference": {"prompt": "Add.", "chosen": "3", "rejected": "4"},
    "preference messages": {"chosen": [USER, ANSWER], "rejected": [USER, {"role": "assistant", "content": "No"}]},
    "preference exchange": {"question": "Add.", "response_j": "3", "response_k": "4"},
    "unpaired-preference": {"prompt": "Add 1 and 2.", "completion": "3", "label": True},
    "unpaired-preference messages": {"prompt": [USER], "completion": [ANSWER], "label": False},
    "unpaired-preference chat": {"conversations": [USER, ANSWER], "kto_tag": True},
    "unpaired-preference alpaca": {"instruction": "Add.", "input": "1 2", "output": "3", "kto_tag": "false"},
    "pairs": {"anchor": "a red car", "positive": "a crimson car"},
    "triplets": {"anchor": "a red car", "positive": "a crimson car", "negative": "a dog"},
    "tagged": {"id": "0", "tokens": ["EU", "rejects"], "ner_tags": [3, 0], "pos_tags": [22, 42]},
    "spans": {"id": 7, "text": "EU rejects", "label": [[0, 2, "ORG"]]},
    "spans in cells": {"text": "EU rejects", "entities": '[{"start": 0, "end": 2, "label": "ORG"}]'},
    "tagged in cells": {"tokens": "['EU'] rejects", "tags": "B-ORG O"},
    "translation": {"source": "ein Haus", "target": "a house"},
    "translation wmt": {"translation": {"de": "ein Haus", "en": "a house"}},
    "translation summaries": {"document": "A long story.", "summary": "A story."},
    "text": {"text": "Once upon a time."},
    "tagged sentence": {"sentence": "EU rejects", "tags": "B-ORG O"},
    "labelled search result": {"query": "red car", "document": "A crimson car.", "score": "0.1"},
    "alpaca flat SQuAD": {"id": "q", "context": "It is red.", "question": "Is it?", "answers": {"text": ["red"]}},
}


@pytest.mark.parametrize("case", ROWS)
def test_each_format_is_recognised_and_certain(case):
    best = recognise([ROWS[case]] * 3)[0]
    assert (best.format, best.is_certain) == (case.split()[0], True)
    assert set(PARTS[best.format].required) <= set(best.fields)
    assert best.workload in PARTS[best.format].workloads


def test_every_format_has_a_case():
    assert {case.split()[0] for case in ROWS} == set(PARTS)


def test_two_texts_of_one_label_are_a_pair():
    assert recognise([ROWS["labelled pair"]])[0].fields == {"text": "premise", "pair": "hypothesis", "label": "label"}


def test_a_query_and_what_was_found_are_a_pair():
    fields = recognise([ROWS["labelled search result"]] * 3)[0].fields
    assert fields == {"text": "query", "pair": "document", "label": "score"}


def test_a_question_and_an_answer_with_a_label_are_asked():
    rows = [{"question": f"Who, {n}?", "answer": "Me.", "label": n % 2} for n in range(30)]
    best, *others = recognise(rows)
    assert (best.format, best.is_certain) == ("prompt-completion", False)
    assert {"text": "question", "pair": "answer", "label": "label"} in [p.fields for p in others]


def test_a_verdict_under_another_name_or_beside_other_names_is_no_preference_by_itself():
    for rows in (
        [{"question": f"Who, {n}?", "answer": "Me.", "label": n % 2} for n in range(30)],
        [{"messages": [USER, ANSWER], "score": n % 2} for n in range(30)],
        [{"prompt": f"Who, {n}?", "completion": "Me.", "label": n % 3} for n in range(30)],
    ):
        assert "unpaired-preference" not in [p.format for p in recognise(rows)]
    fields = {"prompt": "question", "completion": "answer", "desirable": "label"}
    rows = [{"question": f"Who, {n}?", "answer": "Me.", "label": n % 2} for n in range(30)]
    assert recognise(rows, "unpaired-preference", fields)[0].fields == fields
    assert recognise(rows, workload="preference")[0].fields == fields


def test_the_first_of_several_answers_is_learned():
    layout = layout_of(DataSettings(source="x"), rows := [ROWS["alpaca flat SQuAD"]] * 3)
    assert layout.fields == {"instruction": "question", "output": "answers.text.0", "input": "context"}
    assert canonical_row(rows[0], layout, "x").messages[1].content == "red"


def test_input_and_output_may_be_a_translation():
    best, other = recognise([{"input": f"Add {n} and 2.", "output": f"It is {n + 2}."} for n in range(30)])[:2]
    assert (best.format, best.is_certain, other.format) == ("prompt-completion", False, "translation")


def test_a_user_s_name_asks_nothing():
    rows = [{"user": f"u{n}", "output": f"It is {n + 2}, or so."} for n in range(30)]
    assert "prompt-completion" not in [p.format for p in recognise(rows)]


def test_a_tag_for_each_word_is_needed():
    assert recognise([{"sentence": "EU rejects it", "tags": "news"}] * 3)[0].format == "text"


def test_inner_columns_are_named_with_a_dot():
    fields = recognise([ROWS["translation wmt"]])[0].fields
    assert fields == {"source": "translation.de", "target": "translation.en"}


def test_a_question_and_an_answer_could_be_two_things():
    proposals = recognise([{"question": "Who?", "answer": "Me."}])
    assert not proposals[0].is_certain
    assert {p.format for p in proposals} >= {"prompt-completion", "pairs"}


def test_a_second_long_text_makes_plain_text_uncertain():
    proposals = recognise([{"text": f"{LONG}{n}", "code": f"{LONG}{LONG}{n}"} for n in range(30)])
    assert [p.format for p in proposals] == ["text", "prompt-completion"]
    assert not any(p.is_certain for p in proposals)


def test_an_id_of_few_rows_is_no_second_text():
    rows = [{"code": f"{LONG}{n}", "label": n % 2, "pair": "p1" if n < 5 else None} for n in range(30)]
    assert recognise(rows)[0].fields == {"text": "code", "label": "label"}


def test_an_origin_is_no_text_to_translate():
    rows = [{"source": "web", "output": f"{LONG}{n}", "instruction": f"Do {n}"} for n in range(30)]
    assert [p.format for p in recognise(rows)] == ["alpaca"]


def test_two_sentences_and_a_score_are_judged_and_no_embedding():
    rows = [{"sentence1": "a red car", "sentence2": "a crimson car", "score": 0.9}]
    assert [(p.format, p.is_certain) for p in recognise(rows)] == [("labelled", True)]
    assert [p.format for p in recognise(rows, workload="embedding")] == ["pairs"]


def test_columns_named_by_languages_are_a_translation():
    best = recognise([{"en": "a house", "de": "ein Haus", "url": "http://a.b"}] * 3)[0]
    assert (best.format, best.fields) == ("translation", {"source": "en", "target": "de"})


def test_numbers_called_labels_beside_words_are_tags():
    assert recognise([{"tokens": ["EU", "rejects"], "labels": [3, 0]}] * 3)[0].format == "tagged"
    assert recognise([{"words": "EU rejects", "labels": "a b"}] * 3, "auto", {"text": "words"})[0].format == "labelled"


def test_unknown_names_are_told_by_values_and_never_certain():
    rows = [{"was": f"{LONG}{n}", "typ": "ab"[n % 2]} for n in range(30)]
    best = recognise(rows)[0]
    assert (best.format, best.fields, best.is_certain) == ("labelled", {"text": "was", "label": "typ"}, False)


def test_stated_fields_and_format_win():
    rows = [{"text": "a", "note": "b", "label": "x", "prompt": "p", "completion": "c"}]
    assert recognise(rows, fields={"text": "note", "label": "label"})[0].fields == {"text": "note", "label": "label"}
    assert recognise(rows, "text")[0].fields == {"text": "text"}
    assert recognise(rows, "prompt-completion")[0].is_certain


def test_a_workload_leaves_only_its_formats():
    rows = [{"text": "a", "label": "x"}]
    assert recognise(rows, workload="masked-lm")[0].fields == {"text": "text"}
    assert recognise([{"question": "Who?", "answer": "Me."}], workload="embedding")[0].is_certain


def test_a_column_that_is_not_there_is_named_with_those_that_are():
    with pytest.raises(BadData, match="'stars', which is none of text, label"):
        recognise([{"text": "a", "label": "x"}], fields={"label": "stars"})


def test_a_part_of_no_format_is_refused_with_the_nearest():
    with pytest.raises(InvalidSettings, match="Nearest: label"):
        recognise([{"text": "a", "label": "x"}], fields={"labell": "label"})


def test_nothing_recognised_says_what_was_there():
    with pytest.raises(BadData, match=r"a \(number, 2 different\)"):
        recognise([{"a": 1}, {"a": 2}])


def test_a_layout_of_doubtful_rows_is_refused_and_a_stated_one_taken():
    rows = [{"question": "Who?", "answer": "Me."}]
    with pytest.raises(BadData, match=r"could be .*prompt-completion .*pairs"):
        layout_of(DataSettings(source="x"), rows)
    assert layout_of(DataSettings(source="x", format="pairs"), rows).fields == {
        "anchor": "question",
        "positive": "answer",
    }


def test_a_layout_says_what_labels_are():
    stars = [{"text": f"t{n}", "label": 1 + n % 5} for n in range(50)]
    with pytest.raises(BadData, match="data.labels"):
        layout_of(DataSettings(source="x"), stars)
    assert layout_of(DataSettings(source="x", labels="number"), stars).labels == "number"
    assert layout_of(DataSettings(source="x"), [{"text": "t", "label": ["a", "b"]}]).labels == "several"


def two_columns(name, values, **more):
    return [{"comment": f"No {i} was a long and lovely film.", name: value} | {k: v[i] for k, v in more.items()}
            for i, value in enumerate(values)]  # fmt: skip


@pytest.mark.parametrize(
    ("name", "more", "first"),
    [
        ("stars_good", {}, "labelled"),
        ("stars_good", {"nr": list(range(60))}, "labelled"),
        ("stars_good", {"shop": ["a", "b", "c"] * 20}, "text"),
        ("language", {}, "text"),
    ],
)
def test_what_stands_alone_beside_a_text_is_its_label_by_default(name, more, first):
    best, *others = recognise(two_columns(name, ["yes", "no", "no"] * 20, **more))
    assert best.format == first
    if first == "labelled":
        assert best.fields == {"text": "comment", "label": name}
        assert not best.is_certain, "the owner is asked"
        assert "text" in {other.format for other in others}


def test_a_stated_workload_is_not_overruled_by_a_column():
    assert recognise(two_columns("stars_good", ["yes", "no"] * 30), workload="causal-lm")[0].format == "text"


def test_a_preference_as_openai_has_it():
    row = {
        "input": {"messages": [{"role": "user", "content": "Hi"}], "tools": [], "parallel_tool_calls": True},
        "preferred_output": [{"role": "assistant", "content": "Hello"}],
        "non_preferred_output": [{"role": "assistant", "content": "No"}],
    }
    layout = layout_of(DataSettings(source="x"), [row] * 3)
    record = canonical_row(row, layout, "x")
    assert [turn.content for turn in (*record.prompt, *record.better, *record.worse)] == ["Hi", "Hello", "No"]


def test_a_question_that_is_answered_by_yes_or_no_is_labelled():
    rows = [
        {"question": f"is thing {n} good", "answer": n % 2 == 0, "passage": f"words about {n} " * 9} for n in range(40)
    ]
    best = recognise(rows)[0]
    assert best.fields == {"text": "question", "pair": "passage", "label": "answer"}
    rows = [{"question": f"what is {n} and 2", "answer": n + 2} for n in range(40)]
    assert recognise(rows)[0].format == "prompt-completion"
