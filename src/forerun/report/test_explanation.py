"""The explanation in 80 columns."""

from rich.console import Console

from forerun.memory.explanation import Explanation, Lever, LiveTensor, RankExchange
from forerun.report.explanation import explanation_tables

TENSOR = LiveTensor(
    bytes=3 * 2**30, category="activation", module="base_model.model.model.layers.31.mlp.act_fn",
    operator="aten.silu.default", phase="forward", line="modeling_llama.py:214",
)  # fmt: skip
EXPLANATION = Explanation(
    phase="backward", module="", operator="aten.mm.default", largest=[TENSOR],
    modules={"model.layers.*": {"activation": 2**30, "parameter": 2**31}},
    levers=[
        Lever(change="activation_checkpointing=blocks", saves_bytes=2**30, changes_method=False),
        Lever(change="quantization=nf4-double", saves_bytes=-5, changes_method=True),
    ],
    exchanges=[RankExchange(name="_allgather_base_", phase="forward", ranks=16, machines=2, bytes=2**27, count=32)],
)  # fmt: skip


def test_it_says_what_where_and_what_helps():
    console = Console(width=80, record=True)
    with console.capture() as captured:
        console.print(explanation_tables(EXPLANATION, "t4"))
    text = captured.get()
    for part in ("Peak on t4: backward · aten.mm.default", "3.00 GiB", "activation silu", "modeling_llama.py:214",
                 "parameter 2.00 GiB", "--set activation_checkpointing=blocks", "1.00 GiB", "nothing", "other method", "128 MiB", "allgather_base"):  # fmt: skip
        assert part in text
    assert max(len(line) for line in text.splitlines()) <= 80


def test_long_module_paths_keep_their_end():
    console = Console(width=120)
    with console.capture() as captured:
        console.print(explanation_tables(EXPLANATION, "t4"))
    assert "layers.31.mlp.act_fn" in captured.get()
