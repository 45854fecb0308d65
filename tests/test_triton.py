"""Triton's own kernels on the virtual GPU: work by launch, beside what Triton's interpreter loads and stores for real.

Needs Triton, which PyTorch for CPUs does not bring: `make test-scripts` puts it into a folder of its own.
"""

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
from torch import nn

import forerun
from forerun.trace import Issuer

pytestmark = [
    pytest.mark.scripts, pytest.mark.skipif(find_spec("triton") is None, reason="Triton is not installed"),
    pytest.mark.filterwarnings("ignore:TRITON_DEFAULT_FP_FUSION"),
]  # fmt: skip
HERE = Path(__file__).parent
INTERPRETED = """
import json, sys
from collections import Counter
import numpy as np
import torch
from triton.runtime import interpreter
from tests import triton_kernels

places, moved = {}, {"read": Counter(), "written": Counter()}

def noting(kind, original):
    def run(pointers, *rest):
        mask = rest[-1] if kind == "written" else rest[0]
        at = np.broadcast_to(pointers, np.shape(mask))[np.asarray(mask, dtype=bool)]
        if at.size:
            name = next(name for name, (begin, end, _) in places.items() if begin <= at.flat[0] < end)
            moved[kind][name] += int(at.size) * places[name][2]
        return original(pointers, *rest)
    return run

class Noting:
    def __init__(self, original):
        self._original = original
    def __getattr__(self, name):
        kind = {"load": "read", "store": "written"}.get(name)
        value = getattr(self._original, name)
        return value if kind is None else noting(kind, value)

interpreter._interpreter = Noting(interpreter._interpreter)
case = json.loads(sys.argv[1])
tensors = {name: torch.zeros(shape, dtype=getattr(torch, dtype)) for name, (shape, dtype) in case["tensors"].items()}
for name, tensor in tensors.items():
    places[name] = tensor.data_ptr(), tensor.data_ptr() + tensor.nbytes, tensor.element_size()

class Here(interpreter.GridExecutor):  # the tensors themselves, so that addresses tell them apart
    def _init_args_hst(self, arguments, options):
        return list(arguments), dict(options)
    def _restore_args_dev(self, *_):
        pass

interpreter.GridExecutor = Here
getattr(triton_kernels, case["kernel"])[tuple(case["grid"])](*tensors.values(), **case["numbers"])
print(json.dumps(moved))
"""


def interpreted(case):
    """Bytes that Triton's interpreter loads from and stores to each tensor."""
    environment = os.environ | {
        "TRITON_INTERPRET": "1",
        "PYTHONPATH": f"{HERE.parent}:{os.environ.get('PYTHONPATH', '')}",
    }
    answer = subprocess.run(
        [sys.executable, "-c", INTERPRETED, json.dumps(case)],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert answer.returncode == 0, answer.stderr[-2000:]
    return json.loads(answer.stdout.splitlines()[-1])


def counted(case):
    """The same from the representation, without a limit by the size of the tensors; and FLOP."""
    from tests import triton_kernels

    from forerun.virtual.cuda.stand_ins.triton_front_end import CONSTANT, lowered, representation, types_of
    from forerun.virtual.cuda.stand_ins.triton_work import count

    kernel = getattr(triton_kernels, case["kernel"])
    tensors = {n: torch.empty(shape, dtype=getattr(torch, d)) for n, (shape, d) in case["tensors"].items()}
    values = tensors | case["numbers"]
    types = types_of(kernel, values)
    given = [each for name, kind in types.items() if kind != CONSTANT for each in lowered(name, values[name])]
    text = representation(kernel, types, values, (8, 0))
    return count(text, given, case["grid"], dict.fromkeys(tensors, 10**15))


def product(*, is_causal, rows=512, columns=256, inner=512):
    numbers = {
        "rows": rows, "columns": columns, "inner": inner, "left_stride": inner, "right_stride": columns,
        "result_stride": columns, "ROWS": 32, "COLUMNS": 64, "INNER": 32, "IS_CAUSAL": is_causal,
    }  # fmt: skip
    shapes = {"left": (rows, inner), "right": (inner, columns), "result": (rows, columns)}
    return {
        "kernel": "product", "tensors": {name: (shape, "float16") for name, shape in shapes.items()},
        "numbers": numbers, "grid": (rows // 32, columns // 64),
    }  # fmt: skip


@pytest.mark.parametrize("is_causal", [False, True])
def test_what_a_launch_moves_is_what_the_interpreter_moves(is_causal):
    case = product(is_causal=is_causal)
    ours, theirs = counted(case), interpreted(case)
    assert dict(ours.loads) == theirs["read"]
    assert dict(ours.stores) == theirs["written"]
    rounds = sum(min(16, place + 1) if is_causal else 16 for place in range(16)) * 4
    assert ours.flops == pytest.approx(rounds * 2 * 32 * 64 * 32)
    assert (ours.dtype, ours.depends_on_data) == ("f16", False)


def test_many_programs_are_told_from_few_of_them():
    case = product(is_causal=True, rows=8192, inner=8192)
    assert counted(case).flops == pytest.approx(sum(range(1, 257)) * 4 * 2 * 32 * 64 * 32, rel=0.01)


def test_a_launch_is_an_operator_with_the_bytes_and_flop_of_its_code():
    with forerun.virtual_cuda("a100-80gb") as gpu:
        from tests import triton_kernels

        left, right = (
            torch.zeros(shape, device="cuda", dtype=torch.bfloat16) for shape in ((4096, 2048), (2048, 1024))
        )
        result = torch.zeros(4096, 1024, device="cuda", dtype=torch.bfloat16)
        before = gpu.memory.peak_allocated_bytes
        triton_kernels.product[lambda meta: (4096 // meta["ROWS"], 1024 // meta["COLUMNS"])](
            left, right, result, 4096, 1024, 2048, *left.stride()[:1], *right.stride()[:1], *result.stride()[:1],
            ROWS=64, COLUMNS=128, INNER=32, IS_CAUSAL=False, num_warps=4,
        )  # fmt: skip
        call = gpu.trace.calls[gpu.trace.ops[-1].call]
        assert gpu.memory.peak_allocated_bytes == before
    assert call.name == "forerun.triton_product.default"
    assert call.flops == 2 * 4096 * 1024 * 2048
    assert (call.bytes_read, call.bytes_written) == (left.nbytes + right.nbytes, result.nbytes)
    assert not gpu.assumed


def test_autotuned_kernels_take_their_first_configuration_and_pass_twice_over_rows():
    with forerun.virtual_cuda("l4") as gpu:
        from tests import triton_kernels

        x, result = (torch.zeros(256, 50_000, device="cuda", dtype=torch.float16) for _ in range(2))
        triton_kernels.normalise[(256,)](x, result, 50_000, 1e-6)
        call = gpu.trace.calls[gpu.trace.ops[-1].call]
    assert call.name == "forerun.triton_normalise.default"
    assert (call.flops, call.bytes_read, call.bytes_written) == (0, 2 * x.nbytes, x.nbytes)


def test_rounds_that_the_device_decides_are_assumed_in_words():
    with forerun.virtual_cuda("l4") as gpu:
        from tests import triton_kernels

        x, offsets = torch.zeros(4096, 64, device="cuda"), torch.zeros(9, device="cuda", dtype=torch.int32)
        triton_kernels.within_documents[(8,)](x, offsets, torch.zeros(64, device="cuda"), WIDTH=64)
        triton_kernels.within_documents[(0,)](x, offsets, torch.zeros(64, device="cuda"), WIDTH=64)
        launches = [gpu.trace.calls[op.call] for op in gpu.trace.ops if "within" in gpu.trace.calls[op.call].name]
    assert len(launches) == 1, "an empty grid launches nothing"
    assert launches[0].bytes_read == x.nbytes + offsets.nbytes + 64 * 4, "all documents once, and the sum"
    assert "rounds and branches of within_documents" in gpu.assumed[0]


def test_descriptors_have_their_shape_and_strides_behind_them():
    """What comes after them is not taken for these: the copy's rounds are an argument."""
    with forerun.virtual_cuda("h100-80gb") as gpu:
        from tests import triton_kernels
        from triton.tools.tensor_descriptor import TensorDescriptor

        x, result = (torch.zeros(1024, 256, device="cuda", dtype=torch.bfloat16) for _ in range(2))
        places = [TensorDescriptor(each, list(each.shape), list(each.stride()), [64, 64]) for each in (x, result)]
        triton_kernels.copy_tiles[(1024 // 64,)](*places, 3)
        triton_kernels.copy_tiles[(1024 // 64,)](*places, 0)
        some, none = (gpu.trace.calls[op.call] for op in gpu.trace.ops[-2:])
    assert (some.bytes_read, some.bytes_written) == (1024 * 3 * 64 * 2, 1024 * 3 * 64 * 2)
    assert (none.bytes_read, none.bytes_written) == (0, 0)


def test_a_kernel_that_triton_refuses_is_an_error_that_names_it():
    with forerun.virtual_cuda("l4"):
        from tests import triton_kernels

        x = torch.zeros(64, 64, device="cuda")
        with pytest.raises(NotImplementedError, match=r"(?s)within_documents: Triton refuses.*tl.zeros.*stand_in"):
            triton_kernels.within_documents[(8,)](x, x, x, WIDTH=60)


def test_a_kernel_is_asked_for_its_registers_and_launched_by_as_many_programs_as_fit():
    with forerun.virtual_cuda("l4") as gpu:
        from tests import triton_kernels
        from triton.runtime import driver

        x, result = (torch.zeros(5000, 1000, device="cuda") for _ in range(2))
        arguments = result, x, x.stride(0), result.stride(0), 5000, 1000, 1024, 4
        compiled = triton_kernels.softmax.warmup(*arguments, num_warps=8, grid=(1,))
        compiled._init_handles()
        properties = driver.active.utils.get_device_properties(0)
        programs = properties["multiprocessor_count"] * (properties["max_num_regs"] // (compiled.n_regs * 32 * 8))
        compiled[(programs, 1, 1)](*arguments)
        call = gpu.trace.calls[gpu.trace.ops[-1].call]
    assert programs == 58 * 4
    assert (call.bytes_read, call.bytes_written) == (x.nbytes, x.nbytes)
    assert "registers of softmax" in gpu.assumed[0]


class Scaled(torch.autograd.Function):
    """An operator of one's own by a kernel of Triton."""

    @staticmethod
    def forward(ctx, x):
        from tests import triton_kernels

        result = torch.empty_like(x)
        triton_kernels.normalise[(x.shape[0],)](x, result, x.shape[1], 1e-6)
        return result

    @staticmethod
    def backward(ctx, gradient):
        return gradient * 2


def test_compiled_code_launches_them_in_its_graph():
    """Not as eager code: what comes before and after is fused, and the graph is one."""
    with forerun.virtual_cuda("a100-80gb") as gpu:
        model = nn.Sequential(nn.Linear(1024, 1024), nn.GELU(), nn.Linear(1024, 1024)).cuda()
        step = torch.compile(lambda x: Scaled.apply(model(x).relu()).square().mean())
        with torch.autocast("cuda", dtype=torch.bfloat16):
            loss = step(torch.randn(256, 1024, device="cuda"))
        loss.backward()
        calls = [gpu.trace.calls[op.call] for op in gpu.trace.ops]
    launches = [call for call in calls if call.name == "forerun.triton_normalise.default"]
    assert [call.issuer for call in launches] == [Issuer.COMPILED]
    assert launches[0].bytes_written == 256 * 1024 * 2, "bfloat16 under autocast"
    assert any(call.name.startswith("fused.") for call in calls)


def test_the_clock_prices_products_in_the_dtype_of_their_factors():
    """A scale in float32 before bfloat16 factors does not make it a product in float32."""
    from forerun.clock.costs import factors_dtype
    from forerun.trace import FACTORS, Call, TensorSpec

    scale = TensorSpec((1,), (1,), "float32", 4)
    call = Call("forerun.triton_x.default", (), ((FACTORS, "bfloat16"),), (scale,), (), 10, 4, 4)
    assert factors_dtype(call) == "bfloat16"
