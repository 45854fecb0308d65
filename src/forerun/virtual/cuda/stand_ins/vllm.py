"""A stand-in for vLLM beside a training program, as TRL's GRPO generates with `use_vllm=True, vllm_mode="colocate"`.

Memory: `gpu_memory_utilization` of the card, which is what the engine takes: weights in 16 bits, and the rest as its
cache of keys and values (vllm/v1/worker/gpu_worker.py, `determine_available_memory`, 0.23). `sleep` gives both back.

Time: every token reads all weights and the cache so far, and has twelve kernels a layer in a recorded graph (two norms,
four products, rotation, writing to the cache, attention in two parts, activation, and the addition of one more bias).
With the fixed time of a kernel, 4 us, tokens take what others measured, within 5 % in the median (test_vllm.py has
the rows). The scheduler between tokens is not counted.

Asked only by programs that say `vllm`: other libraries look for it and use more than is here.
"""

import contextlib
import math
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import torch

from forerun.trace import Issuer, Trace
from forerun.virtual.cuda.after_import import after_import
from forerun.virtual.cuda.stand_ins.packages import StandInPackage
from forerun.virtual.cuda.stand_ins.registry import launch
from forerun.virtual.cuda.token_loops import GOES_ON
from forerun.virtual.put_back import replaced

VERSION = "0.23.0"
SHARE = 0.92
"""`gpu_memory_utilization` where nothing is said (vllm/config/cache.py, 0.23)."""
SEQUENCES, BATCHED_TOKENS = 256, 8192
"""`max_num_seqs` and `max_num_batched_tokens` where nothing is said (vllm/engine/arg_utils.py, `LLM`, 0.23)."""
LAYER_KERNELS = 12
CLIENTS = ("trl.generation.vllm_client", "trl.extras.vllm_client")
"""Where TRL's client of a server is (1.16, and before 1.0)."""
WEIGHT_BYTES = CACHE_BYTES = 2
REFUSED = {"tensor_parallel_size": 1, "pipeline_parallel_size": 1, "quantization": None, "enable_lora": False}
"""Options that must be as they are where nothing is said."""


@dataclass(frozen=True)
class ModelSizes:
    """What an engine knows of its model."""

    shapes: tuple[torch.Size, ...]
    layers: int
    cached_bytes: int
    """Keys and values of one token."""
    vocabulary: int
    longest: int
    """Tokens of a sequence at most."""

    @property
    def parameters(self) -> int:
        """How many numbers the weights are."""
        return sum(map(math.prod, self.shapes))


def sizes_of(name: str) -> ModelSizes:
    """Sizes of a model from its configuration; no weights are read."""
    from transformers import AutoConfig, AutoModelForCausalLM

    config = AutoConfig.from_pretrained(name)
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config)
    text = config.get_text_config()
    width = getattr(text, "head_dim", None) or text.hidden_size // text.num_attention_heads
    heads = getattr(text, "num_key_value_heads", None) or text.num_attention_heads
    return ModelSizes(
        shapes=tuple(each.shape for each in model.parameters()),
        layers=text.num_hidden_layers,
        cached_bytes=2 * text.num_hidden_layers * heads * width * CACHE_BYTES,
        vocabulary=text.vocab_size,
        longest=text.max_position_embeddings,
    )


class SamplingParams:
    """How tokens are chosen; their number counts."""

    def __init__(self, n: int = 1, max_tokens: int | None = 16, logprobs: int | None = None, **options: Any):
        self.n, self.max_tokens, self.logprobs = n, max_tokens, logprobs
        vars(self).update(options)


@dataclass
class CompletionOutput:
    """One answer: as many tokens as it may have."""

    index: int
    token_ids: list[int]
    logprobs: list[dict[int, Any]] | None
    text: str = ""
    finish_reason: str = "length"


@dataclass
class RequestOutput:
    """The answers to one prompt."""

    prompt_token_ids: list[int]
    outputs: list[CompletionOutput] = field(default_factory=list)
    finished: bool = True


class LLM:
    """An engine on the card of the program."""

    trace: Trace
    note: Callable[[str, Any], None]

    def __init__(
        self, model: str, *, gpu_memory_utilization: float = SHARE, max_model_len: int | None = None,
        max_num_seqs: int | None = None, max_num_batched_tokens: int | None = None, **options: Any,
    ):  # fmt: skip
        for name, usual in REFUSED.items():
            if options.get(name, usual) not in (usual, None):
                raise NotImplementedError(f"vllm.LLM({name}={options[name]!r}) is not modelled; only {usual!r} is.")
        self.sizes = sizes_of(model)
        self.max_model_len = max_model_len or self.sizes.longest
        self._model, self._sequences = model, max_num_seqs or SEQUENCES
        self._batched = max_num_batched_tokens or BATCHED_TOKENS
        share = round(gpu_memory_utilization * torch.cuda.get_device_properties(0).total_memory)
        self._cache_bytes = share - self.sizes.parameters * WEIGHT_BYTES
        if self._cache_bytes < self.sizes.cached_bytes * self.max_model_len:
            raise ValueError(
                f"No available memory for the cache blocks: {gpu_memory_utilization:.0%} of the card must hold the "
                f"weights and a sequence of {self.max_model_len:,} tokens. Try increasing `gpu_memory_utilization` or "
                "decreasing `max_model_len` when initializing the engine."
            )
        self.note("vLLM's engine", "its share of the card, and tokens by its sizes; its scheduler is not counted")
        self._weights: list[torch.Tensor] = []
        self._cache: list[torch.Tensor] = []
        self.wake_up()
        runner = SimpleNamespace(model=SimpleNamespace(load_weights=self._load_weights))
        worker = SimpleNamespace(model_runner=runner)
        self.llm_engine = SimpleNamespace(model_executor=SimpleNamespace(driver_worker=worker))

    def wake_up(self, tags: Sequence[str] | None = None) -> None:
        """Take memory back: `weights`, `kv_cache`, or both."""
        if not self._weights and (tags is None or "weights" in tags):
            self._weights = [torch.empty(each, dtype=torch.bfloat16, device="cuda") for each in self.sizes.shapes]
        if not self._cache and (tags is None or "kv_cache" in tags):
            layer = self._cache_bytes // self.sizes.layers
            self._cache = [torch.empty(layer, dtype=torch.uint8, device="cuda") for _ in range(self.sizes.layers)]

    def sleep(self, level: int = 1) -> None:
        """Give memory back; of level 1 the weights go to the host, of level 2 nowhere."""
        if level == 1:
            for each in self._weights:
                each.to("cpu")
        self._weights, self._cache = [], []

    def reset_prefix_cache(self) -> None:
        """Nothing is remembered of prompts."""

    def get_tokenizer(self) -> Any:
        """That of the model."""
        from transformers import AutoTokenizer

        return AutoTokenizer.from_pretrained(self._model)

    def _load_weights(self, weights: Sequence[tuple[str, torch.Tensor]]) -> None:
        for _, weight in weights:
            size = weight.numel() * WEIGHT_BYTES
            launch("vllm_load_weights", self._weights[:1], [weight], traffic=(weight.numel() * weight.itemsize, size))

    def generate(
        self, prompts: Any, sampling_params: SamplingParams | None = None, *args: Any, **options: Any
    ) -> list[RequestOutput]:
        """Answers of the greatest length, as nobody can know where they end."""
        params = sampling_params or SamplingParams()
        asked_of = [self._tokens(prompt) for prompt in (prompts if isinstance(prompts, list) else [prompts])]
        longest = max(map(len, asked_of), default=0)
        new = min(params.max_tokens or self.max_model_len, self.max_model_len - longest)
        self.note(GOES_ON, f"{new:,} new tokens")
        self._run(asked_of, params.n, new)
        return [RequestOutput(tokens, [self._answer(n, new, params) for n in range(params.n)]) for tokens in asked_of]

    def _tokens(self, prompt: Any) -> list[int]:
        prompt = prompt.get("prompt_token_ids", prompt.get("prompt")) if isinstance(prompt, Mapping) else prompt
        return self.get_tokenizer()(prompt)["input_ids"] if isinstance(prompt, str) else list(prompt)

    def _answer(self, index: int, new: int, params: SamplingParams) -> CompletionOutput:
        token = self.sizes.vocabulary // 2
        likely = {token: SimpleNamespace(logprob=-1.0, rank=1, decoded_token="")}
        return CompletionOutput(index, [token] * new, None if params.logprobs is None else [likely] * new)

    def _run(self, prompts: Sequence[Sequence[int]], answers: int, new: int) -> None:
        """The kernels of all prompts and tokens."""
        sizes, prompt_tokens = self.sizes, sum(map(len, prompts))
        weights = sizes.parameters * WEIGHT_BYTES
        flops, dtype = 2 * sizes.parameters, "bfloat16"
        passes = max(1, math.ceil(prompt_tokens / self._batched))
        stored = prompt_tokens * sizes.cached_bytes
        launch("vllm_prefill", self._cache[:1], self._weights[:1], flops * prompt_tokens,
               traffic=(passes * weights, stored), dtype=dtype)  # fmt: skip
        self._latency(passes)
        sequences = len(prompts) * answers
        length = prompt_tokens / max(1, len(prompts)) + new / 2  # in the middle of the answer
        room = int(self._cache_bytes // (sizes.cached_bytes * max(1.0, length + new / 2)))
        running = max(1, min(sequences, self._sequences, room))
        turns = math.ceil(sequences / running) * new
        cached = sequences * new * round(length) * sizes.cached_bytes
        launch("vllm_decode", self._cache[:1], self._weights[:1], flops * sequences * new,
               traffic=(turns * weights + cached, sequences * new * sizes.cached_bytes), dtype=dtype)  # fmt: skip
        self._latency(turns)

    def _latency(self, turns: int) -> None:
        """The fixed time of the kernels of a recorded graph, so many times; no host launches them one by one."""
        launch("vllm_kernel", self._cache[:1], [], traffic=(0, 0))
        trace, times = self.trace, turns * self.sizes.layers * LAYER_KERNELS
        op = trace.ops[-1]
        trace.calls.append(replace(trace.calls[op.call], issuer=Issuer.GRAPH, times=max(1, times)))
        trace.ops[-1] = replace(op, call=len(trace.calls) - 1)


class _OfServer:
    """What sends weights to a server, which is another program on other GPUs."""

    def __init__(self, *args: Any, **options: Any):
        _refuse_server()


def _refuse_server(*_: Any, **__: Any) -> None:
    raise NotImplementedError(
        "A vLLM server is another program on other GPUs, which is not modelled; an engine of the program's own is: "
        "vllm_mode='colocate'."
    )


@contextlib.contextmanager
def refusing_servers() -> Iterator[None]:
    """While it is active, TRL's client of a server says that there is none, instead of waiting for it."""

    def change(module: ModuleType) -> Callable[[], None]:
        stack = contextlib.ExitStack()
        if hasattr(module, "VLLMClient"):
            stack.enter_context(replaced(module.VLLMClient, "__init__", _refuse_server))
        return stack.close

    with contextlib.ExitStack() as stack:
        for name in CLIENTS:
            stack.enter_context(after_import(name, change))
        yield


def _says_vllm() -> bool:
    """Whether the program, or what it is called with, names the library."""
    if any("vllm" in word for word in sys.argv[1:]):
        return True
    try:
        return "vllm" in Path(sys.argv[0]).read_text(errors="ignore")
    except OSError:
        return False


def packages(trace: Trace, note: Callable[[str, Any], None]) -> tuple[StandInPackage, ...]:
    """The package, with an engine that writes to this trace."""

    def modules() -> Mapping[str, Mapping[str, Any]]:
        engine = type("LLM", (LLM,), {"trace": trace, "note": staticmethod(note), "__doc__": LLM.__doc__})
        params = {"SamplingParams": SamplingParams, "StructuredOutputsParams": SimpleNamespace}
        top = {"LLM": engine, "SamplingParams": SamplingParams, "RequestOutput": RequestOutput,
               "CompletionOutput": CompletionOutput}  # fmt: skip
        server = {name: _OfServer for name in ("NCCLTrainerSendWeightsArgs", "NCCLWeightTransferEngine")}
        return {
            "vllm": top,
            "vllm.sampling_params": params,
            "vllm.utils.network_utils": {"get_ip": lambda: "127.0.0.1"},
            "vllm.distributed.weight_transfer.nccl_engine": server,
        }

    return (StandInPackage("vllm", "vllm", VERSION, modules, (7, 0), is_wanted=_says_vllm, hides=True),)
