"""Sections and values are TOML; what they say is tested with the jobs (`test_cluster_launchers.py`)."""

import tomllib

import pytest

from forerun.errors import InvalidSettings
from forerun.plan.other_tools import megatron_arguments, torchtitan_settings
from forerun.settings.load import settings_from


def test_names_with_quotes_and_unlimited_gradients_are_toml():
    settings = settings_from({
        "name": 'a "run" \\ two', "workload": "causal-lm", "model": {"name": "llama-3-8b"}, "precision": "bf16-mixed",
        "data": {"examples": 99},
    })  # fmt: skip
    toml = tomllib.loads(torchtitan_settings(settings))
    assert toml["job"]["description"] == 'a "run" \\ two'
    assert toml["training"]["max_norm"] == 1e6
    assert "steps" not in toml["training"]
    assert toml["checkpoint"]["enable"] is True


def spread(float8=None, **parallel):
    return settings_from({
        "float8": float8 or {},
        "name": "a", "workload": "causal-lm", "model": {"name": "llama-3-8b"}, "precision": "bf16-mixed",
        "batch": {"micro_batch_size": 2, "gradient_accumulation_steps": 8, "sequence_length": 8192}, "parallel": parallel,
    })  # fmt: skip


def test_split_sequences_shard_over_data_and_context_ranks():
    toml = tomllib.loads(torchtitan_settings(spread(shard=4, context=2)))["parallelism"]
    assert (toml["data_parallel_shard_degree"], toml["context_parallel_degree"]) == (4, 2)
    assert "--context-parallel-size 2" in megatron_arguments(spread(shard=4, context=2))


def test_pipelines_have_their_schedule_and_all_micro_batches_in_a_local_batch():
    settings = spread(shard=2, pipeline=4, schedule="interleaved", virtual_stages=2)
    toml = tomllib.loads(torchtitan_settings(settings))
    assert toml["parallelism"]["pipeline_parallel_degree"] == 4
    assert toml["parallelism"]["pipeline_parallel_schedule"] == "Interleaved1F1B"
    assert (toml["training"]["local_batch_size"], toml["parallelism"]["pipeline_parallel_microbatch_size"]) == (16, 2)
    arguments = megatron_arguments(settings)
    assert "--pipeline-model-parallel-size 4" in arguments
    assert "--num-virtual-stages-per-pipeline-rank 2" in arguments
    with pytest.raises(InvalidSettings, match="1f1b and interleaved"):
        megatron_arguments(spread(pipeline=4, schedule="gpipe"))


def test_weights_that_stay_gathered_are_named_in_each_tools_words():
    words = tomllib.loads(torchtitan_settings(spread(shard=8, zero=2)))["parallelism"]
    assert words["fsdp_reshard_after_forward"] == "never"
    assert "fsdp_reshard_after_forward" not in tomllib.loads(torchtitan_settings(spread(shard=8)))["parallelism"]
    with pytest.raises(InvalidSettings, match="Set parallel.zero to 2"):
        torchtitan_settings(spread(shard=8, zero=1))
    assert "--data-parallel-sharding-strategy optim_grads\n" in megatron_arguments(spread(shard=8, zero=2)) + "\n"
    copies = megatron_arguments(spread(shard=4, replicate=2, zero=1))
    assert "--use-distributed-optimizer --overlap-grad-reduce" in copies
    assert "--num-distributed-optimizer-instances 2" in copies
    assert "fsdp" not in copies
    assert "fsdp" not in megatron_arguments(spread(shard=2, pipeline=4)), "stages keep their weights through a step"


def test_products_in_float8_are_named():
    toml = tomllib.loads(torchtitan_settings(spread({"recipe": "tensorwise", "all_gather": True}, shard=8)))
    assert toml["model"]["converters"] == ["quantize.linear.float8"]
    words = toml["quantize"]["linear"]["float8"]
    assert "recipe_name" not in words  # torchtitan 0.2.2 takes no gathers in float8 beside one
    assert words["enable_fsdp_float8_all_gather"]
    assert words["filter_fqns"] == ["output"]
    rows = spread({"recipe": "rowwise"}, shard=8)
    assert tomllib.loads(torchtitan_settings(rows))["quantize"]["linear"]["float8"]["recipe_name"] == "rowwise"
    assert "--fp8-recipe tensorwise" in megatron_arguments(spread({"recipe": "tensorwise"}, shard=8))
    assert "fp8" not in megatron_arguments(spread(shard=8))
    with pytest.raises(InvalidSettings, match="has the recipe tensorwise"):
        megatron_arguments(rows)
    with pytest.raises(InvalidSettings, match="other names"):
        torchtitan_settings(spread({"recipe": "tensorwise", "skip": ["*.q_proj"]}, shard=8))


def test_exchanges_in_parts_and_compiled_blocks_are_named_in_each_tools_words():
    eager = spread(shard=4, tensor=2, sequence_parallel=True, async_tensor=True)
    assert "--tp-comm-overlap" in megatron_arguments(eager)
    assert "--tp-comm-overlap" not in megatron_arguments(spread(shard=4, tensor=2, sequence_parallel=True))
    with pytest.raises(InvalidSettings, match="Set compile to default"):
        torchtitan_settings(eager)
    compiled = settings_from(eager.model_dump() | {"compile": "default", "compile_unit": "blocks-and-loss"})
    toml = tomllib.loads(torchtitan_settings(compiled))
    assert toml["parallelism"]["enable_async_tensor_parallel"] is True
    assert toml["compile"] == {"enable": True, "components": ["model", "loss"]}
    assert "compile" not in tomllib.loads(torchtitan_settings(spread(shard=4)))


def test_the_engine_of_a_layout_is_the_tool_that_it_is_written_for():
    """Its fused loss is off in Megatron-LM's own defaults, and part of the forecast."""
    layout = {"shard": 4, "zero": 1, "tensor": 2, "sequence_parallel": True}
    fused = "--cross-entropy-loss-fusion --cross-entropy-fusion-impl te"
    assert fused in megatron_arguments(spread(**layout, engine="megatron"))
    assert "--cross-entropy" not in megatron_arguments(spread(**layout))
    assert "--moe" not in megatron_arguments(spread(**layout, engine="megatron"))
    dealt = spread(shard=4, zero=1, expert=4, engine="megatron", expert_overlap=True)
    for word in ("--moe-token-dispatcher-type flex", "--moe-permute-fusion", "--overlap-moe-expert-parallel-comm"):
        assert word in megatron_arguments(dealt)
    with pytest.raises(InvalidSettings, match=r"parallel\.engine='megatron'.*--script megatron"):
        torchtitan_settings(spread(**layout, engine="megatron"))
