import json
import random

import pytest
import yaml

from forerun.data.own.inspection_record import ChatCount
from forerun.errors import BadData, InvalidSettings
from forerun.hardware.detect import detect_cpu
from forerun.runs.data_proposal import propose, yaml_text
from forerun.settings.load import settings_from

CPU = detect_cpu().device
WORDS = [f"word{n}" for n in range(300)]


def text(n):
    return " ".join(random.Random(n).choices(WORDS, k=14))


def no_forecast(settings, device):
    """Stands in for a forecast, which takes seconds and has tests of its own."""
    raise InvalidSettings(f"not asked for: {settings.workload} on {device.name}.")


def write(tmp_path, rows, name="my data.jsonl"):
    (tmp_path / name).write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(tmp_path / name)


def proposal_of(tmp_path, rows, **options):
    return propose(write(tmp_path, rows), CPU, no_forecast, model=options.pop("model", "tiny-bert"), **options)


LABELLED = [{"text": text(n), "label": "ab"[n % 2]} for n in range(300)]


def test_the_file_says_what_was_seen_and_loads(tmp_path):
    proposal = proposal_of(tmp_path, LABELLED)
    written = yaml_text(proposal, "forerun init x")
    settings = settings_from(yaml.safe_load(written))
    assert settings == settings_from(proposal.content)
    assert (settings.workload, settings.data.format, settings.data.labels) == (
        "sequence-classification",
        "labelled",
        "one",
    )
    assert settings.data.fields == {"text": "text", "label": "label"}
    assert "# 300 rows (a JSON object each)" in written
    assert "95 % of rows have at most" in written
    assert "QUESTION" not in written
    assert "No forecast for" in written


def test_a_scale_is_a_question_with_its_default_marked(tmp_path):
    proposal = proposal_of(tmp_path, [{"text": text(n), "stars": 1 + n % 5} for n in range(300)])
    lines = yaml_text(proposal, "x").splitlines()
    place = next(n for n, line in enumerate(lines) if "QUESTION" in line and "stars" in line)
    assert "Default: one." in lines[place]
    assert [line.split("or: ")[1] for line in lines[place + 1 : place + 3]] == ["several", "number"]
    assert lines[place + 3].strip().startswith("labels: one")


def test_labels_between_commas_are_several_and_a_question(tmp_path):
    sets = ["red", "red, green", "green, blue", "blue, red", "blue"]
    proposal = proposal_of(tmp_path, [{"text": text(n), "labels": sets[n % 5]} for n in range(300)])
    data = settings_from(proposal.content).data
    assert (data.labels, data.label_separator) == ("several", ",")
    assert "QUESTION: what does labels hold? some of labels have ',' between labels." in yaml_text(proposal, "x")


def test_rows_that_could_be_two_things_are_a_question(tmp_path):
    rows = [{"question": text(n), "answer": text(-n - 1)} for n in range(300)]
    proposal = proposal_of(tmp_path, rows, model="tiny-gpt2")
    assert proposal.content["data"]["format"] == "prompt-completion"
    written = yaml_text(proposal, "x")
    assert "# QUESTION: what are the rows?" in written
    answer = "or: workload: embedding, format: pairs, fields: {anchor: question, positive: answer}, model: {name: "
    assert answer in written


def test_another_label_column_comes_with_what_it_holds(tmp_path):
    rows = [{"Title": text(n), "Tags": [["a"], ["a", "b"]][n % 2], "Score": n - 9} for n in range(120)]
    (question,) = proposal_of(tmp_path, rows).questions
    assert question.default == "format: labelled, fields: {text: Title, label: Score}"
    assert question.others[0].startswith(
        "workload: sequence-classification, format: labelled, fields: {text: Title, label: Tags}, labels: several ("
    )


def test_a_task_decides(tmp_path):
    proposal = proposal_of(tmp_path, LABELLED, task="masked-lm")
    assert (proposal.content["workload"], proposal.content["data"]["format"]) == ("masked-lm", "text")
    with pytest.raises(InvalidSettings, match="found 'classification'. Nearest: .*sequence-classification"):
        proposal_of(tmp_path, LABELLED, task="classification")


@pytest.mark.parametrize(("words", "new_tokens"), [(3, 16), (36, 56), (2000, 64)])
def test_chats_and_completions_get_written_answers_of_a_bounded_length(tmp_path, words, new_tokens):
    for name, row in (
        ("chat", {"messages": [{"role": "user", "content": "Hi {}"}, {"role": "assistant", "content": "{}"}]}),
        ("completion", {"prompt": "Hi {}", "completion": "{}"}),
    ):
        source = tmp_path / f"{name}.jsonl"
        text = json.dumps(row)
        source.write_text("".join(text.replace("{}", f"{n:04} " + "word " * words) + "\n" for n in range(300)))
        proposal = propose(str(source), CPU, no_forecast, model="smollm2-135m", task="causal-lm")
        assert settings_from(proposal.content).evaluation.new_tokens == new_tokens
        assert f"new_tokens: {new_tokens}  # tokens of an answer" in yaml_text(proposal, "forerun init")


def test_texts_get_no_written_answers(tmp_path):
    (tmp_path / "a.jsonl").write_text("".join(json.dumps({"text": f"text {n} of it"}) + "\n" for n in range(300)))
    proposal = propose(str(tmp_path / "a.jsonl"), CPU, no_forecast, model="smollm2-135m", task="causal-lm")
    assert "evaluation" not in proposal.content


def test_the_length_of_chats_is_that_with_their_template(tmp_path):
    """`init` of short chats proposed 24 tokens, in which no answer was left."""
    messages = [[{"role": "user", "content": f"{n}?"}, {"role": "assistant", "content": f"{n}!"}] for n in range(300)]
    rows = [{"messages": each} for each in messages]
    estimate = proposal_of(tmp_path, rows, model="tiny-gpt2")
    counted = proposal_of(
        tmp_path, rows, model="tiny-gpt2",
        count_chats=lambda settings, rows: ChatCount(lengths=[90] * len(rows), are_counted=True),
    )  # fmt: skip
    assert estimate.content["batch"]["sequence_length"] == 16
    assert counted.content["batch"]["sequence_length"] == 104
    assert "at most 90 tokens (counted, with the chat template's)" in counted.reasons["batch.sequence_length"]
    assert counted.inspection.has_template_tokens


@pytest.mark.parametrize(
    ("reads", "repair", "words"),
    [
        (True, [], ()),
        (
            False,
            ["tool-calls"],
            (
                "300 sampled rows call tools",
                "# warning: 300 of 300 sampled rows describe tools, which the chat template",
            ),
        ),
        (None, [], ("# note: 300 of 300 sampled rows describe or call tools. Whether the chat template",)),
    ],
)
def test_calls_are_written_as_text_where_the_template_leaves_them_out(tmp_path, reads, repair, words):
    call = {"role": "assistant", "content": None, "tool_calls": [{"function": {"name": "add", "arguments": "{}"}}]}
    tools = [{"type": "function", "function": {"name": "add"}}]
    rows = [{"messages": [{"role": "user", "content": f"{n}?"}, call], "tools": tools} for n in range(300)]

    def count(settings, rows):
        assert all(row.tools and row.messages[1].calls for row in rows)
        return ChatCount(tools=len(rows), calls=len(rows), are_tools_read=reads, are_calls_read=reads)

    proposal = proposal_of(tmp_path, rows, model="tiny-gpt2", count_chats=count)
    settings = settings_from(proposal.content)
    assert settings.data.fields == {"messages": "messages", "tools": "tools"}
    assert settings.data.repair == repair
    text = yaml_text(proposal, "x")
    assert ("chat template" in text) == bool(words)
    assert all(word in text for word in words)


def test_bad_rows_are_a_question_and_counted(tmp_path):
    proposal = proposal_of(tmp_path, [*LABELLED, {"text": "", "label": "a"}, {"text": "x y", "label": None}])
    assert settings_from(proposal.content).data.repair == ["empty-texts", "missing-labels"]
    assert "# QUESTION: 1 bad row: empty-texts leaves rows with an empty text out." in yaml_text(proposal, "x")


def test_the_data_are_not_changed(tmp_path):
    source = write(tmp_path, LABELLED)
    before = (tmp_path / "my data.jsonl").read_bytes()
    propose(source, CPU, no_forecast, model="tiny-bert")
    assert (tmp_path / "my data.jsonl").read_bytes() == before
    assert len(list(tmp_path.iterdir())) == 1


def test_no_file_is_an_error(tmp_path):
    with pytest.raises(BadData, match="Check the path"):
        propose(str(tmp_path / "gone.csv"), CPU, no_forecast)


def test_a_split_with_a_word_for_no_part_is_a_question_with_its_default_marked(tmp_path):
    parts = ["train"] * 8 + ["test", "validation"]
    rows = [{**row, "split": parts[n % 10]} for n, row in enumerate(LABELLED)]
    assert "split" not in propose(write(tmp_path, rows), CPU, no_forecast, model="tiny-bert").content["data"]["fields"]
    proposal = proposal_of(tmp_path, [*rows, {**LABELLED[0], "text": "last", "split": "prompt"}])
    written = yaml_text(proposal, "x")
    settings = settings_from(yaml.safe_load(written))
    assert settings.data.fields["split"] == "none"
    assert sum(proposal.inspection.parts.values()) == 301
    question = next(line for line in written.splitlines() if "# QUESTION:" in line)
    assert "'split' says 'prompt'" in question
    assert "Default: split: none" in question


def test_a_share_is_not_written_for_a_part_that_the_data_bring(tmp_path):
    parts = ["train"] * 8 + ["test", "train"]
    proposal = proposal_of(tmp_path, [{**row, "split": parts[n % 10]} for n, row in enumerate(LABELLED)])
    data = proposal.content["data"]
    assert "test" not in data
    assert data["validation"] == 0.1
    assert " 30 test (test as the data say)" in yaml_text(proposal, "x")


def test_weights_of_a_local_folder_are_counted(tmp_path):
    """A small model is trained whole, and nobody is told of weights that it does not have."""
    from transformers import GPT2Config, GPT2LMHeadModel

    folder = tmp_path / "own"
    GPT2LMHeadModel(GPT2Config(n_embd=32, n_layer=1, n_head=2, vocab_size=400, n_positions=64)).save_pretrained(folder)
    proposal = proposal_of(tmp_path, [{"text": text(n)} for n in range(300)], model=str(folder))
    assert "adapter" not in proposal.content
    for path in folder.glob("*.safetensors"):
        path.write_bytes(b"broken")
    proposal = proposal_of(tmp_path, [{"text": text(n)} for n in range(300)], model=str(folder))
    assert proposal.reasons["adapter.kind"] == "adapters, not all weights: less memory, less forgotten"


@pytest.mark.parametrize(
    ("every", "weights"), [(2, []), (4, ["undesirable_weight"]), (0, None)]
)  # of 300 rows every second or fourth is undesirable, or none
def test_answers_with_verdicts_are_learned_by_kto(tmp_path, every, weights):
    rows = [{"prompt": text(n), "completion": text(-n - 1), "label": not every or n % every > 0} for n in range(300)]
    proposal = proposal_of(tmp_path, rows, model="tiny-gpt2")
    settings = settings_from(proposal.content)
    assert (settings.workload, settings.data.format, settings.preference.loss) == (
        "preference", "unpaired-preference", "kto",
    )  # fmt: skip
    kinds = {finding.kind: finding.weight for finding in proposal.inspection.findings}
    if weights is None:
        assert kinds["one class"] == "stop"
        return
    assert "one class" not in kinds
    good, bad = (proposal.inspection.labels[kind] for kind in ("desirable", "undesirable"))
    assert f"loss: kto  # {good} desirable and {bad} undesirable answers" in yaml_text(proposal, "x")
    expected = {name: pytest.approx(good / bad, abs=0.01) for name in weights}
    assert proposal.content["preference"] == {"loss": "kto", **expected}


def test_the_rarer_kind_of_answer_weighs_more_where_most_are_bad(tmp_path):
    rows = [{"prompt": text(n), "completion": text(-n - 1), "label": n % 4 == 0} for n in range(300)]
    proposal = proposal_of(tmp_path, rows, model="tiny-gpt2")
    assert proposal.content["preference"] == {"loss": "kto", "desirable_weight": 3.0}
