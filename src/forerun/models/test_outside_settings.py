import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from forerun.api import forecast
from forerun.errors import UnknownModel, UntraceableOp
from forerun.models.outside_settings import other_task, remedy_for_trace
from forerun.models.rows import architecture


@pytest.mark.parametrize(
    ("identity", "words"),
    [
        ("facebook/detr-resnet-50", "finds objects"), ("microsoft/conditional-detr-resnet-50", "finds objects"),
        ("facebook/sam-vit-base", "masks"), ("Salesforce/blip-image-captioning-base", "captions"),
        ("naver-clova-ix/donut-base", "documents"), ("microsoft/Phi-3.5-vision-instruct", "code of its own"),
    ],
)  # fmt: skip
def test_a_refused_model_of_another_task_is_sent_to_a_script(identity, words):
    assert words in other_task(identity)
    with pytest.raises(UnknownModel, match="forerun exec -- python train.py") as refusal:
        architecture(identity)
    assert str(refusal.value).rpartition("Nearest: ")[2].count(",") == 2


@pytest.mark.parametrize(
    "identity", ["bert-base-uncased", "somebody/bart-samsum", "facebook/dinov2-base", "gpt-j-6b", "gpt4all-j"]
)
def test_other_names_say_nothing(identity):
    assert other_task(identity) == ""


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("yolov8n", "finds objects"), ("yolo11n", "finds objects"), ("unet", "masks"), ("gpt-4", "not published"),
        ("gpt-3.5-turbo", "not published"), ("Claude 3", "not published"),
    ],
)  # fmt: skip
def test_names_that_people_try_are_told_why(name, words):
    with pytest.raises(UnknownModel, match=words):
        architecture(name)


def test_where_values_decide_a_script_is_the_remedy():
    with FakeTensorMode(), pytest.raises(Exception, match=r"nonzero") as error:  # noqa: PT011
        torch.zeros(3).nonzero()
    assert "depends on values" in remedy_for_trace(error.value)
    assert "another model.attention" in remedy_for_trace(ValueError("x"))
    molmo = ValueError("`mm_token_type_ids` is required as a model input when training")
    assert "wants inputs" in remedy_for_trace(molmo)


@pytest.mark.parametrize("name", ["blip-2", "kosmos-2", "bros"])
def test_a_model_that_wants_other_inputs_is_sent_to_a_script(name, tmp_path):
    """Captions and boxes: what these read beside text no workload makes."""
    from transformers import AutoConfig

    AutoConfig.for_model(name).save_pretrained(tmp_path)
    workload = "token-classification" if name == "bros" else "causal-lm"
    settings = {"name": "o", "workload": workload, "model": {"name": str(tmp_path)}, "data": {"examples": 8}}
    with pytest.raises(UntraceableOp, match=r"wants inputs that this workload does not give; forerun exec"):
        forecast({**settings, "batch": {"micro_batch_size": 1, "sequence_length": 16}}, "t4")
