"""What is shown is what is trained: answers of chats carry loss, prompts and padding do not."""

import json

import pytest
from tokenizers import Tokenizer, decoders, models
from transformers import PreTrainedTokenizerFast

from forerun.own.experiment import open_task
from forerun.own.look import look_at, token_texts
from forerun.own.tokens import learned_tokenizer
from forerun.settings.load import settings_from


def settings(tmp_path, rows, workload, model, **data):
    path = tmp_path / "rows.jsonl"
    path.write_text("\n".join(json.dumps(row) for row in rows))
    return settings_from(
        {
            "name": "l", "workload": workload, "model": {"name": model},
            "batch": {"micro_batch_size": 2, "sequence_length": 64, "padding": "longest"},
            "data": {"source": str(path), **data},
        }
    )  # fmt: skip


def learned(side):
    return "".join(token.text for token in side.tokens if token.carries_loss)


def test_only_answers_of_a_chat_carry_loss(tmp_path):
    rows = [
        {"messages": [{"role": "system", "content": "be brief"}, {"role": "user", "content": f"after {n}?"},
                      {"role": "assistant", "content": f"it is {n + 1}"}]}
        for n in range(40)
    ]  # fmt: skip
    look = look_at(settings(tmp_path, rows, "causal-lm", "tiny-llama"), rows=2)
    assert look.format == "messages"
    assert len(look.rows) == 2
    for row in look.rows:
        (side,) = row.sides
        whole = "".join(token.text for token in side.tokens)
        assert "be brief" in whole
        answer = learned(side)
        assert answer.startswith("it is ")
        assert "after" not in answer


def test_a_rewriting_shows_what_is_read_and_what_is_to_be_written(tmp_path):
    rows = [{"source": f"word {n}", "target": f"WORD {n}"} for n in range(40)]
    (row,) = look_at(settings(tmp_path, rows, "seq2seq-lm", "tiny-t5"), rows=1).rows
    assert [side.name for side in row.sides] == ["text", "answer"]
    assert learned(row.sides[0]) == ""
    assert learned(row.sides[1]).startswith("WORD")


@pytest.mark.parametrize(("value", "shown"), [("pos", "pos"), (["a", "b"], "a, b")])
def test_the_label_of_a_row_is_named(tmp_path, value, shown):
    others = {"pos": "neg", ("a", "b"): ["c"]}[value if isinstance(value, str) else tuple(value)]
    rows = [{"text": f"{'yes' if n % 2 else 'no'} text {n}", "label": value if n % 2 else others} for n in range(40)]
    look = look_at(settings(tmp_path, rows, "sequence-classification", "tiny-bert"), rows=40)
    labels = {row.label for row in look.rows if "yes" in "".join(token.text for token in row.sides[0].tokens)}
    assert labels == {shown}
    assert look.loss_share == 0


CALL = {"type": "function", "function": {"name": "weather", "arguments": '{"city": "Rome"}'}}
TOOLS = json.dumps([{"type": "function", "function": {"name": "weather", "description": "How warm it is."}}])


def chats_with_tools():
    return [
        {
            "messages": [
                {"role": "user", "content": f"Is it {n} degrees?"},
                {"role": "assistant", "content": None, "tool_calls": [CALL]},
                {"role": "tool", "content": f"It is {n + 1}."},
                {"role": "assistant", "content": f"no, {n + 1}"},
            ],
            "tools": TOOLS,
        }
        for n in range(40)
    ]


def test_the_model_sees_the_tools_and_learns_to_call_them(tmp_path):
    own = settings(tmp_path, chats_with_tools(), "causal-lm", "tiny-llama")
    look = look_at(own.model_copy(update={"batch": own.batch.model_copy(update={"sequence_length": 256})}), rows=1)
    assert look.fields == {"messages": "messages", "tools": "tools"}
    (side,) = look.rows[0].sides
    whole = "".join(token.text for token in side.tokens)
    assert "How warm it is." in whole
    assert "It is " in whole
    answer = learned(side)
    assert '<tool_call>\n{"name": "weather", "arguments": {"city": "Rome"}}' in answer
    assert "no, " in answer
    assert "How warm" not in answer
    assert "It is " not in answer


@pytest.mark.parametrize("workload", ["causal-lm", "preference"])
def test_a_template_that_leaves_tools_out_is_a_warning_of_the_forecast(tmp_path, workload, monkeypatch):
    rows = [
        {"prompt": f"Is it {n}?", "chosen": f"no, {n}", "rejected": f"yes, {n}", "tools": TOOLS} for n in range(40)
    ] if workload == "preference" else [
        {"messages": [{"role": "user", "content": f"{n}?"}, {"role": "assistant", "content": f"{n}!"}], "tools": TOOLS}
        for n in range(40)
    ]  # fmt: skip
    own = settings(tmp_path, rows, workload, "tiny-llama")
    own = own.model_copy(update={"batch": own.batch.model_copy(update={"sequence_length": 256})})
    assert not any("Tools are described" in line for line in open_task(own).assumptions)
    plain = "{% for m in messages %}<{{ m['role'] }}>\n{{ m['content'] }}</s>\n{% endfor %}"
    plain += "{% if add_generation_prompt %}<assistant>\n{% endif %}"
    monkeypatch.setattr("forerun.own.tokens.CHAT_TEMPLATE", plain)
    (line,) = [line for line in open_task(own).assumptions if "Tools are described" in line]
    assert "does not write them" in line


def test_a_letter_of_several_tokens_is_shown_as_a_letter():
    own = settings_from({"workload": "causal-lm", "name": "t", "model": {"name": "tiny-llama"}})
    tokenizer = learned_tokenizer(own, ["no letter beyond ascii"])
    ids = tokenizer("<s>Größe 本 😀 ok</s>", add_special_tokens=False)["input_ids"]
    texts = token_texts(ids, tokenizer)
    assert "".join(texts) == "<s>Größe 本 😀 ok</s>"
    assert (texts[0], texts[-1], len(texts)) == ("<s>", "</s>", len(ids))
    half = tokenizer("ö", add_special_tokens=False)["input_ids"][0]
    assert token_texts([half, half, *ids, half], tokenizer) == ["Ã", "Ã", *texts, "Ã"]


def test_words_of_word_pieces_stand_apart():
    words = ["[UNK]", "[CLS]", "like", "mike", "##s", ",", "too"]
    inner = Tokenizer(models.WordPiece({word: place for place, word in enumerate(words)}, unk_token="[UNK]"))
    inner.decoder = decoders.WordPiece()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=inner, unk_token="[UNK]", cls_token="[CLS]")
    assert token_texts([1, 2, 3, 4, 5, 6], tokenizer) == ["[CLS]", " like", " mike", "s", ",", " too"]
