"""Settings that are asked for a published run on a cluster: each says what the source did, or which word is missing."""

import pytest
from benchmarks.clusters.questions import Question
from benchmarks.clusters.settings_rows import BRIDGE, settings_question
from benchmarks.clusters.titan_rows import titan_question
from tests.cluster_runs import run_with

from forerun.settings.load import settings_from


@pytest.mark.parametrize(
    ("columns", "reason"),
    [({"pp": "8", "vp": "16", "dp": "2"}, "more than 64 parts"),
     ({"model": "GPT-OSS-120B"}, "sinks"),
     ({"ep": "4", "tp": "2", "config_json": '{"expert_tensor_parallel_size": 2}'}, "dealt and split"),
     ({"family": "megatron", "framework": "Megatron-Core", "fp8": "NVFP4"}, "NVFP4"), ({"model": "BERT"}, "packed"),
     ({"task": "LoRA", "fp8": "FP8"}, "float8 beside adapters"), ({"family": "primus", "framework": "Primus x"}, "what Primus holds"),
     ({"pp": "2", "pp_schedule": "zbb", "dp": "8"}, "schedule zbb"),
     ({"pp": "2", "dp": "16"}, "fewer micro-batches than stages"), ({"micro_batch": "", "pp": "2"}, "not stated"),
     ({"activation_checkpointing": "selective layer"}, "selective layer")],
)  # fmt: skip
def test_settings_refuse_with_the_word_that_is_missing(columns, reason):
    assert reason in settings_question(run_with(**columns)).reason


@pytest.mark.parametrize(
    ("columns", "is_hidden"),
    [({}, None), ({"notes": "async TP"}, True), ({"notes": "async TP", "sequence_parallel": ""}, None),
     ({"family": BRIDGE, "model": "Llama-3-70B", "sequence_parallel": ""}, True),
     ({"family": BRIDGE, "model": "Llama-3-70B", "sequence_parallel": "False"}, None),
     ({"config_json": '{"TP_COMM_OVERLAP": "1"}'}, True), ({"config_json": '{"TP_COMM_OVERLAP": "False"}'}, None),
     ({"family": BRIDGE, "model": "Llama-3-70B"}, True),
     ({"family": BRIDGE, "model": "Llama-3-70B", "task": "LoRA"}, None)],
)  # fmt: skip
def test_exchanges_of_split_layers_are_hidden_where_the_source_hid_them(columns, is_hidden):
    question = settings_question(run_with(**{"tp": "4", "dp": "4", "sequence_parallel": "True", **columns}))
    assert question.content["parallel"].get("async_tensor") is is_hidden


@pytest.mark.parametrize(
    ("columns", "mode"),
    [({}, "default"), ({"config_json": '{"cuda_graph_impl": "transformer_engine"}'}, "reduce-overhead"),
     ({"config_json": '{"cuda_graph_impl": "none"}'}, "default"), ({"notes": "TE CUDA graph scopes attn"}, "reduce-overhead"),
     ({"config_json": '{"FULL_CUDA_GRAPH": "1"}'}, "reduce-overhead"), ({"config_json": '{"FULL_CUDA_GRAPH": "0"}'}, "default"),
     ({"config_json": '{"FULL_CUDA_GRAPH": "1"}', "task": "LoRA"}, "default")],
)  # fmt: skip
def test_graphs_are_asked_where_the_source_had_them(columns, mode):
    megatron = {"family": BRIDGE, "framework": "Megatron-Bridge", "dp": "16", "sharding": "distributed optimizer"}
    assert settings_question(run_with(**megatron, **columns)).content["compile"] == mode


@pytest.mark.parametrize(
    ("columns", "is_hidden"),
    [({}, None), ({"config_json": '{"moe_a2a_overlap": true}'}, True), ({"notes": "EP overlap on"}, True),
     ({"config_json": '{"moe_a2a_overlap": false}'}, None)],
)  # fmt: skip
def test_exchanges_of_experts_are_hidden_where_the_source_hid_them(columns, is_hidden):
    megatron = {"family": BRIDGE, "framework": "Megatron-Bridge", "dp": "16", "sharding": "distributed optimizer"}
    question = settings_question(run_with(**megatron, model="Qwen3-30B-A3B", ep="16", **columns))
    assert question.content["parallel"].get("expert_overlap") is is_hidden


def test_settings_of_adapters_are_copies_of_frozen_weights():
    columns = {
        "family": "mlperf training v5.0",
        "framework": "NVIDIA NeMo",
        "model": "Llama-2-70B",
        "dp": "2",
        "tp": "4",
    }
    question = settings_question(run_with(**columns, task="LoRA r16 fine-tune", sharding=""))
    settings = settings_from(question.content)
    assert (settings.adapter.kind, settings.adapter.rank, settings.precision) == ("lora", 16, "bf16-true")
    assert settings.adapter.targets == ["q_proj", "k_proj", "v_proj", "o_proj"]
    assert (settings.parallel.replicate, settings.parallel.tensor, settings.parallel.world_size) == (2, 4, 8)
    assert "dropout of adapters as none" in question.differs
    assert settings_question(run_with()).content.get("adapter") is None


def test_megatrons_distributed_optimizer_is_stage_one_around_compiled_blocks():
    columns = {"family": "megatron-bridge performance summary", "framework": "Megatron-Bridge", "dp": "2", "cp": "2",
               "pp": "2", "tp": "2", "global_batch": "64", "activation_checkpointing": ""}  # fmt: skip
    question = settings_question(run_with(**columns, sharding="DDP + distributed optimizer"))
    settings = settings_from(question.content)
    assert (settings.parallel.zero, settings.parallel.context, settings.compile) == (1, 2, "default")
    assert question.asks_memory
    assert settings_from(settings_question(run_with(**columns, sharding="Megatron-FSDP")).content).parallel.zero == 0


def test_experts_beside_split_layers_are_asked_as_compiled_blocks():
    mixture = {"model": "Qwen3-30B-A3B", "ep": "4", "tp": "2", "compile": "True", "activation_checkpointing": "none"}
    question = settings_question(run_with(**mixture))
    assert {"tensor": 2, "expert": 4}.items() <= question.content["parallel"].items()
    assert question.content["compile"] == "default"
    assert "compiled blocks as eager ones" not in question.differs


def test_settings_say_the_layout():
    question = settings_question(run_with(dp="4", tp="4", sequence_parallel="True", sharding="FSDP2 full shard 4"))
    assert isinstance(question, Question)
    settings = settings_from(question.content)
    assert (settings.parallel.kind, settings.parallel.world_size, settings.parallel.tensor) == ("fsdp", 16, 4)
    assert settings.batch.gradient_accumulation_steps == 4
    assert question.differs == ()
    rack = settings_question(run_with(gpu="GB200", gpus_per_node="4")).content["cluster"]
    assert rack["gpus_per_node"] == 72
    float8 = settings_question(run_with(fp8="float8 tensorwise, fp8 all-gather"))
    assert float8.content["float8"] == {"recipe": "tensorwise", "all_gather": True}
    assert "float8" not in settings_question(run_with()).content
    assert "scales of blocks" in settings_question(run_with(fp8="MXFP8")).differs[-1]
    assert "NVFP4" in settings_question(run_with(fp8="NVFP4")).reason
    compiled = settings_question(run_with(tp="4", dp="4", compile="True", activation_checkpointing="selective (op)"))
    assert compiled.content["compile"] == "default"
    whole = {"tp": "4", "dp": "4", "compile": "True", "activation_checkpointing": "full"}
    assert settings_question(run_with(**whole)).content["compile"] == "none"
    assert "computed again" in settings_question(run_with(**whole, fp8="fp8")).reason


@pytest.mark.parametrize(
    ("columns", "layout"),
    [({"cp": "4", "dp": "4"}, {"shard": 4, "context": 4}),
     ({"pp": "2", "dp": "8", "pp_schedule": "1F1B"}, {"shard": 8, "pipeline": 2, "schedule": "1f1b"}),
     ({"pp": "2", "vp": "2", "dp": "8", "pp_schedule": "interleaved 1F1B"},
      {"shard": 8, "pipeline": 2, "schedule": "interleaved", "virtual_stages": 2}),
     ({"ep": "8", "model": "Qwen3-30B-A3B"}, {"shard": 16, "expert": 8}),
     ({"pp": "2", "dp": "8", "ep": "4", "pp_schedule": "1F1B", "model": "Qwen3-30B-A3B"},
      {"shard": 8, "expert": 4, "pipeline": 2, "schedule": "1f1b"})],
)  # fmt: skip
def test_settings_say_sequences_stages_and_experts(columns, layout):
    question = settings_question(run_with(**columns))
    assert isinstance(question, Question)
    assert question.content["parallel"] == layout
    assert settings_from(question.content).parallel.world_size == 16


def test_what_copies_hold_is_not_compared_and_their_step_is_the_nearest():
    columns = {"family": "megatron-bridge", "framework": "Megatron", "sharding": "DDP", "compile": ""}
    question = settings_question(run_with(**columns))
    assert question.content["parallel"] == {"shard": 16, "zero": 1, "engine": "megatron"}
    assert not question.asks_memory
    assert question.differs[:2] == (
        "optimizer states of copies as shards",
        "Megatron's fused layers as compiled blocks",
    )
    assert settings_question(run_with()).asks_memory
    assert not settings_question(run_with(sharding="DDP ZeRO-0", tp="2", dp="8")).asks_memory


def test_torchtitan_compiles_its_loss_since_2025():
    units = [
        settings_question(run_with(compile="True", date=d)).content["compile_unit"] for d in ("2024-11", "2025-08")
    ]
    assert units == ["blocks", "blocks-and-loss"]


def test_rows_longer_than_a_model_has_positions_for_are_given_them():
    assert settings_question(run_with(seq_len="32768")).content["model"]["config"] == {"max_position_embeddings": 32768}
    assert settings_question(run_with()).content["model"]["config"] == {}


def test_float8_is_torchaos_where_torchtitan_ran_it():
    question = titan_question(run_with(fp8="float8 rowwise", compile="True"))
    options = question.content["options"]
    assert options["model.converters"] == "quantize.linear.float8"
    assert options["quantize.linear.float8.recipe_name"] == "rowwise"
    assert "torchao" in question.differs[0]
    gathered = titan_question(run_with(fp8="float8 tensorwise, fp8 all-gather, precomputed scale"))
    assert gathered.content["options"]["quantize.linear.float8.precompute_float8_dynamic_scale_for_fsdp"]
    assert not any("bf16" in text for text in gathered.differs)
    assert "mxfp8" in titan_question(run_with(fp8="mxfp8_cublas")).reason
