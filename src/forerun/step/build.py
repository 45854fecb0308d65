"""From settings to a `TrainingStep` on a device: model, adapter, activation checkpointing, optimizer.

The order matters: dtype, quantization, adapter (freezes the base), checkpointing, then the optimizer over what is left
trainable.
Training calls `build_step`; tracing prepares the model on `meta`, gives it fake storage, then binds it.
"""

import fnmatch
import functools
import logging
import warnings
from typing import Any

import torch
from torch import nn
from torch._subclasses.fake_tensor import is_fake

from forerun.errors import InvalidSettings, NotSupported, nearest
from forerun.models.build import require_transformers
from forerun.models.guard import cause_of, guarded, limited_parts
from forerun.settings.media import DENOISING
from forerun.settings.schema import Settings
from forerun.step import parallel
from forerun.step.attention import capability_of, take_offsets, take_package
from forerun.step.compiling import compile_step
from forerun.step.context_parallel import require_context_parallel
from forerun.step.denoising import narrow_frozen
from forerun.step.expert_parallel import require_expert_parallel
from forerun.step.float8 import take_float8
from forerun.step.fused_kernels import take_kernels
from forerun.step.kbit import narrow_adapters, prepare_for_kbit_training
from forerun.step.library_versions import has_linear_experts, packs_own_classes
from forerun.step.linear_experts import experts_as_layers
from forerun.step.offload import OffloadedOptimizer, require_offload
from forerun.step.optimizer import Wrap, build_optimizer
from forerun.step.optimizer_in_backward import require_alone
from forerun.step.parallel import unwrapped
from forerun.step.pipeline import Pipeline, require_pipeline
from forerun.step.precision import policy_of
from forerun.step.prompt_adapters import KINDS, add_prompt_adapter, require_place
from forerun.step.quantization import QuantizedLinear, lora_layers, quantize
from forerun.step.recomputation import checkpoint_blocks, recomputation
from forerun.step.sharding import shard
from forerun.step.tensor_parallel import require_tensor_parallel
from forerun.step.training_step import TrainingStep
from forerun.step.workload import Workload
from forerun.step.zero import ZeroOptimizer, require_zero
from forerun.step.zero_three import ZeroThreeOptimizer

CLASSIFICATIONS = ("sequence-classification", "token-classification", "image-classification")
CLASSIFICATION_HEADS = ("score", "classifier", "pre_classifier")
"""Heads that start from random weights: `SEQ_CLS_HEAD_NAMES` (peft/utils/constants.py:403, 0.21), DistilBERT's too."""
LORA = "lora_"
"""Part of the name of each parameter of a LoRA adapter (peft/tuners/lora/layer.py)."""
PEFT_PATTERN_WARNING = r"The following (rank|alpha)_pattern keys did not match"
"""peft sets these patterns itself for mixture-of-experts models, and then warns about them."""
PEFT_OLD_NAME_WARNING = "`is_gradient_checkpointing` is deprecated"
"""peft 0.21 asks transformers 5.23 by the old name."""


def build_step(settings: Settings, workload: Workload, device: str, *, pretrained: bool) -> TrainingStep:
    """The training step on torch device `device` ("cpu" or "cuda").

    Raises:
        NotSupported: a setting that this version cannot honour, or a transformers that is too old.
        InvalidSettings: the adapter names no module of this model.
    """
    require_trainable(settings)
    parallel.require_group(settings)
    with torch.device(device):
        model = prepare_model(settings, workload, pretrained=pretrained).to(device)
    mesh = parallel.mesh_of_ranks(settings, device)
    if mesh is not None:
        shard(model, settings, mesh)
    return bind_step(settings, workload, model, device, mesh=mesh)


def prepare_model(settings: Settings, workload: Workload, *, pretrained: bool) -> nn.Module:
    """The model with dtype, adapter and checkpointing applied, on the current default device (`meta` included).

    A workload whose model `is_ready` brings its dtypes and adapters.
    """
    refuse_unsupported(settings)
    if not getattr(workload, "is_ready", False):
        require_transformers()
    name = settings.model.name
    attempt = f"model: {name} cannot be built with these settings"
    with guarded(InvalidSettings, attempt, "Correct what the cause names."), limited_parts(name):
        return _prepared(settings, workload, pretrained=pretrained).train()


def _prepared(settings: Settings, workload: Workload, *, pretrained: bool) -> nn.Module:
    model = workload.build_model(settings, pretrained=pretrained)
    is_ready = getattr(workload, "is_ready", False)
    if not is_ready:
        model = model.to(policy_of(settings).parameter_dtype)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", PEFT_PATTERN_WARNING, RuntimeWarning)
        warnings.filterwarnings("ignore", PEFT_OLD_NAME_WARNING, FutureWarning)
        if has_linear_experts(settings, getattr(getattr(model, "config", None), "model_type", "")):
            experts_as_layers(model)
        if settings.quantization != "none":
            compute_dtype = policy_of(settings).compute_dtype
            # packed weights are gathered as they are only where they have the dtype of what is computed with
            # (bnb_4bit_quant_storage, https://huggingface.co/docs/bitsandbytes/fsdp_qlora); else FSDP would cast them
            storage = compute_dtype if settings.parallel.kind == "fsdp" else torch.uint8
            own = packs_own_classes(settings)
            quantize(model, settings.quantization, compute_dtype, storage, packs_own_classes=own)
        prepare_for_kbit_training(model, settings)
        if settings.adapter.kind == "lora" and not is_ready:
            model = add_adapter(model, settings)
        elif settings.adapter.kind in KINDS and not is_ready:
            require_place(settings, getattr(workload, "head", workload.name))
            model = add_prompt_adapter(model, settings)
        narrow_adapters(model, settings)
        freeze(model, settings)
        if settings.workload in DENOISING:
            narrow_frozen(model, settings)
        take_float8(model, settings, emulates=torch.get_default_device().type == "cpu")
        if settings.activation_checkpointing != "none":
            checkpoint_blocks(model, recomputation(settings))
    return model


def freeze(model: nn.Module, settings: Settings) -> None:
    """Take the parameters that `model.freeze` names out of training.

    Raises:
        InvalidSettings: a pattern names no parameter, or nothing is left to train.
    """
    patterns = settings.model.freeze
    names = {name: parameter for name, parameter in unwrapped(model).named_parameters()}
    for pattern in patterns:
        parameters = [parameter for name, parameter in names.items() if fnmatch.fnmatchcase(name, pattern)]
        if not parameters:
            raise InvalidSettings(
                f"model.freeze: names parameters of {settings.model.name}; found {pattern!r}, which none has. "
                f"Nearest: {nearest(pattern, list(names))}."
            )
        for parameter in parameters:
            parameter.requires_grad_(False)
    if patterns and not any(parameter.requires_grad for parameter in model.parameters()):
        raise InvalidSettings(
            f"model.freeze: leaves something to train; found {', '.join(patterns)}, which freeze all of it. "
            f"Take a pattern out."
        )


def bind_step(
    settings: Settings,
    workload: Workload,
    model: nn.Module,
    device: str,
    compiler: Any = "inductor",
    capability: tuple[int, int] | None = None,
    mesh: Any = None,
) -> TrainingStep:
    """Optimizer and step over a model that is where it will be trained; `device` is a torch device type.

    `compiler` is the backend of `torch.compile`, for settings that compile. `capability` is the compute capability of a
    virtual GPU; a real one is asked. `mesh` is that of the ranks, where layers are split or dealt to stages.
    """
    capability = capability or capability_of(device)
    take_package(model, settings, capability)
    if not any(is_fake(p) for p in model.parameters()):
        take_kernels(model, settings, capability)
    optimizer = build_optimizer(model, settings.optimizer, workload.learning_rate_scale, _wrap(settings, model))
    step = TrainingStep(settings, workload, model, optimizer, device)
    step.capability = capability
    step.documents = take_offsets(model, settings, capability)
    if settings.parallel.pipeline > 1:
        step.pipeline = Pipeline(settings, model, mesh, device)
    # DDP registers its hooks on the parameters, so it comes after the adapter and before `torch.compile`
    if settings.parallel.kind == "ddp" and not settings.parallel.deepspeed_stage:
        step.called = parallel.replicate(model, is_real=not any(is_fake(p) for p in model.parameters()))
    compile_step(step, settings, model, compiler)
    return step


def _wrap(settings: Settings, model: nn.Module) -> Wrap | None:
    """What decides over which tensors the optimizer's rule works; None where it is the parameters themselves."""
    if settings.parallel.deepspeed_stage:
        kind = ZeroThreeOptimizer if settings.parallel.deepspeed_stage == 3 else ZeroOptimizer
        return functools.partial(kind, settings=settings, model=model)
    return OffloadedOptimizer if settings.parallel.offload == "optimizer" else None


def refuse_unsupported(settings: Settings) -> None:
    """Refuse what the contract allows but this version does not do."""
    parallel.refuse_unsupported(settings)
    require_alone(settings)
    require_offload(settings)
    require_zero(settings)
    require_tensor_parallel(settings)
    require_pipeline(settings)
    require_context_parallel(settings)
    require_expert_parallel(settings)
    if settings.activation_offload and (settings.compile != "none" or settings.parallel.kind == "fsdp"):
        raise NotSupported(
            f"activation_offload: hooks on saved tensors are not modelled inside compiled graphs or around gathered "
            f"weights; found compile={settings.compile!r}, parallel.kind={settings.parallel.kind!r}. Set it to false."
        )
    if settings.kbit_preparation and settings.quantization == "none":
        raise NotSupported(
            "kbit_preparation: prepares quantised models; found quantization='none'. Set it to false, or quantize."
        )


def require_trainable(settings: Settings) -> None:
    """Refuse to run what this version only forecasts.

    Raises:
        NotSupported: naming the setting and the reason.
    """
    if settings.optimizer.in_backward:
        raise NotSupported(
            "optimizer.in_backward: is forecast here, not trained: a step that updates in its backward pass cannot be "
            "replayed when it runs out of memory, nor skipped when it is not finite. Set it to false to train."
        )
    if settings.adapter.kind in KINDS:
        raise NotSupported(
            f"adapter.kind: {settings.adapter.kind} is forecast here, not trained: checkpoints and exports of this "
            f"version know LoRA. Set adapter.kind to lora to train."
        )
    if settings.versions:
        raise NotSupported(
            f"versions: are for a forecast; training runs with what is installed here; found {settings.versions}. "
            f"Leave them out to train."
        )
    if settings.float8.all_gather:
        raise NotSupported(
            "float8.all_gather: is forecast here, not trained: checkpoints of this version do not know weights that "
            "are gathered in float8. Set it to false to train."
        )
    stage, offload = settings.parallel.deepspeed_stage, settings.parallel.offload
    for name, value in (("zero", stage), ("offload", offload)):
        if value not in (0, "none"):
            if settings.parallel.kind == "fsdp":
                raise NotSupported(
                    f"parallel.offload: is forecast here, not trained: this trainer's norms and checkpoints are of "
                    f"weights on the device; found {value!r}. Set it to none to train."
                )
            engine = "DeepSpeed" if stage else "torchao"
            raise NotSupported(
                f"parallel.{name}: is forecast here, not trained: {engine}'s optimizer is not part of this trainer; "
                f"found {value!r}. Train with {engine} itself, or set parallel.kind to fsdp."
            )


def add_adapter(model: nn.Module, settings: Settings) -> nn.Module:
    """LoRA through peft, whose adapters are fp32 beside weights of 16 bits too (before 0.12: `narrow_adapters`)."""
    logging.getLogger("bitsandbytes").setLevel(logging.ERROR)  # peft imports it, and it tells of kernels that it lacks
    from peft import LoraConfig, get_peft_model

    adapter = settings.adapter
    targets = adapter.targets if isinstance(adapter.targets, str) else list(adapter.targets)
    config = LoraConfig(
        r=adapter.rank,
        lora_alpha=adapter.alpha,  # type: ignore[arg-type]
        lora_dropout=adapter.dropout,
        target_modules=targets,  # type: ignore[arg-type]
        exclude_modules=linear_routers(model) or None,
        modules_to_save=trained_whole(model, settings) or None,
        use_rslora=adapter.rslora,
        use_dora=adapter.dora,
        fan_in_fan_out=any(type(module).__name__ == "Conv1D" for module in model.modules()),  # GPT-2's linear layers
    )
    if settings.quantization != "none" and any(isinstance(m, QuantizedLinear) for m in model.modules()):
        config._register_custom_module(lora_layers())
    # before peft changes the model: it gives up half-way, with its own layers in
    linear = sorted({n.rpartition(".")[2] for n, m in model.named_modules() if isinstance(m, nn.Linear)})
    try:
        adapted = get_peft_model(model, config)  # type: ignore[arg-type]
    except ValueError as error:
        if adapter.dora and "use_dora" in str(error):  # peft/tuners/lora/layer.py:2372 (0.21): ParamWrapper
            raise NotSupported(
                "adapter.dora: peft has no DoRA for experts whose weights are one tensor, as those of "
                f"{settings.model.name} are. Set adapter.dora to false, or adapter.targets to linear modules: "
                f"{', '.join(linear)}."
            ) from error
        raise InvalidSettings(
            f"adapter.targets: must name linear modules of {settings.model.name} that peft takes; found "
            f"{adapter.targets!r}: {cause_of(error)}. Its linear modules: {', '.join(linear)}."
        ) from error
    policy = policy_of(settings)
    if policy.autocast_dtype is not None:
        # peft/tuners/tuners_utils.py:2163 (0.21) gives adapters the compute dtype of bitsandbytes' 4-bit layers; a loss
        # scale refuses gradients of fp16 (torch/amp/grad_scaler.py:275, 2.13)
        for name, parameter in adapted.named_parameters():
            if parameter.requires_grad:  # beside weights in 16 bits adapters are fp32, modules trained whole are not
                is_adapter = LORA in name
                parameter.data = parameter.data.to(torch.float32 if is_adapter else policy.parameter_dtype)
    return adapted


def linear_routers(model: nn.Module) -> list[str]:
    """Paths of routers of experts that are a linear layer and return more than its product (Llama 4, Phi-tiny-MoE).

    peft (0.21) takes them for linear layers, and fails when they run.
    """
    return [
        name
        for name, module in model.named_modules()
        if isinstance(module, nn.Linear) and type(module).__name__.endswith("Router")
    ]


def trained_whole(model: nn.Module, settings: Settings) -> list[str]:
    """Modules trained whole beside the adapters: those of the settings and a new classification head.

    Raises:
        InvalidSettings: the model has no module of such a name.
    """
    names = {name.rpartition(".")[2] for name, _ in model.named_modules()}
    missing = [name for name in settings.adapter.modules_to_save if name not in names]
    if missing:
        own = sorted(name for name, child in model.named_children() if isinstance(child, nn.Module))
        raise InvalidSettings(
            f"adapter.modules_to_save: names modules of {settings.model.name}; found {missing[0]!r}. Its outermost "
            f"modules: {', '.join(own)}."
        )
    heads = CLASSIFICATION_HEADS if settings.workload in CLASSIFICATIONS else ()
    return sorted({*settings.adapter.modules_to_save, *(head for head in heads if head in names)})
