"""vLLM beside a training program: what its engine takes of the card, and how long a token takes."""

import importlib
import sys

import pytest
import torch
import transformers

import forerun
from forerun.virtual.cuda.stand_ins import vllm as stand_in

QWEN = {"vocab_size": 151936, "tie_word_embeddings": True, "max_position_embeddings": 32768}
MODELS = {
    "qwen2.5-0.5b": transformers.Qwen2Config(
        **QWEN, hidden_size=896, intermediate_size=4864, num_hidden_layers=24, num_attention_heads=14,
        num_key_value_heads=2,
    ),
    "qwen3-1.7b": transformers.Qwen3Config(
        **QWEN, hidden_size=2048, intermediate_size=6144, num_hidden_layers=28, num_attention_heads=16,
        num_key_value_heads=8, head_dim=128,
    ),
    "llama-3.1-8b": transformers.LlamaConfig(
        vocab_size=128256, hidden_size=4096, intermediate_size=14336, num_hidden_layers=32, num_attention_heads=32,
        num_key_value_heads=8, max_position_embeddings=131072,
    ),
}  # fmt: skip
"""From their published configurations."""
H100 = "github.com/vllm-project/vllm/pull/53060"  # FlashAttention-3, decoding alone, 128 tokens
TOKENS = [
    ("h100-pcie", "qwen2.5-0.5b", 1, 128, 1.677, H100),
    ("h100-pcie", "qwen2.5-0.5b", 1, 4096, 1.689, H100),
    ("h100-pcie", "qwen2.5-0.5b", 1, 16384, 1.732, H100),
    ("h100-pcie", "qwen2.5-0.5b", 8, 128, 1.725, H100),
    ("h100-pcie", "qwen2.5-0.5b", 8, 4096, 1.854, H100),
    ("h100-pcie", "qwen2.5-0.5b", 8, 16384, 2.528, H100),
    ("h100-pcie", "qwen2.5-0.5b", 32, 128, 2.148, H100),
    ("h100-pcie", "qwen2.5-0.5b", 32, 4096, 2.885, H100),
    ("h100-pcie", "qwen2.5-0.5b", 32, 16384, 6.074, H100),
    ("h100-pcie", "qwen3-1.7b", 1, 128, 3.199, H100),
    ("h100-pcie", "qwen3-1.7b", 1, 4096, 3.446, H100),
    ("h100-pcie", "qwen3-1.7b", 1, 16384, 4.193, H100),
    ("l4", "qwen2.5-0.5b", 1, 256, 5.1, "ai.wmx.dev/benchmarks"),
    ("l4", "qwen2.5-0.5b", 4, 256, 5.3, "ai.wmx.dev/benchmarks"),
    ("l4", "qwen2.5-0.5b", 8, 256, 5.5, "ai.wmx.dev/benchmarks"),
    ("a100-40gb", "llama-3.1-8b", 1, 1024, 1000 / 75, "johnmusgrave.com/p/vllm-throughput-latency-sweep-on"),
]
"""GPU, model, sequences, tokens before, milliseconds for a token, source."""


def engine_of(gpu, folder, model, **options):
    MODELS[model].save_pretrained(folder)
    engine = type("Engine", (stand_in.LLM,), {"trace": gpu.trace, "note": staticmethod(lambda *_: None)})
    return engine(str(folder), **options)


def milliseconds(gpu, engine, sequences, before, new=128):
    """Of one token, by what more tokens take."""
    seconds = []
    for tokens in (new, 2 * new):
        begin = gpu.clock.seconds
        prompts = [{"prompt_token_ids": [5] * before}] * sequences
        engine.generate(prompts, stand_in.SamplingParams(max_tokens=tokens), use_tqdm=False)
        seconds.append(gpu.clock.seconds - begin)
    return (seconds[1] - seconds[0]) / new * 1000


@pytest.mark.literature
def test_tokens_take_what_others_measured(tmp_path):
    errors = []
    for card, model, sequences, before, measured, _ in TOKENS:
        with forerun.virtual_cuda(card) as gpu:
            engine = engine_of(gpu, tmp_path, model, max_model_len=32768)
            errors.append(milliseconds(gpu, engine, sequences, before) / measured - 1)
    assert sorted(map(abs, errors))[len(errors) // 2] < 0.05, errors
    assert max(map(abs, errors)) < 0.25, errors


def test_an_engine_takes_its_share_of_the_card_and_gives_it_back(tmp_path):
    with forerun.virtual_cuda("a100-40gb") as gpu:
        engine = engine_of(gpu, tmp_path, "qwen2.5-0.5b", gpu_memory_utilization=0.3)
        total = torch.cuda.get_device_properties(0).total_memory
        assert torch.cuda.memory_allocated() == pytest.approx(0.3 * total, rel=0.01)
        assert engine.sizes.parameters == 494_032_768
        engine.sleep(level=2)
        assert torch.cuda.memory_allocated() < 32 * 2**20  # cuBLAS keeps its workspace
        engine.wake_up(tags=["weights"])
        assert torch.cuda.memory_allocated() == pytest.approx(2 * 494_032_768, rel=0.03)
        engine.wake_up()
        (request,) = engine.generate(
            [{"prompt_token_ids": [1, 2, 3]}], stand_in.SamplingParams(max_tokens=7, logprobs=0)
        )
    (answer,) = request.outputs
    assert (request.prompt_token_ids, len(answer.token_ids), len(answer.logprobs)) == ([1, 2, 3], 7, 7)
    assert next(iter(answer.logprobs[0].values())).rank == 1


def test_a_share_that_is_too_small_and_what_is_not_modelled_are_errors(tmp_path):
    with forerun.virtual_cuda("t4") as gpu:
        with pytest.raises(ValueError, match="No available memory for the cache blocks"):
            engine_of(gpu, tmp_path, "llama-3.1-8b", gpu_memory_utilization=0.9)
        with pytest.raises(NotImplementedError, match="tensor_parallel_size=2"):
            engine_of(gpu, tmp_path, "qwen2.5-0.5b", tensor_parallel_size=2)


@pytest.mark.parametrize("module", stand_in.CLIENTS)
def test_a_server_is_refused_at_once(module, tmp_path, monkeypatch):
    client = tmp_path.joinpath(*module.split(".")).with_suffix(".py")
    client.parent.mkdir(parents=True)
    (tmp_path / "trl" / "__init__.py").touch()
    client.write_text("class VLLMClient:\n    def __init__(self, host):\n        raise ConnectionError(host)\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    for name in [name for name in sys.modules if name.partition(".")[0] == "trl"]:
        monkeypatch.delitem(sys.modules, name)
    try:
        with forerun.virtual_cuda("a100-40gb"), pytest.raises(NotImplementedError, match="vllm_mode='colocate'"):
            importlib.import_module(module).VLLMClient(host="localhost")
    finally:
        for name in [name for name in sys.modules if name.partition(".")[0] == "trl"]:
            del sys.modules[name]


def test_only_a_program_that_names_it_finds_it(tmp_path, monkeypatch):
    found = []
    for text in ("import torch", "from vllm import LLM, SamplingParams"):
        script = tmp_path / "train.py"
        script.write_text(text)
        monkeypatch.setattr(sys, "argv", [str(script)])
        with forerun.virtual_cuda("a100-40gb"):
            try:
                import vllm

                found.append(vllm.__version__)
            except ImportError:
                found.append(None)
    assert found == [None, stand_in.VERSION]
    assert "vllm" not in sys.modules
