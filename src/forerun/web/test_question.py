"""A question is its address, and what is copied from the page asks the same again."""

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from forerun.errors import InvalidSettings
from forerun.settings.load import settings_from
from forerun.settings.media import MEDIA, WITHOUT_TOKENS, MediaSettings
from forerun.step.generic import GENERIC
from forerun.web.question import CHOICES, PageQuestion, idle_fields, question_of

questions = st.builds(
    PageQuestion, **{name: st.sampled_from(options) for name, options in CHOICES.items()},
    batch=st.integers(1, 64), length=st.integers(1, 4096), epochs=st.sampled_from([0.5, 1.0, 3.0]), model=st.text(min_size=1, max_size=9),
)  # fmt: skip


@given(questions)
def test_an_address_holds_the_whole_question(question):
    from urllib.parse import parse_qsl

    assert question_of(dict(parse_qsl(question.query(), keep_blank_values=True))) == question


@pytest.mark.parametrize("method", CHOICES["method"])
def test_the_copied_file_is_what_was_asked(method):
    question = PageQuestion(method=method, checkpointing="blocks", parallel="fsdp", devices=4)
    assert settings_from(yaml.safe_load(question.yaml_text())) == question.settings()
    assert question.settings().parallel.world_size == 4
    assert (question.settings().quantization != "none") == (method in ("qlora", "lora-int8"))


def test_what_cannot_be_is_refused_by_name():
    with pytest.raises(InvalidSettings, match="batch"):
        question_of({"batch": "0", "model": "x"})
    assert question_of({"tab": "gpus", "batch": "2"}).batch == 2
    with pytest.raises(InvalidSettings, match="parallel"):
        PageQuestion(devices=2).settings()


def test_workloads_are_those_that_can_be_forecast():
    assert set(MEDIA) < set(CHOICES["workload"]) == set(GENERIC)
    for workload, words in MEDIA.items():
        question = question_of(
            {"workload": workload, "image_size": "64", "audio_seconds": "2.5", "prompt_length": "77"}
        )
        assert set(question.content()["media"]) == set(words) == set(question.settings().media.model_fields_set)
        assert idle_fields(question) & set(MediaSettings.model_fields) == set(MediaSettings.model_fields) - set(words)
        assert ("length" in idle_fields(question)) == (workload in WITHOUT_TOKENS)
    assert "media" not in PageQuestion(image_size=64).content(), "a causal-lm reads no images"
    assert question_of({"image_size": ""}) == PageQuestion(), "an empty field is none"
    with pytest.raises(InvalidSettings, match="workload: .*one of"):
        question_of({"workload": "nonsense"})
