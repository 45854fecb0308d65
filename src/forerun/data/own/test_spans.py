import pytest

from forerun.data.own.formats import recognise
from forerun.data.own.spans import Span, spans_of, spans_of_tags, tags_of, words_of

TEXT = "Ana Ruiz went to Paris."
PLACES = [Span(0, 8, "PER"), Span(17, 22, "LOC")]
TAGS = ("B-PER", "I-PER", "O", "O", "B-LOC", "O")


@pytest.mark.parametrize(
    "value",
    [
        [[17, 22, "LOC"], [0, 8, "PER"], [0, 8, "PER"]],
        [{"start": 0, "end": 8, "label": "PER", "text": "Ana Ruiz"}, {"start": 17, "end": 22, "labels": ["LOC"]}],
        [{"id": 1, "start_offset": 0, "end_offset": 8, "label": "PER"}, [17, 22, "LOC"]],
        {"entities": [[0, 8, "PER"], [17, 22, "LOC"]]},
        [
            {"was_cancelled": True, "result": []},
            {"result": [
                {"type": "labels", "value": {"start": 0, "end": 8, "labels": ["PER"]}},
                {"type": "labels", "value": {"start": 17, "end": 22, "labels": ["LOC"]}},
                {"type": "choices", "value": {"choices": ["news"]}},
            ]},
        ],
    ],
)  # fmt: skip
def test_every_tool_s_places_are_read(value):
    assert spans_of(value) == PLACES
    (best, *_) = recognise([{"text": TEXT, "label": value}, {"text": TEXT, "label": []}])
    assert (best.format, best.fields, best.is_certain) == ("spans", {"text": "text", "spans": "label"}, True)


def test_what_names_no_places_is_told():
    assert spans_of([]) == []
    for value in (["PER"], [[0, 8]], [{"start": 0.5, "end": 8, "label": "PER"}], "PER", {"a": 1}, [["a", "b", "c"]]):
        assert spans_of(value) is None
    assert spans_of([{"result": [{"type": "choices", "value": {"choices": ["news"]}}]}]) is None


def test_words_and_their_tags():
    words, tags = tags_of(TEXT, PLACES)
    assert (words, tags) == (("Ana", "Ruiz", "went", "to", "Paris", "."), TAGS)
    assert [word for word, _, _ in words_of("«हिन्दी» 東京 it's 3.5")] == [
        "«", "हिन्दी", "»", "東", "京", "it", "'", "s", "3", ".", "5",
    ]  # fmt: skip
    assert tags_of("東京都", [Span(0, 2, "LOC")])[1] == ("B-LOC", "I-LOC", "O")


def test_tags_become_places_again():
    assert spans_of_tags(TEXT, TAGS) == [
        {"start": 0, "end": 8, "label": "PER", "text": "Ana Ruiz"},
        {"start": 17, "end": 22, "label": "LOC", "text": "Paris"},
    ]
    places = spans_of_tags("a b c d", ["I-X", "I-Y", "B-Y", None])
    assert [(place["start"], place["end"], place["label"]) for place in places] == [
        (0, 1, "X"),
        (2, 3, "Y"),
        (4, 5, "Y"),
    ]


@pytest.mark.parametrize(
    ("place", "message"),
    [
        (Span(17, 40, "LOC"), "within its 23 characters; found LOC from 17 to 40"),
        (Span(8, 9, "LOC"), "that hold a word"),
        (Span(4, 12, "LOC"), "share no word; found LOC from 4 to 12 over another one"),
    ],
)
def test_places_that_no_tags_can_say_are_refused(place, message):
    with pytest.raises(ValueError, match=message):
        tags_of(TEXT, [PLACES[0], place])
