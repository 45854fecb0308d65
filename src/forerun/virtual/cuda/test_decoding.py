"""Tokens that are played: the operators, the memory and the results of those that run."""

import contextlib

import pytest
import torch
import transformers
from torch import nn

import forerun
from forerun.trace import OP
from forerun.virtual.cuda import decoding
from forerun.virtual.cuda.decoding import PlayedTokens
from forerun.virtual.put_back import replaced

SMALL = {
    "vocab_size": 512,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
}
WINDOW, SLOW = 16, pytest.mark.medium
ENDS = {"pad_token_id": 0, "eos_token_id": 1, "bos_token_id": 2}


def llama(**changes):
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(**SMALL, **ENDS, num_key_value_heads=2, **changes))


def gemma3(**changes):
    config = transformers.Gemma3TextConfig(**SMALL, **ENDS, num_key_value_heads=2, head_dim=16, sliding_window=WINDOW,
                                           layer_types=["sliding_attention", "full_attention"], **changes)  # fmt: skip
    return transformers.Gemma3ForCausalLM(config)


def t5():
    sizes = {"vocab_size": 512, "d_model": 64, "d_kv": 16, "d_ff": 128, "num_layers": 2, "num_heads": 4}
    return transformers.T5ForConditionalGeneration(transformers.T5Config(**sizes, **ENDS, decoder_start_token_id=0))


def qwen3_next():
    config = transformers.Qwen3NextConfig(
        **SMALL, **ENDS, num_key_value_heads=2, head_dim=16, num_experts=4, num_experts_per_tok=2, moe_intermediate_size=32,
        shared_expert_intermediate_size=32, linear_num_key_heads=2, linear_num_value_heads=2, linear_key_head_dim=16,
        linear_value_head_dim=16, layer_types=["linear_attention", "full_attention"],
    )  # fmt: skip
    return transformers.Qwen3NextForCausalLM(config)


def generate(make, played, prompts=((2, 8),), new=30, padded=0, **options):
    """Calls of operators, the peak, what is left, the last result's shape; seconds; how often the model ran.

    `played`: "" for no token, "each" for one by one, "many" for several at once.
    """
    forwards = []
    with forerun.virtual_cuda("a100-40gb") as gpu, torch.no_grad():
        model = make().to("cuda", torch.bfloat16)
        tokens, original, depth = PlayedTokens(gpu._session.recorder), nn.Module.__call__, []
        forward = type(model).forward

        def call(module, *args, **kwargs):
            if depth or not played:
                return original(module, *args, **kwargs)
            depth.append(module)
            try:
                return tokens(original, module, args, kwargs)
            finally:
                depth.pop()

        def counted(*args, **kwargs):
            forwards.append(1)
            return forward(*args, **kwargs)

        with contextlib.ExitStack() as stack:
            stack.enter_context(replaced(nn.Module, "__call__", call))
            stack.enter_context(replaced(type(model), "forward", counted))
            if played != "many":
                stack.enter_context(replaced(decoding, "innermost_loop", lambda: None))
            begin = gpu.clock.seconds
            for rows, length in prompts:
                ids = torch.full((rows, length), 5, device="cuda")
                mask = torch.ones_like(ids)
                mask[:1, :padded] = 0
                out = model.generate(ids, attention_mask=mask, max_new_tokens=new, **options)
            shape, seconds = tuple(getattr(out, "sequences", out).shape), gpu.clock.seconds - begin
        calls = [gpu.trace.calls[gpu.trace.ops[i].call] for kind, i in gpu.trace.events if kind == OP]
        memory = gpu.memory.peak_allocated_bytes, gpu._session.recorder.live_bytes
        return (calls, *memory, shape), seconds, len(forwards)


def work(calls):
    """Launches, FLOP and bytes of all calls."""
    launches = sum(not call.is_view and call.times for call in calls)
    moved = sum((call.bytes_read + call.bytes_written) * call.times for call in calls if not call.is_view)
    return launches, sum(call.flops * call.times for call in calls), moved


@pytest.mark.parametrize("make", [llama, *(pytest.param(each, marks=SLOW) for each in (gemma3, t5, qwen3_next))])
def test_tokens_that_are_played_do_what_tokens_do(make):
    run, seconds, ran = generate(make, "", do_sample=True)
    assert ran == 30
    played, seconds_of_played, ran = generate(make, "each", do_sample=True)
    assert (played, seconds_of_played) == (run, seconds)
    assert ran <= (7 if make is llama else 12)
    many, seconds_of_many, ran_of_many = generate(make, "many", do_sample=True)
    assert many[1:] == run[1:]
    assert seconds_of_many == pytest.approx(seconds, rel=0.01)
    assert work(many[0]) == pytest.approx(work(run[0]), rel=0.01)
    assert len(many[0]) < len(run[0]) / 2
    assert ran_of_many == ran


@pytest.mark.medium
@pytest.mark.parametrize("played", ["each", "many"])
def test_prompts_that_are_padded_or_longer_have_lines_of_their_own(played):
    prompts = [(2, 8), (2, 12), (3, 8)]
    run, seconds, _ = generate(llama, "", prompts, padded=3)
    others, seconds_of_others, ran = generate(llama, played, prompts, padded=3)
    assert others[1:] == run[1:]
    assert seconds_of_others == pytest.approx(seconds, rel=0.01)
    assert ran < 30


@pytest.mark.medium
@pytest.mark.parametrize("options", [{"output_scores": True, "return_dict_in_generate": True}, {"num_beams": 2}])
def test_loops_that_keep_something_of_each_token_take_each(options):
    run, seconds, ran = generate(llama, "", new=20, **options)
    played, seconds_of_played, ran_of_played = generate(llama, "many", new=20, **options)
    assert (played, seconds_of_played) == (run, seconds)
    assert ran_of_played < ran == 20


def test_a_model_that_keeps_what_it_saw_runs():
    class Keeps(transformers.LlamaForCausalLM):
        def forward(self, *args, **kwargs):
            out = super().forward(*args, **kwargs)
            self.seen = [*getattr(self, "seen", []), out.logits.sum()]
            return out

    assert generate(lambda: Keeps(llama().config), "many", new=10)[-1] == 10


def test_hooks_of_the_program_run():
    def hooked():
        model = llama()
        model.lm_head.register_forward_hook(lambda *_: None)
        return model

    assert generate(hooked, "many", new=10)[-1] == 10
