"""A model of each generic workload, trained in seconds, answers a file of rows, a prompt and requests over HTTP."""

import csv
import json
import re

import pytest
from starlette.testclient import TestClient
from transformers import pipeline

from forerun.cli.used_run import used_run
from forerun.errors import BadData, InvalidSettings, NotSupported
from forerun.hardware.detect import detect
from forerun.own.facts import how_to_read
from forerun.own.trained import open_trained
from forerun.runs.export import export_run
from forerun.runs.run import run_folder
from forerun.serving.app import make_text_app
from forerun.serving.predictions import predict_file
from forerun.serving.row_model import KINDS, RowModel
from forerun.serving.writing import Sampling, writer_of
from own_driver import training_of
from own_sets import SETS

pytestmark = pytest.mark.filterwarnings("ignore::forerun.train.loop.NotLearningWarning")
EPOCHS = {"one": 6, "tags": 6, "spans": 6}
ANSWER_COLUMNS = {
    "one": {"label", "probability", "probabilities"}, "several": {"labels", "probabilities"}, "number": {"number"},
    "pair": {"label", "probability", "probabilities"}, "tags": {"tags"}, "spans": {"tags", "spans"}, "pairs": {"vector"}, "triplets": {"vector"},
    "text": {"text"}, "packed": {"text"}, "chat": {"text"}, "translation": {"text"}, "preference": {"text"},
    "kto": {"text"},
    "completion": {"text"},
}  # fmt: skip
ASKED = {
    "one": {"text": "a good film"}, "several": {"text": "we go out rain"}, "number": {"text": "much the film much"},
    "pair": {"text": "good", "pair": "bad"}, "tags": {"words": ["the", "mr", "good", "bad"]},
    "spans": {"text": "the mr good bad, mr"},
    "pairs": {"anchor": "good sad film"}, "triplets": {"anchor": "good sad film"}, "text": {"text": "the dog"},
    "packed": {"text": "the dog"}, "chat": {"messages": [{"role": "user", "content": "after 2?"}]},
    "translation": {"source": "ab cd"}, "preference": {"prompt": "how is the rain?"}, "kto": {"prompt": "how is the rain?"},
    "completion": {"prompt": "after 2"},
}  # fmt: skip


def trained(tmp_path, kind):
    """A model that was trained for seconds, without forecast or verdict."""
    _, training = training_of(tmp_path, kind, schedule={"epochs": EPOCHS.get(kind, 1), "warmup_steps": 4})
    for _ in training.steps():
        pass
    return open_trained(tmp_path)


@pytest.mark.medium
@pytest.mark.parametrize("kind", ANSWER_COLUMNS)
def test_rows_without_answers_are_answered(tmp_path, kind):
    model = trained(tmp_path, kind)
    (tmp_path / "new.jsonl").write_text(json.dumps({**ASKED[kind], "id": 7}) + "\n")
    to = tmp_path / "answers.jsonl"
    written = predict_file(model, str(tmp_path / "new.jsonl"), to, sampling=Sampling(new_tokens=8), name=kind)
    (row,) = [json.loads(line) for line in to.read_text().splitlines()]
    assert written.rows == 1
    assert row["id"] == 7
    answer = set(row) - set(ASKED[kind]) - {"id"}
    assert {name.removeprefix("predicted_") for name in answer} == ANSWER_COLUMNS[kind]
    with pytest.raises(InvalidSettings, match="overwrite"):
        predict_file(model, str(tmp_path / "new.jsonl"), to, sampling=Sampling(), name=kind)
    (tmp_path / "bad.jsonl").write_text(json.dumps({"nothing": 1}) + "\n")
    missing = "a column .* which the model reads .*; found 'nothing'. Rename the column"
    with pytest.raises(
        BadData, match="row 1" if kind == "preference" else missing
    ):  # its prompt may lie in the answers
        predict_file(model, str(tmp_path / "bad.jsonl"), tmp_path / "b.jsonl", sampling=Sampling(), name=kind)
    assert not list(tmp_path.glob("b.jsonl*"))


@pytest.mark.medium
def test_rows_without_a_text_keep_their_place_and_have_no_answer(tmp_path):
    model, new = trained(tmp_path, "one"), tmp_path / "new.csv"

    def predicted(texts, to, repair=()):
        new.write_text("".join(f"{n},{text}\n" for n, text in enumerate(["text", *texts])))
        return predict_file(model, str(new), tmp_path / to, sampling=Sampling(), name="one", repair=repair)

    texts = ["", "", *["a good film"] * 300, " ", "a bad film"]
    with pytest.raises(BadData, match=r"row 1: .* holds text; found none. Correct it, or add --repair empty-texts"):
        predicted(texts, "a.csv")
    result = predicted(texts, "b.csv", ["empty-texts"])
    assert (result.rows, result.unanswered, len(result.repairs)) == (304, 3, 1)
    with (tmp_path / "b.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["text"] for row in rows] == texts
    assert all(bool(row["label"]) == bool(row["text"].strip()) for row in rows)
    with pytest.raises(BadData, match="found 2 rows without one"):
        predicted(["", " "], "c.csv", ["empty-texts"])


@pytest.mark.medium
def test_answers_to_a_table_are_right_and_those_of_the_service(tmp_path):
    model = trained(tmp_path, "one")
    to = tmp_path / "answers.csv"
    source = model.settings.data.source
    assert source is not None
    predict_file(model, source, to, sampling=Sampling(), name="one")
    with to.open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert sum(row["label"] == row["predicted_label"] for row in rows) / len(rows) > 0.9
    with TestClient(make_text_app("one", rows=RowModel(model), hosts=["testserver"])) as client:
        answers = client.post("/v1/classify", json={"input": [row["text"] for row in rows[:20]]}).json()["data"]
        refused = client.post("/v1/classify", json={"input": {"text": "a", "pair": "b"}})
    assert [answer["label"] for answer in answers] == [row["predicted_label"] for row in rows[:20]]
    assert not any(answer["truncated"] for answer in answers)
    long = tmp_path / "long.jsonl"
    long.write_text(json.dumps({"text": "good " * 200}) + "\n" + json.dumps({"text": "good"}) + "\n")
    result = predict_file(model, str(long), tmp_path / "cut.jsonl", sampling=Sampling(), name="one")
    assert (result.rows, result.truncated) == (2, 1)
    assert (refused.status_code, "single texts" in refused.text) == (400, True)


@pytest.mark.medium
def test_tags_stand_beside_their_words(tmp_path):
    model = RowModel(trained(tmp_path, "tags"))
    (answer,) = model.answer([("the mr good bad", None)])
    assert answer["tags"] == ["O", "O", "B-NAME", "I-NAME"]
    (cut,) = model.answer([(" ".join(["the"] * 60), None)])
    assert cut["tags"][-1] is None
    assert len(cut["tags"]) == 60
    assert (answer["truncated"], cut["truncated"]) == (False, True)


@pytest.mark.medium
def test_places_in_a_text_are_answered_by_the_service(tmp_path):
    text = "the mr good bad, the mr bad good"
    with TestClient(make_text_app("spans", rows=RowModel(trained(tmp_path, "spans")), hosts=["testserver"])) as client:
        (answer,) = client.post("/v1/classify", json={"input": [text]}).json()["data"]
    assert answer["words"] == ["the", "mr", "good", "bad", ",", "the", "mr", "bad", "good"]
    assert answer["truncated"] is False
    assert answer["spans"][0] == {"start": 7, "end": 15, "label": "NAME", "text": "good bad"}


@pytest.mark.medium
def test_hidden_words_are_those_of_transformers_pipeline(tmp_path):
    from transformers import pipeline

    model = trained(tmp_path, "masked")
    texts = ["the dog <mask> and the cat <mask>.", "<mask> bird sings" + " and the dog barks" * 20 + " <mask>"]
    answers = RowModel(model).answer([(text, None) for text in texts])
    fill = pipeline("fill-mask", model=model.model, tokenizer=model.tokenizer, device="cpu", top_k=5)
    for place, candidates in zip(answers[0]["masks"], fill(texts[0]), strict=True):
        assert [one["id"] for one in place[:5]] == [one["token"] for one in candidates]
        assert [one["probability"] for one in place[:5]] == pytest.approx([o["score"] for o in candidates], abs=2e-6)
    assert "<mask>" not in answers[0]["filled"]
    assert answers[1]["masks"][1] is None  # behind the sequence length
    assert answers[1]["filled"].endswith(" <mask>")
    with pytest.raises(NotSupported, match="fills in <mask>"):
        RowModel(model).answer([("no word is hidden", None)])


@pytest.mark.medium
@pytest.mark.parametrize(
    ("kind", "prompt"),
    [("text", "the dog"), ("chat", "after 2?"), ("completion", "after 2"), ("preference", "how is the rain?")],
)
def test_an_exported_writer_says_in_transformers_what_it_says_here(tmp_path, kind, prompt):
    """Asked as somebody would who knows nothing of the run: in the chat template if there is one, else as text."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    experiment, training = training_of(tmp_path, kind, schedule={"epochs": 4, "warmup_steps": 4})
    for _ in training.steps():
        pass
    export_run("run", experiment, detect().device, tmp_path, tmp_path / "export", merge=False)
    trained = open_trained(tmp_path)
    for folder in (tmp_path, tmp_path / "export"):  # as a command finds it on a machine whose ledger has no such run
        assert open_trained(run_folder(used_run(str(folder)))).facts == trained.facts
    writer = writer_of(trained, kind)
    message = [{"role": "user", "content": prompt}]
    ids = writer.chat_ids(message) if writer.is_chat else writer.text_ids(prompt)
    samples = experiment.data.sides[""] if kind == "preference" else experiment.data.samples
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "export")
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "export")
    assert bool(tokenizer.chat_template) == writer.is_chat == (kind == "chat")
    asked = (
        tokenizer.apply_chat_template(message, add_generation_prompt=True, return_dict=True, return_tensors="pt")
        if tokenizer.chat_template
        else tokenizer(prompt, return_tensors="pt")
    )
    assert asked["input_ids"][0].tolist() == ids
    assert writer.is_chat or ids[0] == samples[0].ids[0]
    output = model.generate(**asked, max_new_tokens=12, do_sample=False)[0, len(ids) :]
    assert tokenizer.decode(output, skip_special_tokens=True) == "".join(writer.write(ids, Sampling(new_tokens=12)))
    assert set(writer.end_ids) == set(model.generation_config.eos_token_id)


@pytest.mark.medium
def test_a_number_comes_out_of_the_exported_files_as_their_card_says(tmp_path):
    experiment, training = training_of(tmp_path, "number", schedule={"epochs": 1, "warmup_steps": 4})
    for _ in training.steps():
        pass
    export_run("run", experiment, detect().device, tmp_path, tmp_path / "export", merge=False)
    trained = open_trained(tmp_path)
    pipe = pipeline("text-classification", str(tmp_path / "export"))
    output = pipe("much the film much")[0]["score"]
    (answer,) = RowModel(trained).answer([("much the film much", None)])
    mean, scale = re.search(r"the number is (\S+) \+ (\S+) × output", how_to_read(trained.facts)).groups()
    assert float(mean) + float(scale) * output == pytest.approx(answer["number"], rel=1e-4)
    assert abs(output - answer["number"]) > 0.01
    assert how_to_read(trained.facts.model_copy(update={"label_kind": "one"})) == ""


def test_every_workload_is_used_or_refused_by_name():
    from forerun.serving.writing import WRITES

    assert {workload for _, workload, _ in SETS.values()} == {*KINDS, *WRITES}


@pytest.mark.medium
def test_a_chat_goes_on_over_several_turns(tmp_path):
    model = trained(tmp_path, "chat")
    writer = writer_of(model, "chat")
    messages = [{"role": "user", "content": "after 2?"}]
    answer = "".join(writer.write(writer.chat_ids(messages), Sampling(new_tokens=8)))
    messages += [{"role": "assistant", "content": answer}, {"role": "user", "content": "after 3?"}]
    assert isinstance("".join(writer.write(writer.chat_ids(messages), Sampling(new_tokens=8))), str)
    with pytest.raises(NotSupported, match="no labels or vectors"):
        RowModel(model)
