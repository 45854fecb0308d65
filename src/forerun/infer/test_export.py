"""Exports are read by transformers and peft themselves, score as the run's model, and are refused when they do not."""

import json
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from forerun.errors import BadData, ExportMoved, FilesNotWritten, InvalidSettings, NotSupported
from forerun.hardware.detect import detect_cpu
from forerun.infer import export
from forerun.infer.export import ADAPTER_WEIGHTS, load_exported, write_export
from forerun.runs import export as exporting
from forerun.runs.recipe import Experiment
from forerun.settings.load import settings_from
from forerun.step.heads import CausalLM
from forerun.train.loop import Training

sys.path.insert(0, str(Path(__file__).parents[3] / "tests"))
from forerun.data.token_data import TokenData, TokenSample
from forerun.runs.run import start_training

LORA = {"kind": "lora", "rank": 4, "alpha": 32, "targets": "all-linear"}
KINDS = {
    "whole": {},
    "lora": {"adapter": LORA},
    "dora": {"adapter": {**LORA, "dora": True}},
    "nf4": {"adapter": LORA, "quantization": "nf4"},
    "int8": {"adapter": LORA, "quantization": "int8"},
    "bf16": {"adapter": LORA, "precision": "bf16-true"},
}


class Tiny(CausalLM):
    """Random weights for names of the catalogue, since no file has any."""

    def build_model(self, settings, *, pretrained):
        return super().build_model(settings, pretrained=pretrained and Path(settings.model.name).is_dir())


def tiny_experiment(kind, workload="causal-lm", model="tiny-llama") -> Experiment:
    settings = settings_from({
        "name": "e", "workload": workload, "model": {"name": model}, "optimizer": {"learning_rate": 1e-2},
        "batch": {"micro_batch_size": 4, "sequence_length": 16}, "schedule": {"epochs": 9, "max_steps": 12},
        "data": {"examples": 24}, **KINDS[kind],
    })  # fmt: skip
    generator = torch.Generator().manual_seed(1)
    samples = [
        TokenSample(
            torch.randint(3, 60, (12,), generator=generator).tolist(), None if workload == "causal-lm" else n % 2
        )
        for n in range(24)
    ]
    data = TokenData(settings, samples)
    experiment = Experiment(
        settings=settings, workload=Tiny(), data=data, plan=data.plan(), load_seconds=0.0,
        final_examples=0, evaluate=lambda step, number: {}, judge=lambda step: None, baselines=lambda scores: None,
        criteria=(),
    )  # fmt: skip
    object.__setattr__(experiment, "evaluate", lambda step, number: {"held_out": exporting.mean_loss(step, experiment)})
    return experiment


@pytest.fixture(scope="module")
def device():
    return detect_cpu().device


def trained(recipe, device, folder) -> Training:
    training = start_training(recipe, device, folder)
    for _ in training.steps():
        pass
    return training


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("merge", [False, True])
def test_exported_models_score_as_the_run_s(tmp_path, device, kind, merge):
    if kind == "whole" and merge:
        pytest.skip("nothing to merge")
    if kind in ("nf4", "int8"):
        pytest.importorskip("bitsandbytes")
    recipe = tiny_experiment(kind)
    trained(recipe, device, tmp_path / "run")
    report = exporting.export_run("r", recipe, device, tmp_path / "run", tmp_path / "out", merge=merge)
    assert report.kind == ("model" if kind == "whole" else "merged" if merge else "adapter")
    loss = report.compared[0]
    assert abs(loss.exported - loss.original) <= loss.tolerance
    assert not (tmp_path / "out.partial").exists()
    if merge:
        from transformers import AutoModelForCausalLM

        again = AutoModelForCausalLM.from_pretrained(tmp_path / "out")
        names = {name for name, _ in again.named_parameters()}
        assert not [name for name in names if "lora" in name]
        fresh = start_training(recipe, device, tmp_path / "none").step
        base = fresh.model.get_submodule("base_model.model.model.layers.0.self_attn.q_proj.base_layer")
        if kind in ("lora", "dora", "bf16"):
            moved = again.model.layers[0].self_attn.q_proj.weight.float() - base.weight.float()  # type: ignore[union-attr]
            assert moved.abs().max() > 1e-3, "the update is in the weights"


def test_peft_itself_reads_an_exported_adapter(tmp_path, device):
    from peft import PeftModel

    recipe = tiny_experiment("lora")
    step = trained(recipe, device, tmp_path / "run").step
    exporting.export_run("r", recipe, device, tmp_path / "run", tmp_path / "out", merge=False)
    plain = recipe.settings.model_copy(
        update={
            "adapter": settings_from({"name": "x", "workload": "causal-lm", "model": {"name": "tiny-llama"}}).adapter
        }
    )
    torch.manual_seed(0)
    base = start_training(_with(recipe, plain), device, tmp_path / "base").step.model
    ids = torch.arange(3, 15).unsqueeze(0)
    model = PeftModel.from_pretrained(base, str(tmp_path / "out")).eval()
    step.model.eval()
    with torch.no_grad():
        assert torch.allclose(model(input_ids=ids).logits, step.model(input_ids=ids).logits, atol=1e-6)


def _with(recipe, settings):
    from dataclasses import replace

    return replace(recipe, settings=settings)


def test_what_is_no_model_of_transformers_is_read_back_too(tmp_path):
    from kill_driver import SETTINGS, TinyWorkload, tiny_training, weights_hash

    training = tiny_training(tmp_path / "run")
    write_export(training.step.model, settings_from(SETTINGS), tmp_path / "out", "model")
    settings, model = load_exported(tmp_path / "out", TinyWorkload())
    assert settings.workload == "tiny"
    assert weights_hash(model) == weights_hash(training.step.model)


def test_tensors_that_a_model_shares_need_be_stored_once(tmp_path, device):
    """transformers names its own; a recipe's model ties them without telling."""
    from forerun.recipes.okadfa.recipe import SETTINGS, load_experiment

    experiment = load_experiment(
        settings_from(SETTINGS.model_dump(), ["recipe.corpus=markov", "batch.micro_batch_size=1"])
    )
    training = start_training(experiment, device, tmp_path / "run")
    write_export(training.step.model, experiment.settings, tmp_path / "out", "model")
    stored = load_file(tmp_path / "out" / "model.safetensors")
    assert "head.weight" not in stored
    _, model = load_exported(tmp_path / "out", experiment.workload)
    assert torch.equal(model.head.weight, training.step.model.head.weight)
    save_file({n: t for n, t in stored.items() if "embedding" not in n}, tmp_path / "out" / "model.safetensors")
    with pytest.raises(BadData, match="other tensors than the model's"):
        load_exported(tmp_path / "out", experiment.workload)


def test_an_empty_adapter_is_refused(tmp_path, device):
    recipe = tiny_experiment("lora")
    model = start_training(recipe, device, tmp_path).step.model
    with pytest.raises(BadData, match="every matrix B of the adapter is zero"):
        write_export(model, recipe.settings, tmp_path / "untrained", "adapter")
    trained(recipe, device, tmp_path / "run")
    exporting.export_run("r", recipe, device, tmp_path / "run", tmp_path / "out", merge=False)
    file = tmp_path / "out" / ADAPTER_WEIGHTS
    some = load_file(file)
    some.pop(next(iter(some)))
    save_file(some, file)
    with pytest.raises(BadData, match="not saved whole"):
        export.require_whole_adapter(model, file)
    file.unlink()
    with pytest.raises(BadData, match="found 0 of 0 bytes"):
        export.require_whole_adapter(model, file)


def test_an_export_that_moved_is_refused_and_leaves_nothing(tmp_path, device, monkeypatch):
    recipe = tiny_experiment("lora")
    trained(recipe, device, tmp_path / "run")
    real = export.merged

    def lossy(model):
        plain = real(model)
        with torch.no_grad():
            plain.lm_head.weight.mul_(3)
        return plain

    monkeypatch.setattr(export, "merged", lossy)
    with pytest.raises(ExportMoved, match=r"loss .* -> .*Nothing was written"):
        exporting.export_run("r", recipe, device, tmp_path / "run", tmp_path / "out", merge=True)
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


def test_an_export_without_room_is_said_and_leaves_nothing(tmp_path, device):
    recipe = tiny_experiment("lora")
    trained(recipe, device, tmp_path / "run")
    (tmp_path / "file").write_text("")
    with pytest.raises(FilesNotWritten, match=r"--to: .*Nothing was left there"):
        exporting.export_run("r", recipe, device, tmp_path / "run", tmp_path / "file" / "out", merge=False)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "run"]


def test_bad_requests(tmp_path, device):
    recipe = tiny_experiment("whole")
    with pytest.raises(InvalidSettings, match="no checkpoint"):
        exporting.export_run("r", recipe, device, tmp_path / "run", tmp_path / "out", merge=False)
    (tmp_path / "there").mkdir()
    with pytest.raises(InvalidSettings, match="--to"):
        exporting.export_run("r", recipe, device, tmp_path / "run", tmp_path / "there", merge=False)
    with pytest.raises(NotSupported, match="without an adapter is exported as model"):
        write_export(torch.nn.Linear(1, 1), recipe.settings, tmp_path / "x", "merged")
    with pytest.raises(BadData, match="no export of this program"):
        load_exported(tmp_path / "there", recipe.workload)
    (tmp_path / "there" / "forerun.json").write_text(json.dumps({"settings": {}}))
    with pytest.raises(BadData, match="no export"):
        load_exported(tmp_path / "there", recipe.workload)


def test_a_run_of_several_processes_is_exported_by_one():
    several = settings_from({
        "name": "x", "workload": "causal-lm", "model": {"name": "tiny-llama"}, "adapter": {"kind": "lora"},
        "batch": {"gradient_accumulation_steps": 3}, "parallel": {"tensor": 2, "shard": 2},
    })  # fmt: skip
    one = exporting.in_one_process(several)
    assert (one.parallel.world_size, one.batch.gradient_accumulation_steps) == (1, 6)
    assert one.resumable_hash == several.resumable_hash
