"""A trace comes back from its file as it was."""

from hypothesis import given, settings
from hypothesis import strategies as st

from forerun.forecasting.trace_file import OBJECT, read_trace, trace_bytes
from forerun.trace import ALLOCATE, FREE, OP, Call, Category, Named, Op, Phase, Storage, TensorSpec, Trace

number = st.integers(0, 2**40)
shape = st.lists(number, max_size=3).map(tuple)
spec = st.builds(TensorSpec, shape=shape, stride=shape, dtype=st.sampled_from(["float32", "bfloat16"]), bytes=number)
leaf = st.none() | st.booleans() | number | st.floats(allow_nan=False) | st.text(max_size=5) | spec
leaf |= st.builds(Named, kind=st.text(max_size=3), name=st.text(max_size=3))
value = st.recursive(
    leaf, lambda inner: st.lists(inner, max_size=3).map(tuple) | st.lists(inner, max_size=3), max_leaves=8
)
call = st.builds(
    Call, name=st.text(max_size=9), arguments=st.lists(value, max_size=3).map(tuple),
    keywords=st.lists(st.tuples(st.text(max_size=3), value), max_size=2).map(tuple),
    inputs=st.lists(spec, max_size=2).map(tuple), outputs=st.lists(spec, max_size=2).map(tuple),
    flops=number, bytes_read=number, bytes_written=number, is_view=st.booleans(), syncs=st.booleans(),
)  # fmt: skip
pair = st.tuples(number, number)
trace = st.builds(
    Trace, calls=st.lists(call, max_size=3),
    ops=st.lists(st.builds(Op, call=number, phase=st.sampled_from(Phase), micro_step=st.integers(-1, 3), module=st.text(max_size=5)), max_size=4),
    storages=st.lists(
        st.builds(
            Storage, bytes=number, phase=st.sampled_from(Phase), owner=st.none() | st.sampled_from(Category),
            freed_in=st.none() | st.sampled_from(Phase), name=st.text(max_size=3), stream=number,
        ), max_size=4),
    events=st.lists(st.tuples(st.sampled_from([ALLOCATE, FREE, OP]), number), max_size=5),
    network=st.none() | st.just("ib-ndr400") | st.just({"links": 4}), lines=st.dictionaries(number, st.text(max_size=5), max_size=2),
    waits=st.lists(pair, max_size=2), failures=st.lists(pair, max_size=2), math_attention=st.lists(st.text(max_size=5), max_size=2),
    tf32=st.booleans(), documents=st.text(max_size=5), warm_from=number,
)  # fmt: skip


@settings(max_examples=40)
@given(trace)
def test_a_trace_comes_back_equal(original):
    assert read_trace(trace_bytes(original)) == original


def test_of_objects_the_name_is_kept():
    class ProcessGroup:
        pass

    original = Trace(calls=[Call("c10d.send", ((ProcessGroup(), 1),), (), (), (), 0, 0, 0)])
    assert read_trace(trace_bytes(original)).calls[0].arguments == ((Named(OBJECT, "ProcessGroup"), 1),)
