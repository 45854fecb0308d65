"""Chats whose template writes them anew are several rows, and answers stand behind what the template writes then."""

import json

import pytest

from forerun.data.own.row_kinds import REASONING, ChatRow, PreferenceRow, Turn
from forerun.data.token_data import IGNORED
from forerun.errors import BadData
from forerun.own.chat_encoder import ChatEncoder
from forerun.own.tokens import learned_tokenizer
from forerun.settings.schema import ModelSettings, Settings

TINY = {"n_embd": 32, "n_layer": 1, "n_head": 2, "vocab_size": 400, "n_positions": 1024}
SETTINGS = Settings(name="x", workload="causal-lm", model=ModelSettings(name="tiny-gpt2", config=TINY))
BEGIN = "{% for m in messages %}{{ '<' + m.role + '>\n' }}"
END = "{{ m.content }}</s>\n{% endfor %}"
FORGETS = BEGIN + "{% if m.role == 'assistant' and loop.last %}<think>\n\n</think>\n\n{% endif %}" + END
FORGETS += "{% if add_generation_prompt %}{{ '<assistant>\n' }}{% endif %}"
"""As Qwen3's: the last answer has a place for reasoning, earlier ones do not."""
THINKS = BEGIN + "{% if m.role == 'assistant' %}<think></think>{% endif %}" + END
THINKS += (
    "{% if add_generation_prompt %}{{ '<assistant>\n<think>' + ('</think>' if enable_thinking is false else '\n') }}"
)
THINKS += "{% endif %}"
"""As Nemotron 3's: an answer without reasoning does not begin as the generation prompt asks for."""
STARTS = BEGIN + END + "{% if add_generation_prompt %}{{ '<assistant>\n<think>\n' }}{% endif %}"
"""As DeepSeek-R1's: no answer begins as the generation prompt asks for."""
PLAIN = BEGIN + END + "{% if add_generation_prompt %}{{ '<assistant>\n' }}{% endif %}"
CHAT = ChatRow(
    (Turn("user", "first?"), Turn("assistant", "one"), Turn("user", "second?"), Turn("assistant", "two"))
)  # fmt: skip


def encoder_of(template):
    tokenizer = learned_tokenizer(SETTINGS, ["first second one two think"] * 3)
    tokenizer.chat_template = template
    return ChatEncoder(tokenizer, SETTINGS)


def texts(encoder, sample):
    both = zip(sample.ids, sample.target, strict=True)
    shown = [token for token, label in both if label == IGNORED]
    return encoder.tokenizer.decode(shown), encoder.tokenizer.decode([t for t in sample.target if t != IGNORED])


def test_each_answer_is_a_row_behind_what_the_template_writes_before_it():
    encoder = encoder_of(FORGETS)
    losses = {}
    samples = list(encoder.samples([CHAT, ChatRow(CHAT.messages[:2])], losses))
    assert losses == {"cut": 0, "empty": 0, "spelled": 0, "divided": 1}
    first = ("<user>\nfirst?</s>\n<assistant>\n", "<think>\n\n</think>\n\none</s>")
    second = "<user>\nfirst?</s>\n<assistant>\none</s>\n<user>\nsecond?</s>\n<assistant>\n"
    assert [texts(encoder, sample) for sample in samples] == [first, (second, "<think>\n\n</think>\n\ntwo</s>"), first]


def test_what_the_template_only_adds_to_stays_one_row():
    """Answers of one question, as calls of tools make them, are not dropped until the next question comes."""
    last = "{% set last = messages | map(attribute='role') | list %}"
    template = FORGETS.replace("and loop.last", "and 'user' not in last[loop.index0:]")
    encoder = encoder_of(last + template)
    twice = ChatRow((*CHAT.messages[:2], Turn("tool", "r"), Turn("assistant", "then"), *CHAT.messages[2:]))
    (samples,) = encoder.whole_samples([(twice, 0)])
    answers = ["".join(texts(encoder, sample)[1].split()) for sample in samples]
    assert answers == ["<think></think>one</s><think></think>then</s>", "<think></think>two</s>"]


@pytest.mark.parametrize(
    ("template", "asks", "prompt", "answer"),
    [
        (THINKS, "quiet", "<assistant>\n<think></think>", "two</s>"),
        (STARTS, "bare", "<assistant>\n", "two</s>"),
        (FORGETS, "own", "<assistant>\n", "<think>\n\n</think>\n\ntwo</s>"),
    ],
)
def test_an_answer_is_asked_for_as_it_was_trained(template, asks, prompt, answer):
    encoder = encoder_of(template)
    encoder.ask_as([CHAT])
    assert encoder.asks == asks
    assert bool(encoder.other_prompt()) == (asks != "own")
    sample = list(encoder.samples([CHAT], {}))[-1]
    assert texts(encoder, sample)[1].endswith(answer)
    prompt_ids = encoder.prompt(CHAT)
    assert encoder.tokenizer.decode(prompt_ids).endswith(prompt)
    assert list(sample.ids[: len(prompt_ids)]) == prompt_ids


def test_rows_with_reasoning_are_asked_for_it():
    encoder = encoder_of(THINKS.replace("<think></think>", "<think>\nso</think>"))
    encoder.ask_as([CHAT])
    assert encoder.asks == "own"
    assert texts(encoder, next(encoder.samples([CHAT], {})))[1] == "so</think>one</s>so</think>two</s>"


def test_an_answer_of_a_preference_is_one_row():
    encoder = encoder_of(FORGETS)
    encoder.ask_as([PreferenceRow(CHAT.messages[:3], CHAT.messages[3:], (Turn("assistant", "2"),))])
    assert texts(encoder, encoder.sample(CHAT, 3))[1].endswith("two</s>")
    with pytest.raises(BadData, match="has several turns of the assistant"):
        encoder.sample(CHAT)


def test_reasoning_in_a_field_of_its_own_is_learned_where_the_template_writes_it():
    writes = BEGIN + "{% if m.reasoning_content %}<think>{{ m.reasoning_content }}</think>{% endif %}" + END
    writes += "{% if add_generation_prompt %}{{ '<assistant>\n' }}{% endif %}"
    more = json.dumps({name: "so" for name in REASONING})
    chat = ChatRow((Turn("user", "first?"), Turn("assistant", "one", more)))
    encoder = encoder_of(writes)
    assert texts(encoder, encoder.sample(chat))[1] == "<think>so</think>one</s>"
    assert encoder.unread_reasoning([chat]) == ()
    (line,) = encoder_of(FORGETS).unread_reasoning([chat, CHAT])
    assert line.startswith("Answers of 1 of the first 2 training rows have reasoning")


@pytest.mark.parametrize("template", [PLAIN, FORGETS], ids=["adds", "forgets"])
def test_answers_of_weight_0_carry_no_loss(template):
    encoder, losses = encoder_of(template), {}
    first, answer, *rest = CHAT.messages
    left = Turn(answer.role, answer.content, '{"weight": 0}')
    (sample,) = [each for each in encoder.samples([ChatRow((first, left, *rest))], losses)]
    assert texts(encoder, sample)[1].removeprefix("<think>\n\n</think>\n\n") == "two</s>"
    assert "one" in texts(encoder, sample)[0]
    if template == PLAIN:
        assert list(sample.ids) == list(encoder.sample(CHAT).ids)
    assert list(encoder.samples([ChatRow((first, left))], losses)) == []
    assert losses["empty"] == 1
