import itertools

import pytest
import torch

from forerun.data.plan import BatchShape
from forerun.errors import InvalidSettings, NotSupported
from forerun.hardware.catalogue import device
from forerun.recipes.okadfa.model.kernel_decoder import KernelDecoder
from forerun.recipes.okadfa.recipe import SETTINGS
from forerun.recipes.okadfa.workload import OkadfaWorkload, config_of
from forerun.settings.load import settings_from
from forerun.step.build import build_step
from forerun.step.training_step import StepObserver
from forerun.virtual.trace_step import trace_step

SMALL = ["model.config.width=32", "model.config.layers=2", "model.config.heads=2", "model.config.feed_forward=48",
         "batch.sequence_length=24", "batch.micro_batch_size=4", "model.config.chunk=8"]  # fmt: skip
RULES = ["backpropagation", "dfa-macro", "dfa-micro", "shallow"]


def small(*more):
    return settings_from(SETTINGS.model_dump(), [*SMALL, *more])


def step_of(settings):
    torch.manual_seed(0)
    return build_step(settings, OkadfaWorkload(settings), "cpu", pretrained=False)


def batch(size=4, seed=0):
    rows = torch.randint(0, 257, (size, 25), generator=torch.Generator().manual_seed(seed))
    return {"input_ids": rows[:, :-1], "labels": rows[:, 1:]}


@pytest.mark.parametrize("rule", RULES)
def test_micro_batches_make_the_step_of_one_big_batch(rule):
    settings = small(f"recipe.learning_rule={rule}", "recipe.orthogonality=0.1", "optimizer.name=sgd")
    whole, parts = step_of(settings), step_of(settings)
    for step in (whole, parts):
        step.model.orthogonality_share.fill_(1.0)
        with torch.no_grad():
            step.model.blocks[-1].attention.query.weight.mul_(1.5)
    big = batch(6)
    cut = [{name: value[a:b] for name, value in big.items()} for a, b in ((0, 4), (4, 6))]
    one, two = whole.run([big], StepObserver()), parts.run(cut, StepObserver())
    assert float(one.loss) == pytest.approx(float(two.loss), abs=1e-5)
    for (name, p), q in zip(whole.model.named_parameters(), parts.model.parameters(), strict=True):
        assert torch.allclose(p, q, atol=1e-6), name
    assert float(one.details["orthogonality"]) > 0.5


@pytest.mark.parametrize(("attention", "rule"), itertools.product(["softmax", "elu", "favor"], RULES))
def test_a_few_steps_learn_one_batch(attention, rule):
    settings = small(f"recipe.attention={attention}", f"recipe.learning_rule={rule}")
    step, data = step_of(settings), batch()
    losses = [float(step.run([data], StepObserver()).details["token_loss"]) for _ in range(25)]
    assert losses[-1] < losses[0] - 0.5
    assert {"token_loss", "attention_ratio", "orthogonality"} <= step.run([data], StepObserver()).details.keys()


def test_chunked_cross_entropy_is_the_full_one():
    full, chunked = step_of(small()), step_of(small("cross_entropy=chunked"))
    first, second = full.run([batch()], StepObserver()), chunked.run([batch()], StepObserver())
    assert float(first.loss) == pytest.approx(float(second.loss), abs=1e-5)
    for (name, p), q in zip(full.model.named_parameters(), chunked.model.parameters(), strict=True):
        assert torch.allclose(p, q, atol=2e-5), name


def test_bf16_autocast_trains_with_feedback():
    step = step_of(small("precision=bf16-mixed"))
    losses = [float(step.run([batch()], StepObserver()).details["token_loss"]) for _ in range(10)]
    assert losses[-1] < losses[0]


def test_shallow_trains_the_last_block_only():
    step = step_of(small("recipe.learning_rule=shallow"))
    before = {name: p.detach().clone() for name, p in step.model.named_parameters()}
    step.run([batch()], StepObserver())
    moved = {name for name, p in step.model.named_parameters() if not torch.equal(p, before[name])}
    assert all(name.startswith(("blocks.1", "final_norm", "embedding")) for name in moved)
    assert not any(name.startswith("blocks.0") for name in moved)


@pytest.mark.parametrize(
    ("rule", "checkpointing"), [(r, "none") for r in RULES] + [("dfa-macro", "blocks"), ("dfa-micro", "selective")]
)
def test_the_virtual_gpu_runs_every_rule(rule, checkpointing):
    settings = small(
        f"recipe.learning_rule={rule}", "precision=bf16-mixed", f"activation_checkpointing={checkpointing}"
    )
    trace = trace_step(settings, OkadfaWorkload(settings), device("a100-40gb"), BatchShape(4, 24))
    assert trace.total_parameters == config_of(settings).parameters
    lower = config_of(settings).parameters - trace.trainable_parameters
    assert (lower > 0) == (rule == "shallow")


def test_frozen_blocks_cost_less_memory_and_recomputation_too():
    from forerun.api import forecast_settings

    def peak(*more):
        settings = small(*more, "data.examples=64", "batch.micro_batch_size=16")
        return forecast_settings(settings, device("a100-40gb")).memory.peak_allocated_bytes

    plain = peak("recipe.learning_rule=dfa-macro")
    assert peak("recipe.learning_rule=shallow") < plain
    assert peak("recipe.learning_rule=dfa-macro", "activation_checkpointing=blocks") < plain


@pytest.mark.parametrize(
    ("override", "error", "word"),
    [
        ("parallel.kind=fsdp", NotSupported, "ddp"),
        ("adapter.kind=lora", NotSupported, "adapter"),
        ("batch.padding=packed", NotSupported, "fixed"),
        ("recipe.attention=linear", InvalidSettings, "recipe.attention"),
        ("recipe.rule=bp", InvalidSettings, "recipe.rule"),
        ("model.config.attention=elu", InvalidSettings, "recipe.attention"),
    ],
)
def test_what_cannot_work_is_refused(override, error, word):
    settings = small(override)
    with pytest.raises(error, match=word):
        OkadfaWorkload(settings).build_model(settings, pretrained=False)


def test_the_model_is_the_decoder():
    settings = small()
    model = OkadfaWorkload(settings, 16).build_model(settings, pretrained=False)
    assert isinstance(model, KernelDecoder)
    assert model.config.vocabulary_size == 16


@pytest.fixture
def group():
    torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
    yield
    torch.distributed.destroy_process_group()


@pytest.mark.parametrize("rule", RULES)
def test_ddp_gives_the_same_gradients(group, rule):
    step = step_of(small(f"recipe.learning_rule={rule}"))

    def gradients(called):
        step.model.zero_grad()
        step.workload.loss(called, batch()).sum.backward()
        return {name: p.grad.clone() for name, p in step.model.named_parameters() if p.grad is not None}

    plain = gradients(step.model)
    wrapped = gradients(torch.nn.parallel.DistributedDataParallel(step.model))
    assert plain.keys() == wrapped.keys()
    for name, gradient in plain.items():
        assert torch.equal(gradient, wrapped[name]), name


def test_several_ranks_are_forecast():
    settings = small("parallel.kind=ddp", "parallel.world_size=4", "precision=bf16-mixed")
    trace = trace_step(settings, OkadfaWorkload(settings), device("a100-40gb"), BatchShape(4, 24))
    assert trace.world_size == 4
