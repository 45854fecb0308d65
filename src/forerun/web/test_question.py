"""A question is its address, and what is copied from the page asks the same again."""

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from forerun.errors import InvalidSettings
from forerun.settings.load import settings_from
from forerun.web.question import CHOICES, PageQuestion, question_of

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
    assert (question.settings().quantization != "none") == (method == "qlora")


def test_what_cannot_be_is_refused_by_name():
    with pytest.raises(InvalidSettings, match="batch"):
        question_of({"batch": "0", "model": "x"})
    assert question_of({"tab": "gpus", "batch": "2"}).batch == 2
    with pytest.raises(InvalidSettings, match="parallel"):
        PageQuestion(devices=2).settings()


def test_the_trainer_gets_the_same_step():
    text = PageQuestion(batch=8, precision="bf16-true", checkpointing="blocks", optimizer="muon").trainer_text()
    assert "per_device_train_batch_size=8" in text
    assert "gradient_checkpointing=True" in text
    assert "optim=" not in text
    assert "muon" in text
    assert "bf16=True" not in text, "the model itself is in bfloat16"
