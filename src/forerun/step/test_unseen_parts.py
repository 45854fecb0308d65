import pytest
import torch

from forerun.data.plan import BatchShape
from forerun.hardware.catalogue import device
from forerun.models.build import build_model
from forerun.models.catalogue import model_config
from forerun.settings.load import settings_from
from forerun.step.heads import generic_workload
from forerun.step.unseen_parts import unseen_parameters, with_work
from forerun.trace import Category
from forerun.virtual.trace_step import trace_step


@pytest.mark.parametrize(
    ("name", "count"),
    [("google/gemma-3-4b-it", 419_816_304), ("qwen/qwen3-vl-2b-instruct", 406_957_056)]
    + [("huggingfacetb/smolvlm-256m-instruct", 93_510_912)],
)
def test_what_reads_images_is_idle_in_a_step_of_tokens(name: str, count: int):
    with torch.device("meta"):
        model = build_model(model_config(name, {}, "auto"), "causal-lm")
    assert unseen_parameters(model, "causal-lm") == count


def test_a_model_of_tokens_has_no_idle_part():
    with torch.device("meta"):
        assert unseen_parameters(build_model(model_config("tiny-llama", {}, "auto"), "causal-lm"), "causal-lm") == 0


def test_a_step_of_tokens_makes_no_states_for_what_it_leaves_idle():
    """AdamW skips a weight without a gradient: two tensors and a counter of states for each of the others."""
    settings = settings_from({
        "name": "e", "workload": "causal-lm", "precision": "bf16-mixed", "data": {"examples": 8},
        "model": {"name": "huggingfacetb/smolvlm-256m-instruct", "config": {"text_config": {"num_hidden_layers": 2}}},
        "batch": {"micro_batch_size": 1, "sequence_length": 16},
    })  # fmt: skip
    workload, here = generic_workload("causal-lm"), device("h100-80gb")
    trace = trace_step(settings, workload, here, BatchShape(1, 16))
    seen = trace.total_parameters - trace.unseen_parameters
    states = [each for each in trace.storages if each.owner == Category.OPTIMIZER_STATE]
    assert sum(each.bytes for each in states) == 8 * seen + 4 * len(states) // 3


def test_the_decoder_of_a_pair_reads_tokens_too():
    """T5Gemma 2 of 270M and 270M: of its 786 million weights SigLIP and what follows it are 418 million."""
    with torch.device("meta"):
        model = build_model(model_config("google/t5gemma-2-270m-270m", {}, "auto"), "seq2seq-lm")
    idle = [name for name, _ in model.named_parameters() if "vision_tower" in name or "multi_modal_projector" in name]
    parameters = dict(model.named_parameters())
    assert unseen_parameters(model, "seq2seq-lm") == sum(parameters[name].numel() for name in idle)
    rest = with_work(model, "seq2seq-lm", list(parameters.values()))
    assert len(rest) == len(parameters) - len(idle)
