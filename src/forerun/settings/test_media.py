"""Which words go with which workload."""

import pytest

from forerun.errors import InvalidSettings
from forerun.settings.load import settings_from

BASE = {"name": "m", "workload": "image-classification", "model": {"name": "m"}, "data": {"examples": 8}}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"media": {"prompt_length": 77}}, "media.prompt_length: is for text-to-image; found workload='image-class"),
        ({"workload": "text-to-image", "media": {"audio_seconds": 3}}, "media.audio_seconds: is for speech-seq2seq, speech"),
        ({"workload": "text-to-image", "data": {"source": "x"}}, "text-to-image is forecast here by its sizes, not trained"),
        ({"workload": "text-to-image", "batch": {"padding": "longest"}}, "batch.padding: samples of text-to-image are of one"),
        ({"workload": "causal-lm", "media": {"image_size": 224}}, "media.image_size: is for image-classification, image"),
        ({"media": {"audio_seconds": 3}}, "media.audio_seconds: is for speech-seq2seq, speech-ctc, audio-classification; found workload='image"),
        ({"data": {"source": "x.csv"}}, "image-classification is forecast here by its sizes, not trained"),
        ({"batch": {"padding": "packed"}}, "batch.padding: samples of image-classification are of one size"),
        ({"cross_entropy": "chunked"}, "cross_entropy: image-classification has the loss of"),
    ],
)  # fmt: skip
def test_words_of_other_workloads_are_refused(changes, message):
    with pytest.raises(InvalidSettings, match=message):
        settings_from({**BASE, **changes})


def test_a_size_is_part_of_the_hash_and_its_absence_is_not():
    plain, sized = settings_from(BASE), settings_from({**BASE, "media": {"image_size": 384}})
    assert plain.hash != sized.hash
    assert settings_from({**BASE, "media": {"image_size": None}}).hash == plain.hash


def test_lora_of_a_denoiser_is_that_of_its_attention_where_nothing_else_is_named():
    content = {**BASE, "workload": "text-to-image"}
    own = settings_from({**content, "adapter": {"kind": "lora", "rank": 4}})
    assert own.adapter.targets == ["to_k", "to_q", "to_v", "to_out.0"]
    assert (
        settings_from({**content, "adapter": {"kind": "lora", "targets": "all-linear"}}).adapter.targets == "all-linear"
    )
    assert settings_from({**BASE, "adapter": {"kind": "lora"}}).adapter.targets == "all-linear"
    assert settings_from(own.model_dump()).hash == own.hash


@pytest.mark.parametrize("workload", ["object-detection", "semantic-segmentation"])
def test_what_has_no_workload_says_what_helps(workload):
    import forerun

    content = {**BASE, "workload": workload, "model": {"name": "mit-b0"}}
    with pytest.raises(InvalidSettings, match=f"found '{workload}'. Detection, segmentation .* under forerun exec"):
        forerun.forecast(content, "t4")
