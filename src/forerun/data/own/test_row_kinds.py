from forerun.data.own.row_kinds import (
    ChatRow,
    LabelledRow,
    PairRow,
    PreferenceRow,
    TranslationRow,
    Turn,
    question_texts,
    texts_of,
)

ASK, ANSWER = Turn("user", "Why?"), Turn("assistant", "Because.")


def test_all_texts_in_order():
    assert texts_of(ChatRow((ASK, ANSWER))) == ("Why?", "Because.")
    assert texts_of(LabelledRow("a", "b", ("x",))) == ("a", "b")
    assert texts_of(PreferenceRow((ASK,), (ANSWER,), (Turn("assistant", "No."),))) == ("Why?", "Because.", "No.")


def test_an_answer_is_no_part_of_what_gives_a_row_away():
    assert question_texts(ChatRow((ASK, ANSWER))) == ("Why?",)
    assert question_texts(ChatRow((ANSWER,))) == ("Because.",)
    assert question_texts(TranslationRow("a", "b")) == ("a",)
    assert question_texts(PairRow("a", "b")) == ("a",)
    assert question_texts(PairRow("a", "b", 0.5)) == ("a", "b")
    assert question_texts(LabelledRow("a", None, ("x",))) == ("a",)


def test_a_number_is_read_from_its_label():
    assert LabelledRow("a", None, ("2.5",)).number == 2.5
