"""Liger's `apply_liger_kernel_to_…`: models of transformers get its kernels, as a whole class or one model.

What is replaced (`liger_kernel/transformers/monkey_patch.py`, 0.6 to 0.8): RMS normalisations, gated feed-forward
layers, rotary positions, and the loss of causal language models, which then never has all logits. Everything is put
back when the program ends.
"""

import importlib
import types
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from forerun.virtual.cuda.stand_ins import liger
from forerun.virtual.cuda.stand_ins.packages import StandInPackage
from forerun.virtual.cuda.stand_ins.registry import explain_missing


@dataclass(frozen=True)
class LigerModel:
    """Names in transformers of a type of model; `activation` is that of its gated layer."""

    prefix: str
    activation: str = "liger_silu_mul"
    gate: str = "MLP"
    packs: bool = False
    """Gate and up projection are one linear layer."""
    module: str = ""
    """Module of transformers, where it has another name than the type."""
    has_own_gradients: bool = False
    """Gradients of normalisations do not take the place of the upstream ones (`in_place=False` there)."""


MODELS = {
    "llama": LigerModel("Llama"), "mistral": LigerModel("Mistral"), "qwen2": LigerModel("Qwen2"),
    "qwen3": LigerModel("Qwen3"), "gemma": LigerModel("Gemma", "liger_gelu_mul"),
    "gemma2": LigerModel("Gemma2", "liger_gelu_mul", has_own_gradients=True),
    "gemma3_text": LigerModel("Gemma3", "liger_gelu_mul", module="gemma3", has_own_gradients=True),
    "phi3": LigerModel("Phi3", packs=True), "granite": LigerModel("Granite"), "smollm3": LigerModel("SmolLM3"),
    "olmo2": LigerModel("Olmo2", has_own_gradients=True), "olmo3": LigerModel("Olmo3", has_own_gradients=True),
    "exaone4": LigerModel("Exaone4", has_own_gradients=True), "hunyuan_v1_dense": LigerModel("HunYuanDenseV1"),
    "ministral": LigerModel("Ministral"),
}  # fmt: skip
"""By `model_type`."""
WITHOUT_STAND_IN = frozenset({
    "deepseek_v2", "deepseek_v3", "deepseek_v4", "falcon_h1", "gemma3", "gemma4", "gemma4_text", "glm4", "glm4v",
    "glm4v_moe", "gpt_oss", "hunyuan_v1_moe", "internvl", "llama4", "llama4_text", "llava", "mixtral", "mllama",
    "mllama_text_model", "muse_glimmer", "nemotron", "paligemma", "pixtral", "qwen2_5_vl", "qwen2_5_vl_text",
    "qwen2_vl", "qwen2_vl_text", "qwen3_5", "qwen3_5_moe", "qwen3_5_moe_text", "qwen3_5_text", "qwen3_moe",
    "qwen3_next", "qwen3_vl", "qwen3_vl_moe", "qwen3_vl_moe_text", "qwen3_vl_text", "smolvlm",
})  # fmt: skip
"""Types that Liger 0.8.5 has kernels for and this package has not; it passes over any other, with a line in its log."""
_UNDO: list[tuple[Any, str, Any]] = []


def restore() -> None:
    """Put back everything that was replaced."""
    while _UNDO:
        owner, name, value = _UNDO.pop()
        setattr(owner, name, value)


def _replace(owner: Any, name: str, value: Any) -> None:
    _UNDO.append((owner, name, getattr(owner, name)))
    setattr(owner, name, value)


def _norm(self: Any, hidden_states: Tensor) -> Tensor:
    return liger.rms_norm(hidden_states, self.weight)


def _norm_apart(self: Any, hidden_states: Tensor) -> Tensor:
    return liger.rms_norm(hidden_states, self.weight, is_in_place=False)


def _gated(self: Any, x: Tensor, kernel: str) -> Tensor:
    return self.down_proj(liger.gate_mul(self.gate_proj(x), self.up_proj(x), kernel))


def _gated_packed(self: Any, x: Tensor, kernel: str) -> Tensor:
    gate, up = self.gate_up_proj(x).chunk(2, dim=-1)
    return self.down_proj(liger.gate_mul(gate, up, kernel))


def _forward_with_loss(
    self: Any, input_ids: Any = None, labels: Any = None, logits_to_keep: Any = 0, skip_logits: bool | None = None,
    shift_labels: Any = None, num_items_in_batch: Any = None, **more: Any,
) -> Any:  # fmt: skip
    """A causal language model whose loss in training never has all logits (`model/llama.py`, `lce_forward`)."""
    from transformers.modeling_outputs import CausalLMOutputWithPast

    more.pop("return_dict", None)
    has_labels = labels is not None or shift_labels is not None
    outputs = self.model(input_ids=input_ids, **more)
    hidden, loss, logits = outputs.last_hidden_state, None, None
    if has_labels and (self.training if skip_logits is None else skip_logits):
        targets = shift_labels
        if targets is None:
            targets = nn.functional.pad(labels, (0, 1), value=-100)[..., 1:].contiguous()  # type: ignore[arg-type]
        hidden = hidden.view(-1, hidden.shape[-1])
        loss = liger.fused_linear_cross_entropy(hidden, self.lm_head.weight, targets.view(-1))
        loss = loss if num_items_in_batch is None else loss / num_items_in_batch
    else:
        last = slice(-logits_to_keep, None) if isinstance(logits_to_keep, int) else logits_to_keep
        logits = self.lm_head(hidden[:, last, :])
        if has_labels:
            loss = self.loss_function(
                logits=logits, labels=labels, vocab_size=self.config.vocab_size, num_items_in_batch=num_items_in_batch
            )
    past = outputs.past_key_values  # transformers 5.24 takes this name and calls it `cache`
    return CausalLMOutputWithPast(loss=loss, logits=logits, past_key_values=past)  # type: ignore[call-arg]


def _applier(kind: str) -> Callable[..., None]:
    """`apply_liger_kernel_to_<kind>`."""

    def apply(
        rope: bool = True, cross_entropy: bool = False, fused_linear_cross_entropy: bool = True, rms_norm: bool = True,
        swiglu: bool = True, geglu: bool = True, model: nn.Module | None = None, **others: Any,
    ) -> None:  # fmt: skip
        names = MODELS[kind]
        folder = names.module or kind
        module = importlib.import_module(f"transformers.models.{folder}.modeling_{folder}")
        gate = _gated_packed if names.packs else _gated
        forwards: dict[str, Callable[..., Any]] = {}
        if rms_norm:
            forwards[f"{names.prefix}RMSNorm"] = _norm_apart if names.has_own_gradients else _norm
        if swiglu and geglu:
            forwards[f"{names.prefix}{names.gate}"] = lambda self, x: gate(self, x, names.activation)
        if fused_linear_cross_entropy:
            forwards[f"{names.prefix}ForCausalLM"] = _forward_with_loss
        if rope:
            _replace(module, "apply_rotary_pos_emb", liger.liger_rotary_pos_emb)
        if cross_entropy:
            _replace(nn.functional, "cross_entropy", _cross_entropy)
        for name, forward in forwards.items():
            kind_of_module = getattr(module, name)
            if model is None:
                _replace(kind_of_module, "forward", forward)
            else:
                for each in model.modules():
                    if type(each) is kind_of_module:
                        each.forward = types.MethodType(forward, each)  # type: ignore[method-assign]

    apply.__name__ = f"apply_liger_kernel_to_{kind}"
    return apply


def _cross_entropy(input: Tensor, target: Tensor, weight: Any = None, *_: Any, **options: Any) -> Tensor:
    return liger.cross_entropy(input, target, options.get("ignore_index", -100))


APPLIERS = {kind: _applier(kind) for kind in MODELS}


def apply_to_type(model_type: str, **options: Any) -> None:
    """Apply the kernels to all models of a type."""
    _applier_of(model_type)(**options)


def apply_to_instance(model: Any, **options: Any) -> None:
    """Apply the kernels to one model."""
    _applier_of(model.config.model_type)(model=model, **options)


def _applier_of(model_type: str) -> Callable[..., None]:
    if model_type not in APPLIERS and model_type not in WITHOUT_STAND_IN:
        return lambda **_: None
    if model_type not in APPLIERS:
        raise NotImplementedError(
            f"{explain_missing(f'liger_kernel for {model_type}')}\nModel types with a stand-in: {', '.join(APPLIERS)}."
        )
    return APPLIERS[model_type]


CHUNKED_LOSSES = tuple(
    f"LigerFusedLinear{each}Loss" for each in ("CPO", "CosineSimilarity", "DPO", "GRPO", "JSD", "KTO", "ORPO", "SimPO")
)
"""Losses of preferences, rewards and distillation (liger-kernel 0.8.5). TRL imports them where Liger is installed."""


def _refused(name: str) -> type:
    """A class that can be imported and not made."""

    def __init__(self: Any, *_: Any, **__: Any) -> None:
        raise NotImplementedError(explain_missing(name))

    return type(name.rpartition(".")[2], (), {"__init__": __init__, "__doc__": f"Without a stand-in: {name}."})


def _modules() -> Mapping[str, Mapping[str, Any]]:
    from transformers import AutoModelForCausalLM

    class AutoLigerKernelForCausalLM(AutoModelForCausalLM):
        """Applies the kernels to the type of model, then loads it (`auto_model.py`)."""

        @classmethod
        def from_pretrained(cls, pretrained_model_name_or_path: Any, *args: Any, **options: Any) -> Any:
            from transformers import AutoConfig

            config = AutoConfig.from_pretrained(pretrained_model_name_or_path)
            choices = ("rope", "swiglu", "geglu", "rms_norm", "cross_entropy", "fused_linear_cross_entropy")
            apply_to_type(config.model_type, **{name: options.pop(name) for name in choices if name in options})
            return super().from_pretrained(pretrained_model_name_or_path, *args, **options)

    classes = (
        liger.LigerRMSNorm, liger.LigerCrossEntropyLoss, liger.LigerFusedLinearCrossEntropyLoss,
        liger.LigerSwiGLUMLP, liger.LigerGEGLUMLP, liger.liger_rotary_pos_emb,
    )  # fmt: skip
    content: dict[str, Any] = {each.__name__: each for each in classes}
    content |= {apply.__name__: apply for apply in APPLIERS.values()}
    content |= {
        "AutoLigerKernelForCausalLM": AutoLigerKernelForCausalLM,
        "_apply_liger_kernel": apply_to_type,
        "_apply_liger_kernel_to_instance": apply_to_instance,
    }
    return {
        "liger_kernel": {},
        "liger_kernel.chunked_loss": {name: _refused(f"liger_kernel.chunked_loss.{name}") for name in CHUNKED_LOSSES},
        "liger_kernel.transformers": content,
        "liger_kernel.transformers.monkey_patch": content | {"MODEL_TYPE_TO_APPLY_LIGER_FN": APPLIERS},
        "liger_kernel.transformers.rms_norm": content,
        "liger_kernel.transformers.rope": content,
        "liger_kernel.transformers.swiglu": content,
        "liger_kernel.transformers.cross_entropy": content,
        "liger_kernel.transformers.fused_linear_cross_entropy": content,
    }


PACKAGES = (StandInPackage("liger_kernel", "liger-kernel", "0.6.4", _modules, (7, 0)),)
"""LinkedIn's Triton kernels."""
