import pytest

from forerun.serving.hidden_words import filled_text, likeliest


@pytest.mark.parametrize(
    ("text", "tokens", "filled"),
    [
        ("the <mask> sat", [" cat"], "the cat sat"),
        ("the<mask> sat", [" cat"], "the cat sat"),
        ("<mask> cats <mask>", ["two", " sit"], "two cats sit"),
        ("play <mask>.", ["##ing"], "playing."),
        ("a <mask> b <mask>", ["x", None], "a x b <mask>"),
    ],
)
def test_tokens_take_the_places_of_masks(text, tokens, filled):
    assert filled_text(text, "<mask>", tokens) == filled


def test_as_many_candidates_as_asked_for():
    assert likeliest({"masks": [[1, 2, 3], None]}, 2) == {"masks": [[1, 2], None]}
