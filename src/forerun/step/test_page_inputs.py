"""Pages beside words: the step is that of the model as its example scripts call it."""

import contextlib
import sys
from pathlib import Path

import pytest
from transformers import ASTConfig, BertConfig, LayoutLMConfig, LayoutLMv3Config

import forerun
from forerun.forecasting.program import forecast_program
from forerun.hardware.catalogue import device
from forerun.settings.load import settings_from
from forerun.step.heads import generic_workload
from forerun.step.page_inputs import page_inputs
from forerun.virtual.cuda.launchers import parse_command

SCRIPTS = Path(__file__).parents[3] / "tests" / "scripts"

SIZES = {
    "hidden_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 96, "vocab_size": 128,
}  # fmt: skip
V3 = LayoutLMv3Config(
    **SIZES, coordinate_size=8, shape_size=8, input_size=32, patch_size=16, max_position_embeddings=66, pad_token_id=1
)  # fmt: skip


@pytest.fixture
def asked(tmp_path):
    def make(config, workload, **data):
        config.save_pretrained(tmp_path)
        content = {"name": "m", "workload": workload, "model": {"name": str(tmp_path)}, "data": data or {"examples": 8}}
        return settings_from({**content, "batch": {"micro_batch_size": 2, "sequence_length": 16}})

    return make


@pytest.mark.parametrize(
    ("config", "words"),
    [(BertConfig(**SIZES), set()), (LayoutLMConfig(**SIZES), {"bbox"}), (V3, {"bbox", "pixel_values"})],
)
def test_a_model_of_pages_gets_boxes_and_the_page(asked, config, words):
    settings = asked(config, "token-classification")
    assert set(page_inputs(settings, 2, 16)) == words
    assert words <= set(generic_workload("token-classification").example_batch(settings, 2, 16))


@pytest.mark.parametrize("workload", ["token-classification", "sequence-classification"])
@pytest.mark.parametrize("config", [LayoutLMConfig(**SIZES), V3])
def test_such_a_step_is_forecast(asked, config, workload):
    assert forerun.forecast(asked(config, workload), gpu="t4").step.seconds.expected > 0


def test_patches_of_the_page_cost_time_and_memory(asked):
    """4 patches and a class token behind 16 tokens; more of them behind a larger page."""
    small = forerun.forecast(asked(V3, "token-classification"), gpu="t4")
    large = forerun.forecast(
        asked(LayoutLMv3Config(**{**V3.to_dict(), "input_size": 128}), "token-classification"), gpu="t4"
    )
    assert large.step.model_flops > 2 * small.step.model_flops
    assert large.memory.breakdown.activation_bytes > small.memory.breakdown.activation_bytes


def test_texts_of_ones_own_have_no_page(asked):
    assert page_inputs(asked(V3, "token-classification", source="x.jsonl"), 2, 16) == {}


WIDER = {"hidden_size": 192, "num_hidden_layers": 4, "num_attention_heads": 4, "intermediate_size": 768}
PAGES = LayoutLMv3Config(**WIDER, coordinate_size=32, shape_size=32, max_position_embeddings=514, type_vocab_size=1)


@pytest.mark.medium
@pytest.mark.parametrize(
    ("script", "config", "workload"),
    [
        ("layoutlmv3_finetune.py", PAGES, "token-classification"),
        ("ast_finetune.py", ASTConfig(**WIDER, max_length=512), "audio-classification"),
    ],
)
def test_memory_by_settings_is_that_of_the_unmodified_script(tmp_path, script, config, workload):
    """0.4 % apart in both, 2026-11-28; without its page LayoutLMv3 would have 128 tokens for 325."""
    config.save_pretrained(tmp_path)
    command = ["python", str(SCRIPTS / script)]
    with contextlib.redirect_stdout(sys.stderr):
        (of_script,), _ = forecast_program(parse_command(command), command, [device("t4")])
    content = {
        "name": "m", "workload": workload, "model": {"name": str(tmp_path)}, "precision": "fp32",
        "data": {"examples": 64}, "batch": {"micro_batch_size": 4, "sequence_length": 128},
    }  # fmt: skip
    by_settings = forerun.forecast(content, gpu="t4")
    assert by_settings.parameters.total == of_script.parameters.total
    peaks = by_settings.memory.peak_allocated_bytes, of_script.memory.peak_allocated_bytes
    assert peaks[0] == pytest.approx(peaks[1], rel=0.01)
