"""Work of launches, from representations that Triton 3.9 made of tests/triton_kernels.py (tests/golden/triton)."""

from pathlib import Path

import pytest

from forerun.virtual.cuda.stand_ins.triton_text import BlockType, arguments, functions
from forerun.virtual.cuda.stand_ins.triton_work import count, samples

GOLDEN = Path(__file__).parents[5] / "tests" / "golden" / "triton"
PRODUCT = (GOLDEN / "product.mlir").read_text()
DOCUMENTS = (GOLDEN / "within_documents.mlir").read_text()
ROWS, COLUMNS, INNER = 512, 256, 512
SIZES = {"left": 2 * ROWS * INNER, "right": 2 * INNER * COLUMNS, "result": 2 * ROWS * COLUMNS}
GIVEN = [
    *((name, None) for name in SIZES), ("rows", ROWS), ("columns", COLUMNS), ("inner", INNER), ("left_stride", INNER),
    ("right_stride", COLUMNS), ("result_stride", COLUMNS),
]  # fmt: skip
GRID = ROWS // 32, COLUMNS // 64


def test_operations_have_their_operands_types_and_regions():
    kernel = functions(PRODUCT)["product"]
    assert len(arguments(kernel)) == len(GIVEN)
    (loop,) = [each for each in kernel.regions[0][""].operations if each.name == "scf.for"]
    body = loop.regions[0][""].operations
    dot = next(each for each in body if each.name == "tt.dot")
    assert [block.shape for block in dot.types] == [(32, 32), (32, 64), (32, 64)]
    assert dot.types[0] == BlockType((32, 32), "f16")
    assert body[-1].name == "scf.yield"
    assert body[-1].operands == dot.results


def test_causal_rounds_are_counted_and_tensors_once():
    work = count(PRODUCT, GIVEN, GRID, SIZES)
    rounds = sum(min(16, place + 1) for place in range(16)) * 4
    assert work.flops == rounds * 2 * 32 * 64 * 32
    assert dict(work.loads) == {"left": SIZES["left"], "right": SIZES["right"]}, "not once for each tile"
    assert dict(work.stores) == {"result": SIZES["result"]}
    assert (work.dtype, work.depends_on_data) == ("f16", False)


def test_what_is_not_limited_by_a_tensor_is_what_is_asked_for():
    work = count(PRODUCT, GIVEN, GRID, dict.fromkeys(SIZES, 10**12))
    rounds = sum(min(16, place + 1) for place in range(16)) * 4
    assert work.loads["left"] == rounds * 32 * 32 * 2


@pytest.mark.parametrize("documents", [1, 8, 1000])
def test_loops_over_lengths_on_the_device_load_one_tensor_once(documents):
    sizes = {"x": 64 * 4 * 5000, "offsets": 4 * (documents + 1), "result": 64 * 4}
    work = count(DOCUMENTS, [(name, None) for name in sizes], (documents,), sizes)
    assert work.loads["x"] == sizes["x"]
    assert work.depends_on_data


@pytest.mark.parametrize("extent", [1, 2, 8, 9, 64, 1000])
def test_samples_stand_for_all_and_lie_evenly(extent):
    places = samples(extent)
    assert sum(weight for _, weight in places) == pytest.approx(extent)
    mean = sum(place * weight for place, weight in places) / extent
    assert mean == pytest.approx((extent - 1) / 2, abs=0.51)
    assert all(0 <= place < extent for place, _ in places)


def test_text_that_is_no_representation_is_refused():
    with pytest.raises(ValueError, match="no function"):
        count("module {\n}\n", [], (1,), {})


BRANCHES = """
module {
  tt.func public @kernel(%arg0: !tt.ptr<f32>, %arg1: !tt.ptr<i32>, %arg2: i32, %arg3: i32) attributes {noinline = false} {
    %c0 = arith.constant 0 : i32
    %c1 = arith.constant 1 : i32
    %0 = tt.load %arg1 : !tt.ptr<i32>
    %1 = arith.cmpi sgt, %0, %c0 : i32
    scf.if %1 {
      tt.store %arg0, %cst : tensor<64x!tt.ptr<f32>>
    } else {
      tt.store %arg0, %cst, %mask : tensor<128x!tt.ptr<f32>>
    }
    scf.for %arg4 = %c0 to %arg2 step %c1  : i32 {
      %2 = tt.load %arg0 : tensor<16x!tt.ptr<f32>>
    }
    %3 = arith.divsi %arg3, %c1 : i32
    tt.return
  }
}
"""


@pytest.mark.parametrize("rounds", [0, 1, 5])
def test_of_branches_that_the_device_decides_the_larger_counts_and_loops_may_be_empty(rounds):
    numbers = [("x", None), ("flag", None), ("rounds", rounds), ("large", 3 * 2**60)]
    work = count(BRANCHES, numbers, (1,), {"x": 10**6, "flag": 4})
    assert work.stores["x"] == 128 * 4
    assert work.loads["x"] == rounds * 16 * 4
    assert work.depends_on_data


WHILE = """
module {
  tt.func public @kernel(%arg0: !tt.ptr<f32>, %arg1: !tt.ptr<i32>) attributes {noinline = false} {
    %c0 = arith.constant 0 : i32
    %0 = tt.load %arg1 : !tt.ptr<i32>
    %1:2 = scf.while (%arg2 = %c0, %arg3 = %arg0) : (i32, !tt.ptr<f32>) -> (i32, !tt.ptr<f32>) {
      %2 = arith.cmpi slt, %arg2, %0 : i32
      scf.condition(%2) %arg2, %arg3 : i32, !tt.ptr<f32>
    } do {
    ^bb0(%arg2: i32, %arg3: !tt.ptr<f32>):
      %3 = tt.load %arg3 : tensor<16x!tt.ptr<f32>>
      scf.yield %arg2, %arg3 : i32, !tt.ptr<f32>
    }
    tt.store %1#1, %cst : tensor<8x!tt.ptr<f32>>
    tt.return
  }
}
"""


def test_a_pointer_is_followed_through_a_loop_that_the_device_ends():
    work = count(WHILE, [("x", None), ("length", None)], (1,), {"x": 4096, "length": 4})
    assert dict(work.loads) == {"x": 4096, "length": 4}
    assert dict(work.stores) == {"x": 8 * 4}
    assert work.depends_on_data
