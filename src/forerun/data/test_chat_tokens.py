from functools import partial

import pytest
from tokenizers import Tokenizer, models
from transformers import PreTrainedTokenizerFast

from forerun.data.chat_tokens import GEMMA_TEMPLATE, SMALL_TEMPLATE, ChatTokens, small_tokenizer
from forerun.data.template_limits import limited_time
from forerun.data.token_data import IGNORED
from forerun.errors import InvalidSettings
from forerun.recipes.code_lora.data.templates import draw_documents, draw_rows

WORDS = ("<pad>", "<eos>", "<bos>", "<start_of_turn>", "<end_of_turn>", "user", "model", "hello", "code", "\n")


def tokenizer_of(words=WORDS, template=None, **special):
    inner = Tokenizer(models.WordLevel({word: number for number, word in enumerate(words)}, unk_token="hello"))
    inner.add_special_tokens([word for word in words if word.startswith("<")])
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=inner, **special)
    tokenizer.chat_template = template
    return tokenizer


@pytest.fixture(scope="module")
def tokens():
    texts = [before + after for before, after in draw_documents(300, 0)]
    texts += [f"{row['instruction']}\n{row['output']}" for row in draw_rows(300, 0)]
    return ChatTokens.around(small_tokenizer(texts, 600), "small")


def test_loss_is_on_the_answer_and_its_end_alone(tokens):
    sample = tokens.sample("Write it.", "```python\nx = 1\n```")
    prompt = tokens.prompt("Write it.")
    assert list(sample.ids[: len(prompt)]) == prompt
    assert set(sample.target[: len(prompt)]) == {IGNORED}
    assert list(sample.target[len(prompt) :]) == list(sample.ids[len(prompt) :])
    assert sample.ids[-1] in tokens.end_ids
    assert tokens.text(sample.ids[len(prompt) : -1]) == "```python\nx = 1\n```"
    assert tokens.pad_id not in sample.ids
    assert not tokens.is_tuned


def test_every_text_comes_back(tokens):
    for text in ("def solve(xs):\n\tpass\n", "naïve → ünïcode", "  12 345 a_b  "):
        assert tokens.text(tokens.continuation_prompt(text)) == text


def test_numbers_are_the_same_tokens_wherever_they_stand(tokens):
    inside, outside = tokens.continuation_prompt("v + 37"), tokens.continuation_prompt("(37")
    assert inside[-1] == outside[-1]


def test_base_gemma_gets_its_dialogue_and_its_own_pad_token():
    chat = ChatTokens.around(
        tokenizer_of(pad_token="<pad>", eos_token="<eos>", bos_token="<bos>"), "gemma"
    )  # fmt: skip
    assert chat.tokenizer.chat_template == GEMMA_TEMPLATE
    assert chat.pad_id == WORDS.index("<pad>")
    assert set(chat.end_ids) == {WORDS.index("<end_of_turn>"), WORDS.index("<eos>")}
    assert chat.prompt("hello")[0] == WORDS.index("<bos>")
    assert chat.sample("hello", "code").ids[-1] == WORDS.index("<end_of_turn>")
    assert not chat.is_tuned


def test_padding_with_the_end_token_is_replaced():
    chat = ChatTokens.around(
        tokenizer_of(template=SMALL_TEMPLATE.replace("<end>", "<eos>"), pad_token="<eos>", eos_token="<eos>"), "m"
    )
    assert chat.pad_id == WORDS.index("<pad>") != chat.end_ids[0]


EVERY = "{% for m in messages %}{{ m['content'] }}{% endfor %}"


@pytest.mark.parametrize(
    ("make_tokenizer", "words"),
    [
        (lambda: tokenizer_of(words=WORDS[5:], template=EVERY + "code", eos_token="user"), "pad token"),
        (lambda: tokenizer_of(words=WORDS[5:], eos_token="user"), "chat template"),
        (lambda: tokenizer_of(template=EVERY, pad_token="<pad>"), "stops"),
        (lambda: tokenizer_of(template="{{ messages[0]['content'] }}code"), "it leaves out what they say"),
    ],
)  # fmt: skip
def test_what_is_missing_is_said(make_tokenizer, words):
    with pytest.raises(InvalidSettings, match=words):
        ChatTokens.around(make_tokenizer(), "m")


@pytest.mark.parametrize(
    ("template", "raised"),
    [
        ("{{ ''.__class__.__mro__[1].__subclasses__() }}", "SecurityError"),
        ("{% for %}", "TemplateSyntaxError"),
        ("{{ raise_exception('no') }}", r"no \(TemplateError\)"),
        ("{{ a.b.c }}", "UndefinedError"),
        ("{{ 1 / 0 }}", "ZeroDivisionError"),
        ("{{ 1 + 'a' }}", "TypeError"),
        ("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", "RecursionError"),
        ("{% for a in range(1000000) %}{% endfor %}", "OverflowError"),
        ("{{ 'x' * 20000000000 }}", "MemoryError"),
    ],
)
def test_a_hostile_template_is_refused_in_words(template, raised):
    tokenizer = small_tokenizer(["one two three four"] * 4, 300)
    tokenizer.chat_template = template
    with pytest.raises(InvalidSettings, match=f"the chat template of theirs must render .* raised .*{raised}"):
        ChatTokens.around(tokenizer, "theirs")


def test_a_template_that_never_ends_is_refused(monkeypatch):
    monkeypatch.setattr("forerun.data.chat_tokens.limited_time", partial(limited_time, 0.3))
    tokenizer = small_tokenizer(["one two three four"] * 4, 300)
    loop = "{% for b in range(99999) %}"
    tokenizer.chat_template = f"{loop}{loop}{loop}{'{% endfor %}' * 3}"
    with pytest.raises(InvalidSettings, match="must render .* did not end within"):
        ChatTokens.around(tokenizer, "theirs")


def test_a_template_that_wants_parts_gets_them():
    """Models that see: the text of a message is one part of it."""
    template = SMALL_TEMPLATE.replace(
        "{{ message['content'] }}", "{% for p in message.content %}{{ p.text }}{% endfor %}"
    )
    assert "p.text" in template
    plain, parts = (ChatTokens.around(tokenizer_of(template=each), "m") for each in (SMALL_TEMPLATE, template))
    assert (plain.has_parts, parts.has_parts) == (False, True)
    assert parts.prompt("code") == plain.prompt("code")
    assert parts.end_ids == plain.end_ids
