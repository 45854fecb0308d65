"""The mechanics of the zoo benchmark: configurations shrink by their names, results are kept, failures are told."""

import itertools
import json
import os
import signal
import time

import pytest
import torch
from benchmarks import zoo
from benchmarks.zoo_libraries import transformers_models
from benchmarks.zoo_libraries.example import Example, train_step
from benchmarks.zoo_libraries.shrink import Size, shrunk
from torch import nn


def test_widths_are_divided_by_one_number_and_heads_keep_their_size():
    config = {
        "hidden_size": 4096, "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128, "intermediate_size": 11008,
        "num_hidden_layers": 32, "vocab_size": 128_256, "eos_token_id": 128_009, "rms_norm_eps": 1e-5, "bos_token_id": 1,
        "layer_types": ["sliding"] * 5 + ["full"] * 27, "text": {"d_model": 64}, "type_vocab_size": 2,
    }  # fmt: skip
    small = shrunk(config, Size(4, narrow=True))
    assert small == config | {
        "hidden_size": 128, "num_attention_heads": 1, "num_key_value_heads": 1, "intermediate_size": 344, "eos_token_id": 1023,
        "num_hidden_layers": 4, "vocab_size": 1024, "layer_types": ["sliding"] * 3 + ["full"], "text": {"d_model": 2},
    }  # fmt: skip
    assert shrunk(config, Size(2, narrow=False))["hidden_size"] == 4096


def test_rows_that_experts_multiply_stay_aligned():
    """As glm4_moe has them: 1408 / 32 would be 44 numbers of two bytes, which the card's kernel refuses."""
    config = {"hidden_size": 4096, "num_attention_heads": 96, "moe_intermediate_size": 1408, "n_routed_experts": 128}
    small = shrunk(config, Size(4, narrow=True))
    assert small["moe_intermediate_size"] % 8 == small["hidden_size"] % 8 == 0
    assert small["num_attention_heads"] == 6


MODELS = ["BertForMaskedLM", "LlamaForCausalLM", "ViTForImageClassification", "T5ForConditionalGeneration",
          "Wav2Vec2ForCTC", "MixtralForCausalLM"]  # fmt: skip


@pytest.mark.medium
@pytest.mark.parametrize("name", MODELS)
def test_a_class_does_the_same_step_on_both(name):
    full = next(each for each in transformers_models.names() if f":{name}:" in each)
    rows = []
    zoo.trained(transformers_models.examples(full), rows.append)
    assert rows[-1]["cpu"]
    assert rows[-1]["virtual"], rows[-1]


def linear(loss=None, build=lambda: nn.Linear(4, 4)):
    return Example(build, lambda _: {"input": torch.ones(2, 4)}, loss)


def test_the_first_example_that_works_on_the_cpu_is_taken():
    def refuse():
        raise ValueError("size 12 does not fit 3.5")

    rows = []
    zoo.trained([linear(build=refuse), linear()], rows.append)
    assert (rows[-1]["cpu"], rows[-1]["virtual"], rows[-1]["reason"]) == (True, True, "")
    zoo.trained([linear(build=refuse)], rows.append)
    assert (rows[-1]["cpu"], rows[-1]["reason"]) == (False, "ValueError: size # does not fit #")


def test_a_step_that_differs_is_a_failure():
    """The second half gets a gradient on the CPU only."""

    def half(model, batch):
        on_cpu = batch["input"].device.type == "cpu"
        return {"loss": model[0](batch["input"]).sum() + (model[1](batch["input"]).sum() if on_cpu else 0)}

    rows = []
    zoo.trained([linear(half, lambda: nn.ModuleList([nn.Linear(4, 4), nn.Linear(4, 4)]))], rows.append)
    assert rows[-1]["cpu"]
    assert not rows[-1]["virtual"]
    assert "another step" in rows[-1]["reason"]


def test_a_process_that_dies_is_told_and_the_others_run(tmp_path):
    def die(note):
        note({"cpu": True, "virtual": False, "reason": zoo.DIED})
        os.kill(os.getpid(), signal.SIGKILL)

    jobs = {
        tmp_path / "a.json": die,
        tmp_path / "b.json": lambda note: note({"cpu": True, "virtual": True, "reason": ""}),
    }
    zoo.in_own_process(jobs)
    rows = {file.name: json.loads(file.read_text()) for file in sorted(tmp_path.iterdir())}
    assert rows["a.json"]["reason"] == "the process died with -9"
    assert rows["b.json"]["virtual"]
    table = zoo.summary("x", rows, 5)
    assert (table["classes"], table["run"], table["on_cpu"], table["on_virtual_gpu"], table["share"]) == (
        5,
        2,
        2,
        1,
        0.5,
    )
    assert table["failures"] == {"the process died with -9": ["a.json"]}


def test_a_step_without_gradient_is_no_step():
    with pytest.raises(ValueError, match="differentiated"):
        train_step(linear(lambda model, batch: {"logits": batch["input"]}), "cpu")


def test_an_order_is_made_by_its_seed_and_families_stay_together(tmp_path):
    names = transformers_models.names()[:60]
    libraries = {"transformers": {name: tmp_path / name for name in names}}
    first, again, other = (zoo.families(libraries, seed) for seed in (0, 0, 1))
    assert first == again != other
    assert sorted(name for _, group in first for name in group) == names
    for _, group in first:
        assert len({transformers_models.family(name) for name in group}) == 1


def test_the_interval_of_a_share_is_that_of_wilson():
    """81 of 263: 0.255 to 0.366 (Newcombe, Statistics in Medicine 1998, table I, method 3)."""
    assert zoo.wilson(81, 263) == pytest.approx((0.2553, 0.3662), abs=5e-5)
    assert zoo.wilson(0, 20) == pytest.approx((0.0, 0.1611), abs=5e-5)
    assert zoo.wilson(29, 29)[1] == 1.0


def test_a_limit_is_of_processor_time_and_of_its_block_alone():
    """Waiting costs nothing; work beyond the limit ends it; after the block no clock runs on."""
    former = signal.getsignal(signal.SIGPROF)
    with zoo.time_limit(0.05):
        time.sleep(0.2)
    with pytest.raises(TimeoutError, match="processor time"), zoo.time_limit(0.05):
        sum(1 for _ in itertools.count())
    assert signal.getitimer(signal.ITIMER_PROF) == (0.0, 0.0)
    assert signal.getsignal(signal.SIGPROF) == former
