"""`PYTORCH_ALLOC_CONF`: which words move memory, which are told of."""

import pytest

from forerun.hardware.catalogue import device
from forerun.memory.alloc_conf import conf_of, not_modelled, options_of, options_on, words_of
from forerun.memory.allocator import AllocatorOptions
from forerun.settings.allocator import AllocatorSettings
from forerun.units import MIB


@pytest.mark.parametrize(
    ("text", "options", "ignored"),
    [
        ("", AllocatorOptions(), []),
        ("expandable_segments:True", AllocatorOptions(expandable_segments=True), []),
        ("expandable_segments:False", AllocatorOptions(), []),
        ("max_split_size_mb:128, garbage_collection_threshold:0.6",
         AllocatorOptions(max_split_bytes=128 * MIB, garbage_collection_threshold=0.6), []),
        ("roundup_power2_divisions:4,pinned_num_register_threads:8", AllocatorOptions(roundup_divisions=4), []),
        ("roundup_power2_divisions:[256:1,512:2,>:4]", AllocatorOptions(), ["roundup_power2_divisions:[256:1,512:2,>:4]"]),
        ("backend:native", AllocatorOptions(), []),
        ("backend:cudaMallocAsync", AllocatorOptions(), ["backend:cudaMallocAsync"]),
        ("max_split_size_mb:half", AllocatorOptions(), ["max_split_size_mb:half"]),
        ("no word of it", AllocatorOptions(), ["nowordofit"]),
    ],
)  # fmt: skip
def test_words(text, options, ignored):
    assert options_of(text) == options
    assert not_modelled(text) == ignored


def test_the_first_name_that_is_set_counts():
    assert conf_of({}) == ""
    assert conf_of({"PYTORCH_CUDA_ALLOC_CONF": "a:1"}) == "a:1"
    assert conf_of({"PYTORCH_CUDA_ALLOC_CONF": "a:1", "PYTORCH_ALLOC_CONF": "b:2"}) == "b:2"
    assert conf_of({"PYTORCH_ALLOC_CONF": " ", "PYTORCH_HIP_ALLOC_CONF": "c:3"}) == "c:3"


def test_rocm_has_no_expandable_segments():
    assert options_on(device("h100-80gb"), "expandable_segments:True").expandable_segments
    assert options_on(device("mi300x"), "expandable_segments:True") == AllocatorOptions()


def test_settings_are_the_same_words():
    own = AllocatorSettings(expandable_segments=True, max_split_size_mb=64)
    assert words_of(own.conf) == {"expandable_segments": "True", "max_split_size_mb": "64"}
    assert options_of(own.conf) == AllocatorOptions(expandable_segments=True, max_split_bytes=64 * MIB)
    assert AllocatorSettings().conf == ""
