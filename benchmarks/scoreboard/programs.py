"""The training steps of the measured runs, as PyTorch programs for `forerun.forecast_step`.

Each makes what the source's own script makes, with the transformers and peft of its time: what the loop keeps alive, in
which order, and in which number format. Runs on the virtual GPU, so no weights are needed.
"""

import importlib
from collections.abc import Callable
from typing import Any

import torch
from benchmarks.scoreboard.squad import squad_training
from torch import Tensor, nn

from forerun.models.library_import import import_library
from forerun.step.quantization import lora_layers, quantize
from forerun.virtual.placement import place

Step = Callable[[], object]
Program = tuple[nn.Module, Step]

ARCHITECTURES: dict[str, tuple[str, str, dict[str, Any]]] = {
    "gpt2-large": ("GPT2Config", "GPT2LMHeadModel", {"n_embd": 1280, "n_layer": 36, "n_head": 20}),
    "pythia-410m": (
        "GPTNeoXConfig", "GPTNeoXForCausalLM",
        {"hidden_size": 1024, "num_hidden_layers": 24, "num_attention_heads": 16, "intermediate_size": 4096,
         "vocab_size": 50304},
    ),
    "opt-350m": (
        "OPTConfig", "OPTForCausalLM",
        {"hidden_size": 1024, "num_hidden_layers": 24, "num_attention_heads": 16, "ffn_dim": 4096,
         "word_embed_proj_dim": 512, "do_layer_norm_before": False},
    ),
    "bert-base-uncased": ("BertConfig", "BertForMaskedLM", {}),
    "distilbert-base-uncased": ("DistilBertConfig", "DistilBertForMaskedLM", {}),
    "biogpt": ("BioGptConfig", "BioGptForCausalLM", {}),
    "mistral-7b": ("MistralConfig", "MistralForCausalLM", {}),
    "llama-3-8b": (
        "LlamaConfig", "LlamaForCausalLM",
        {"vocab_size": 128256, "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32,
         "num_attention_heads": 32, "num_key_value_heads": 8, "max_position_embeddings": 8192, "rope_theta": 500000.0},
    ),
    "llama-3.2-3b": (
        "LlamaConfig", "LlamaForCausalLM",
        {"vocab_size": 128256, "hidden_size": 3072, "intermediate_size": 8192, "num_hidden_layers": 28,
         "num_attention_heads": 24, "num_key_value_heads": 8, "head_dim": 128, "tie_word_embeddings": True,
         "max_position_embeddings": 131072, "rope_theta": 500000.0},
    ),
    "bert-large-lm": (
        "BertConfig", "BertLMHeadModel",
        {"hidden_size": 1024, "num_hidden_layers": 24, "num_attention_heads": 16, "intermediate_size": 4096},
    ),
    "gpt3-xl": ("GPT2Config", "GPT2LMHeadModel", {"n_embd": 3072, "n_layer": 24, "n_head": 24, "n_positions": 2048}),
    "gpt3-2.7b": ("GPT2Config", "GPT2LMHeadModel", {"n_embd": 2560, "n_layer": 32, "n_head": 32, "n_positions": 2048}),
    "opt-1.3b": (
        "OPTConfig", "OPTForCausalLM",
        {"hidden_size": 2048, "num_hidden_layers": 24, "num_attention_heads": 32, "ffn_dim": 8192},
    ),
    "llama-2-7b": (
        "LlamaConfig", "LlamaForCausalLM",
        {"vocab_size": 32000, "hidden_size": 4096, "intermediate_size": 11008, "num_hidden_layers": 32,
         "num_attention_heads": 32, "max_position_embeddings": 4096},
    ),
    "llama-2-13b": (
        "LlamaConfig", "LlamaForCausalLM",
        {"vocab_size": 32000, "hidden_size": 5120, "intermediate_size": 13824, "num_hidden_layers": 40,
         "num_attention_heads": 40, "max_position_embeddings": 4096},
    ),
    "phi-1.5": (
        "PhiConfig", "PhiForCausalLM",
        {"vocab_size": 51200, "hidden_size": 2048, "intermediate_size": 8192, "num_hidden_layers": 24,
         "num_attention_heads": 32, "partial_rotary_factor": 0.5},
    ),
    "stablelm-alpha-3b": (
        "GPTNeoXConfig", "GPTNeoXForCausalLM",
        {"hidden_size": 4096, "num_hidden_layers": 16, "num_attention_heads": 32, "intermediate_size": 16384,
         "vocab_size": 50688, "max_position_embeddings": 4096},
    ),
    "llama-2-70b": (
        "LlamaConfig", "LlamaForCausalLM",
        {"vocab_size": 32000, "hidden_size": 8192, "intermediate_size": 28672, "num_hidden_layers": 80,
         "num_attention_heads": 64, "num_key_value_heads": 8, "max_position_embeddings": 4096},
    ),
    "powerlm-3b": (
        "GraniteConfig", "GraniteForCausalLM",
        {"vocab_size": 49152, "hidden_size": 2304, "intermediate_size": 9216, "num_hidden_layers": 40,
         "num_attention_heads": 36, "num_key_value_heads": 36, "tie_word_embeddings": True,
         "max_position_embeddings": 4096},
    ),
    "gpt-bigcode-santacoder": (
        "GPTBigCodeConfig", "GPTBigCodeForCausalLM",
        {"vocab_size": 49280, "n_embd": 2048, "n_layer": 24, "n_head": 16, "n_positions": 2048, "n_inner": 8192},
    ),
}  # fmt: skip
"""Configurations as published on the model cards, checked by the parameter counts that the runs' memory implies."""


def attention_benchmark(*, model: str, attention: str, batch: int, length: int) -> Program:
    """Forward and backward of the sum of the logits in fp16; the loop holds the outputs until the next ones are there.

    Source: `tests/benchmark/benchmark_bettertransformer_training_minimal.py` of huggingface/optimum.
    """
    network = build(model, attention, torch.float16)
    leave_out_full_masks()
    ids = torch.zeros(batch, length, dtype=torch.long)
    last_outputs: list[Any] = []

    def step() -> None:
        network.zero_grad()
        outputs = network(input_ids=ids)
        last_outputs[:] = [outputs]
        outputs.logits.sum().backward()

    return network, step


def supervised_tuning(
    *,
    model: str,
    batch: int,
    length: int,
    lora: bool,
    quantization: str = "none",
    upcast: bool = False,
    autocast: bool = False,
) -> Program:
    """The Hugging Face Trainer's step in bf16: FlashAttention 2, reentrant checkpointing, foreach AdamW, clipping.

    `upcast` is what trl does before it trains a quantised model (`peft_module_casting_to_bf16`): norms in fp32,
    adapters in bf16. With `autocast` accelerate hands out the outputs in fp32, made while the others are alive.
    Source: `scripts/benchmarks` of foundation-model-stack/fms-acceleration; LoRA r = 16, dropout 0.1 on q, k, v, o.
    """
    device = torch.get_default_device()
    with torch.device("meta"):  # weights are loaded shard by shard: building leaves no cached memory behind
        network = build(model, "flash_attention_2", torch.bfloat16)
    if quantization != "none":
        quantize(network, quantization, torch.bfloat16)  # type: ignore[arg-type]
    if upcast:
        for name, module in network.named_modules():
            if "norm" in name:
                module.float()
    place(network, device)
    if lora:
        network = add_lora(network, {"q_proj", "k_proj", "v_proj", "o_proj", "c_attn", "c_proj"})
    if upcast:
        for parameter in network.parameters():
            if parameter.requires_grad:
                parameter.data = parameter.data.bfloat16()
    network.config.use_cache = False  # type: ignore[union-attr]
    network.gradient_checkpointing_enable()  # type: ignore[operator]
    if lora:
        network.enable_input_require_grads()  # type: ignore[operator]
    return network.train(), trainer_step(network, batch, length, autocast=autocast)


def trainer_step(model: nn.Module, batch: int, length: int, *, autocast: bool) -> Step:
    """Loss of the model's own head, backward, clipping, foreach AdamW."""
    trained = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=1e-5, foreach=True)
    ids = torch.zeros(batch, length, dtype=torch.long)

    def loss() -> Tensor:
        with torch.autocast(ids.device.type, dtype=torch.bfloat16, enabled=autocast):
            outputs = model(input_ids=ids, labels=ids)
        if autocast:
            outputs.logits = outputs.logits.float()
        return outputs.loss

    def step() -> None:
        loss().backward()
        nn.utils.clip_grad_norm_(trained, 1.0)
        optimizer.step()
        model.zero_grad()

    return step


def peft_comparison(*, model: str, batch: int, length: int, rank: int, targets: list[str]) -> Program:
    """Plain loop without checkpointing: bf16 weights, fp32 adapters, SDPA, AdamW; rank 0 trains everything.

    Source: `method_comparison/MetaMathQA/run.py` of huggingface/peft; the loop holds outputs and loss through the step.
    """
    network = build(model, "sdpa", torch.bfloat16)
    if rank:
        network = add_lora(network, set(targets), rank=rank, dropout=0.0)
    network.config.use_cache = False  # type: ignore[union-attr]
    network.train()
    trained = [p for p in network.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=1e-4)
    ids = torch.zeros(batch, length, dtype=torch.long)

    def step() -> None:
        optimizer.zero_grad()
        outputs = network(input_ids=ids, labels=ids, num_items_in_batch=batch * length)
        outputs.loss.backward()
        nn.utils.clip_grad_norm_(trained, 1.0)
        optimizer.step()

    return network, step


def forward_backward(*, model: str, batch: int, length: int) -> Program:
    """Forward and backward in FP32 with attention in plain operators; no update. Source: sitar-lab/NeuSight."""
    network = build(model, "eager", torch.float32)
    ids = torch.zeros(batch, length, dtype=torch.long)

    def step() -> None:
        network.zero_grad()
        network(input_ids=ids, labels=ids, use_cache=False).loss.backward()

    return network, step


def litgpt_lora(*, model: str, batch: int, length: int, quantization: str = "none") -> Program:
    """litgpt's LoRA loop, r = 8 on query and value, everything in bf16, played with transformers' model.

    Source: `litgpt/finetune/lora.py` and `tutorials/resource-tables.md` of Lightning-AI/litgpt.
    """
    device = torch.get_default_device()
    with torch.device("meta"):
        network = build(model, "sdpa", torch.bfloat16)
    if quantization != "none":
        quantize(network, quantization, torch.bfloat16)  # type: ignore[arg-type]
    place(network, device)
    network = add_lora(network, {"q_proj", "v_proj", "query_key_value"}, rank=8, dropout=0.05).bfloat16().train()
    trained = [p for p in network.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=3e-4)
    ids = torch.zeros(batch, length, dtype=torch.long)

    def step() -> None:
        logits = network(input_ids=ids, use_cache=False).logits
        loss = nn.functional.cross_entropy(logits[:, :-1].reshape(-1, logits.shape[-1]), ids[:, 1:].reshape(-1))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    return network, step


def image_training(
    *, model: str, batch: int, optimizer: str, half: bool = False, channels_last: bool = False
) -> Program:
    """A plain training step of a timm model at the image size of its weights, as `forerun.forecast_step` takes it.

    SGD with momentum is the default of timm's training script (`train.py`, `--opt sgd`); `half` is fp16 autocast with
    scaled gradients.
    """
    timm = import_library("timm")
    network = timm.create_model(model, num_classes=1000).train()
    size = timm.get_pretrained_cfg(model).input_size[-1]
    parameters = network.parameters()
    update = torch.optim.SGD(parameters, lr=0.05, momentum=0.9) if optimizer == "sgd" else torch.optim.Adam(parameters)
    images, labels = torch.randn(batch, 3, size, size), torch.zeros(batch, dtype=torch.long)
    if channels_last:
        network, images = network.to(memory_format=torch.channels_last), images.to(memory_format=torch.channels_last)
    scaler = torch.amp.GradScaler("cuda", enabled=half)

    def step() -> None:
        with torch.autocast(images.device.type, dtype=torch.float16, enabled=half):
            outputs = network(images)
            loss = nn.functional.cross_entropy(outputs[0] if isinstance(outputs, tuple) else outputs, labels)
        update.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(update)
        scaler.update()

    return network, step


def build(name: str, attention: str, dtype: torch.dtype) -> nn.Module:
    """A model of `ARCHITECTURES` without weights, with an attention implementation of the installed transformers."""
    import transformers

    config_name, class_name, fields = ARCHITECTURES[name]
    config = getattr(transformers, config_name)(**fields)
    model_class: Any = getattr(transformers, class_name)
    if attention == "flash_attention_2":
        offer_flash_attention(model_class, config)
    else:
        config._attn_implementation = attention
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        return model_class(config).train()
    finally:
        torch.set_default_dtype(before)


def leave_out_full_masks() -> None:
    """transformers 4 leaves a mask out when every position is attended to; nobody can read that from fake masks."""
    try:
        masks: Any = importlib.import_module("transformers.modeling_attn_mask_utils")
    except ImportError:
        return
    masks.AttentionMaskConverter._ignore_causal_mask_sdpa = staticmethod(lambda *_, **__: True)


def offer_flash_attention(model_class: Any, config: Any) -> None:
    """Let transformers 4.45 use the FlashAttention 2 package, played by PyTorch's kernel of the same algorithm."""
    import transformers.modeling_flash_attention_utils as utils

    def flash_attn_func(
        query: Tensor, key: Tensor, value: Tensor, dropout: float = 0.0, *, softmax_scale: Any = None,
        causal: bool = False, **_: Any,
    ) -> Tensor:  # fmt: skip
        turned = (t.transpose(1, 2) for t in (query, key, value))
        kernel = torch.ops.aten._scaled_dot_product_flash_attention
        return kernel(*turned, dropout, causal, False, scale=softmax_scale)[0].transpose(1, 2)

    def choose(cls: Any, config: Any, *_: Any, **__: Any) -> Any:
        config._attn_implementation = "flash_attention_2"
        return config

    module: Any = importlib.import_module(model_class.__module__)
    base: Any = importlib.import_module("transformers.modeling_utils")
    utils.flash_attn_func = flash_attn_func  # type: ignore[attr-defined]
    utils._flash_supports_window_size = False  # type: ignore[attr-defined]
    module._flash_attention_forward = utils._flash_attention_forward
    module.is_flash_attn_greater_or_equal_2_10 = lambda: True
    base.PreTrainedModel._autoset_attn_implementation = classmethod(choose)
    choose(None, config)


def add_lora(model: nn.Module, targets: set[str], *, rank: int = 16, dropout: float = 0.1) -> nn.Module:
    """An adapter of the installed peft, in fp32 as peft makes it."""
    import peft

    present = {name.rpartition(".")[2] for name, _ in model.named_modules()}
    config = peft.LoraConfig(r=rank, lora_alpha=rank, lora_dropout=dropout, target_modules=sorted(targets & present))
    config._register_custom_module(lora_layers())
    return peft.get_peft_model(model, config)  # type: ignore[arg-type, return-value]


TRUTH = {"supervised-tuning": True}
"""Value of every truth test of a tensor: position ids are in order, one sequence to a row."""
PROGRAMS: dict[str, Callable[..., Program]] = {
    "attention-benchmark": attention_benchmark,
    "supervised-tuning": supervised_tuning,
    "peft-comparison": peft_comparison,
    "litgpt-lora": litgpt_lora,
    "forward-backward": forward_backward,
    "image-training": image_training,
    "squad-training": squad_training,
}
