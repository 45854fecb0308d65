"""The tree adds up, and the drawing has a bar with a title for each of its nodes."""

import re
from xml.etree import ElementTree

from hypothesis import given
from hypothesis import strategies as st

from forerun.memory.explanation import LiveTensor
from forerun.report.flame import WIDTH, draw_flame, flame_tree
from forerun.units import MIB


def tensor(size, category="activation", module="Net.blocks.0.mlp", operator="aten.mm.default", line="net.py:7"):
    return LiveTensor(
        bytes=size, category=category, module=module, operator=operator, phase="forward", line=line
    )  # fmt: skip


def test_equal_layers_add_up_to_one_bar():
    tensors = [tensor(MIB, module=f"Net.blocks.{number}.mlp") for number in range(4)]
    root = flame_tree(tensors, 5 * MIB)
    kind = root.children["activation, made in forward"]
    blocks = kind.children["Net"].children["blocks.*"]
    assert blocks.bytes == 4 * MIB
    assert blocks.children["mlp"].children["net.py:7 mm"].bytes == 4 * MIB
    assert root.bytes == 5 * MIB
    assert [child.bytes for child in root.children.values()] == [4 * MIB, MIB]


NAMES = st.lists(st.sampled_from(["Net", "0", "11", "blocks", "mlp", "<b>"]), max_size=14)


@given(st.lists(st.tuples(st.integers(1, 10**9), NAMES), max_size=20))
def test_no_child_is_wider_than_its_parent(rows):
    tensors = [tensor(size, module=".".join(names)) for size, names in rows]
    root = flame_tree(tensors, sum(size for size, _ in rows))

    def check(node):
        assert sum(child.bytes for child in node.children.values()) in (0, node.bytes)
        for child in node.children.values():
            check(child)

    check(root)
    drawing = ElementTree.fromstring(draw_flame(root, "Memory & more"))  # well-formed, whatever the names are
    for bar in drawing.iter("rect"):
        assert float(bar.get("x")) + float(bar.get("width")) <= WIDTH + 0.2
    assert all(group.find("title") is not None for group in drawing.iter("g"))


def test_text_is_cut_to_its_bar():
    root = flame_tree([tensor(95), tensor(5, category="parameter", module="Net.head.weight")], 100)
    drawing = draw_flame(root, "Memory")
    assert ">peak · 100 B<" in drawing
    assert re.search(r"<title>Net.head|<title>weight · 5 B, 5.0 % of the peak", drawing)
    assert not re.search(r"<text[^>]*>weight · 5 B<", drawing), "too narrow for its whole name"


def test_nothing_alive_draws_an_empty_picture():
    assert "rect" not in draw_flame(flame_tree([], 0), "Memory")
