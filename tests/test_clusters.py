"""The truth table of clusters: rows and halves, what is asked, calculators against their papers, errors and their kinds."""

import csv
import gzip
import json
import os
from pathlib import Path

import pytest
from benchmarks.clusters.answers import kept_answers
from benchmarks.clusters.formulas import activation_bytes, flops_per_token, memory_bytes, slowdown
from benchmarks.clusters.megatron_rows import megatron_question
from benchmarks.clusters.page import Coverage, Report, page_of
from benchmarks.clusters.questions import Question, Refusal, refusal_of
from benchmarks.clusters.rows import is_seen, load_runs, memory_values, runs_of, throughput
from benchmarks.clusters.settings_rows import settings_question
from benchmarks.clusters.table import (
    FEW,
    Comparison,
    groups_of,
    kind_of,
    orders,
    scale_of,
    source_of,
    summary,
)
from benchmarks.clusters.titan_rows import titan_question
from tests.cluster_runs import LINE, ROOT, run_with

from forerun.settings.load import settings_from
from forerun.units import GIB

DATA = Path(os.environ.get("FORERUN_CLUSTERS", ROOT.parent / "shared" / "data" / "clusters"))


def test_values_of_one_configuration_are_one_run():
    lines = [LINE, LINE | {"id": "b", "metric": "memory_gib", "metric_kind": "torch peak reserved", "value": "60"}]
    runs = runs_of(lines)
    assert len(runs) == 1
    assert throughput(runs[0]) == 5000
    assert memory_values(runs[0]) == {"torch peak reserved": 60 * GIB}
    assert len(runs_of([LINE, LINE | {"id": "b", "micro_batch": "4"}])) == 2


def test_a_step_time_is_tokens_of_each_gpu():
    run = run_with(metric="step_s", value="2")
    assert throughput(run) == 32 * 8192 / 2 / 16
    assert throughput(run_with(metric="step_s", value="2", seq_len="")) is None


def test_nanotrons_utilisation_gives_the_tokens_that_it_prints():
    """scripts/scaling_benchmarks.py at 2411b022: 14,167.25 tokens/s and 363.66 TFLOP/s of one run."""
    shape = {"params": "3570000000", "hidden": "3072", "layers": "28", "seq_len": "4096", "family": "nanotron x"}
    run = run_with(metric="tflops_per_gpu", value="363.66", **shape)
    assert throughput(run) == pytest.approx(14167.25, rel=0.002)


def test_a_group_stays_in_one_half_for_ever():
    assert [is_seen(name) for name in ("titan:8B:128", "titan:8B:8", "nanotron:tp")] == [True, False, True]
    assert 400 < sum(is_seen(f"group {number}") for number in range(1000)) < 600


@pytest.mark.parametrize(
    ("columns", "kind"),
    [({}, "fsdp"), ({"sharding": "DDP"}, "data"), ({"tp": "8"}, "tensor"), ({"tp": "8", "pp": "2"}, "pipeline"),
     ({"pp": "2", "cp": "2"}, "context"), ({"cp": "2", "ep": "4"}, "expert")],
)  # fmt: skip
def test_a_run_counts_to_its_most_involved_parallelism(columns, kind):
    assert run_with(**columns).parallelism == kind


@pytest.mark.parametrize(
    ("columns", "reason"),
    [({"confidence": "low"}, "low confidence"), ({"metric": "time_to_train_s"}, "time to train"),
     ({"value": ""}, "no value"), ({"gpu": "Gaudi"}, "not in the catalogue: Gaudi")],
)  # fmt: skip
def test_what_nobody_can_ask_has_its_reason(columns, reason):
    assert reason in refusal_of(run_with(**columns)).reason
    assert refusal_of(run_with()) is None


def test_torchtitan_gets_its_own_options():
    columns = {"pp": "8", "tp": "8", "dp": "8", "n_gpus": "512", "global_batch": "256", "pp_schedule": "1F1B"}
    network = "NVLink in node; backend RDMA 400 Gb/s per GPU"
    question = titan_question(run_with(model="Llama-3.1-405B", network=network, **columns))
    assert isinstance(question, Question)
    options = question.content["options"]
    assert (question.content["nodes"], question.content["network"]) == (64, "roce-400g")
    assert (options["model.flavor"], options["training.local_batch_size"]) == ("405B", 32)
    assert options["parallelism.pipeline_parallel_microbatch_size"] == 4
    assert "no Llama-2-13B" in titan_question(run_with(model="Llama-2-13B")).reason


def test_what_was_published_does_not_change_what_is_asked():
    keys = {titan_question(run_with(value=value)).key for value in ("1", "2")}
    assert len(keys) == 1
    assert titan_question(run_with(micro_batch="4")).key not in keys


MEGATRON = {
    "family": "megatron-lm functional tests", "model": "gpt/gpt3_test", "hidden": "512", "layers": "12", "heads": "8",
    "kv_heads": "8", "ffn": "", "vocab": "", "params": "", "tp": "2", "pp": "2", "dp": "2", "n_gpus": "8",
    "seq_len": "1024", "micro_batch": "4", "precision": "bf16", "sharding": "DDP",
}  # fmt: skip


def test_megatrons_arguments_have_megatrons_defaults():
    given = {"max-position-embeddings": 1024, "transformer-impl": "transformer_engine", "swiglu": True}
    question = megatron_question(run_with(**MEGATRON, config_json=json.dumps(given)))
    assert isinstance(question, Question)
    arguments = question.content["arguments"]
    assert arguments["vocab"] == 50432  # 50,257 up to a multiple of 128 x 2
    assert arguments["ffn"] == 1344  # 4 x 512 x 2 / 3 down to a multiple of 64
    assert arguments["engine"]
    assert arguments["flash"]
    assert not question.asks_time
    for word, reason in (("multi-latent-attention", "latent"), ("use-megatron-fsdp", "FSDP")):
        refused = megatron_question(run_with(**MEGATRON, config_json=json.dumps(given | {word: True})))
        assert isinstance(refused, Refusal)
        assert reason in refused.reason


GPT_175B = {
    "hidden": "12288", "layers": "96", "heads": "96", "kv_heads": "96", "ffn": "49152", "vocab": "51200",
    "seq_len": "2048", "micro_batch": "1", "tp": "8", "pp": "8", "dp": "1", "global_batch": "64",
    "params": "175000000000", "sharding": "none", "activation_checkpointing": "none",
}  # fmt: skip


def test_activations_are_those_of_korthikanti_et_al():
    """Table 2 of arXiv:2205.05198 without the term of scores: s b h (10 + 24 / t), and s b h 34 / t in sequence."""
    size = 2048 * 12288
    plain = activation_bytes(run_with(**GPT_175B))
    assert plain == pytest.approx(size * (10 + 24 / 8) * 96)  # first of eight stages: all layers' worth is in flight
    split = activation_bytes(run_with(**GPT_175B, sequence_parallel="True"))
    assert split == pytest.approx(size * 34 / 8 * 96)
    again = run_with(**GPT_175B | {"activation_checkpointing": "full"}, sequence_parallel="True")
    assert activation_bytes(again) == pytest.approx(size * 2 / 8 * 96)


def test_states_are_eighteen_bytes_and_zero_divides_twelve_of_them():
    run = {**GPT_175B, "layers": "96", "tp": "1", "pp": "1", "dp": "8"}
    whole, shared = (run_with(**run | {"sharding": text}) for text in ("none", "DDP ZeRO-1"))
    states = [memory_bytes(each) - activation_bytes(each) for each in (whole, shared)]
    assert states == [pytest.approx(18 * 175e9), pytest.approx((6 + 12 / 8) * 175e9)]


def test_the_bubble_is_narayanans():
    """Section 2.2 of arXiv:2104.04473: (p - 1) / m, over v with interleaving."""
    assert slowdown(run_with(**GPT_175B)) == pytest.approx(1 + 7 / 64)
    assert slowdown(run_with(**GPT_175B, vp="2")) == pytest.approx(1 + 7 / 128)
    assert flops_per_token(run_with(**GPT_175B)) == pytest.approx(6 * 175e9 + 12 * 96 * 12288 * 2048)


def compared(measured, forecast, quantity="tokens", **columns):
    return Comparison(run_with(**columns), "x", quantity, measured, forecast, "titan", True, 90.0, 50.0)


def test_errors_are_signed_and_kinds_are_never_pooled():
    rows = [compared(100, 110), compared(100, 80), compared(100, 101, "peak"), compared(100, 105, "reserved")]
    line = summary(rows[:2])
    assert (line["rows"], line["median"], line["bias"]) == (2, 0.15, -0.05)
    assert line["worst"] == "x -20.0%"
    assert (line["constant"]["median"], line["formulas"]["median"]) == (0.1, 0.5)
    groups = groups_of(rows, source_of)
    assert all(len({row.quantity for row in listed}) == 1 for listed in groups.values())
    assert len(groups["fit", "tokens/s", "its program", "torchtitan benchmarks"]) == 2


def test_single_rows_of_the_test_half_are_never_shown():
    seen = next(name for name in "abcdef" if is_seen(name))
    unseen = next(name for name in "abcdef" if not is_seen(name))
    rows = [compared(100, 110, family=f"source {number}", group=unseen) for number in range(3)]
    (key,) = groups_of(rows, source_of)
    assert (key[0], key[3]) == ("test", FEW)
    assert "worst" not in summary(rows)
    assert groups_of(rows[:2], source_of) == {}
    assert len(groups_of([compared(100, 110, family="a", group=seen), *rows], source_of)) == 2


@pytest.mark.parametrize(
    ("columns", "kind", "scale"),
    [({"n_gpus": "8"}, "DP or FSDP", "1 to 8 GPUs"), ({"n_gpus": "9", "tp": "2"}, "with TP", "9 to 64 GPUs"),
     ({"n_gpus": "512", "pp": "2"}, "with PP", "65 to 512 GPUs"),
     ({"n_gpus": "1024", "ep": "2"}, "with EP", "513 and more GPUs")],
)  # fmt: skip
def test_kinds_and_sizes_are_those_of_the_goals(columns, kind, scale):
    row = compared(1, 1, **columns)
    assert (kind_of(row), scale_of(row)) == (kind, scale)


def test_the_page_counts_what_was_not_asked():
    report = Report([compared(100, 110)], {("torchtitan benchmarks", "fit"): Coverage(3, 2, 1)})
    report.reasons["FP8 | FP4"] = 7
    text = page_of(report)
    assert "| torchtitan benchmarks | fit | 3 | 2 | 1 |" in text
    assert "| 7 | FP8   FP4 |" in text
    assert (
        "| torchtitan benchmarks | fit | tokens/s | its program | 1 | 10.0 % | 10.0 % | +10.0 % | 10.0 % | 50.0 % |"
        in text
    )


def test_orders_need_five_layouts():
    rows = [compared(100 + 10 * number, 200 + number, tp=str(2**number)) for number in range(5)]
    assert [each["forecast"] for each in orders(rows).values()] == [1.0]
    assert [each["constant"] for each in orders(rows).values()] == [0.0]
    assert orders(rows[:4]) == {}


def test_answers_are_read_where_they_are_kept(tmp_path):
    question = titan_question(run_with())
    assert kept_answers([question], tmp_path) == {}
    (tmp_path / f"{question.key}.json").write_text('{"reserved": 3}')
    assert kept_answers([question], tmp_path) == {question.key: {"reserved": 3}}


@pytest.mark.skipif(not (DATA / "distributed.csv.gz").exists(), reason="the published runs are not here")
def test_every_published_value_is_asked_or_refused_with_a_reason():
    runs = load_runs(DATA)
    with gzip.open(DATA / "distributed.csv.gz", "rt", encoding="utf-8") as file:
        assert sum(len(run.values) for run in runs) == len(list(csv.DictReader(file)))
    for run in runs:
        answers = [refusal_of(run) or ask(run) for ask in (settings_question, titan_question, megatron_question)]
        assert all(isinstance(each, Question) or each.reason for each in answers)
        for each in answers:
            if isinstance(each, Question) and each.adapter == "settings":
                assert settings_from(each.content).parallel.world_size == run.whole("n_gpus")
