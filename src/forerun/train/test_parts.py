"""Whatever the parts, a block read from them is the block of the whole tensor."""

import tempfile
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file

from forerun.train.parts import PIECE, Parts, apart


def parts_file(folder, whole, cuts):
    """`whole` cut between rows; files with their places."""
    files = {}
    for number, (begin, end) in enumerate(zip([0, *cuts], [*cuts, len(whole)], strict=True)):
        file = Path(folder) / f"{number}.safetensors"
        save_file({"w": whole[begin:end].contiguous()}, file)
        files[file] = {"w": [begin, *[0] * (whole.ndim - 1)]}
    return Parts(files)


@given(st.data())
def test_any_block_from_any_parts(data):
    rows = data.draw(st.integers(1, 9))
    whole = torch.arange(rows * 3).reshape(rows, 3)
    cuts = sorted(data.draw(st.lists(st.integers(0, rows), max_size=3)))
    first = data.draw(st.integers(0, rows - 1))
    size = data.draw(st.integers(1, rows - first))
    with tempfile.TemporaryDirectory() as folder:
        parts = parts_file(folder, whole, cuts)
        assert parts.shape("w") == [rows, 3]
        assert torch.equal(parts.read("w", [size, 3], [first, 0]), whole[first : first + size])


def test_scalars_and_missing_names(tmp_path):
    save_file({"n": torch.tensor(3.0)}, tmp_path / "a")
    parts = Parts({tmp_path / "a": {"n": []}})
    assert parts.shape("n") == []
    assert parts.read("n", [], []) == 3
    with pytest.raises(KeyError):
        parts.read("m", [], [])


def test_tensors_that_share_memory_are_stored_apart(tmp_path):
    table = torch.arange(6.0).view(2, 3)
    save_file(apart({"one": table, "two": table, "row": table[1], "turned": table.t()}), tmp_path / "f.safetensors")
    tensors = load_file(tmp_path / "f.safetensors")
    assert torch.equal(tensors["one"], table)
    assert torch.equal(tensors["two"], table)
    assert torch.equal(tensors["row"], table[1])
    assert torch.equal(tensors["turned"], table.t())


def test_pieces_of_packed_matrices_are_one_tensor(tmp_path):
    """Two ranks, each with rows of both matrices."""
    whole = torch.arange(24.0).view(8, 3)
    files = {}
    for number in (0, 1):
        begins = [2 * number, 4 + 2 * number]
        keys = ["w", f"w{PIECE}1"]
        pieces = {key: whole[begin : begin + 2].contiguous() for key, begin in zip(keys, begins, strict=True)}
        save_file(pieces, tmp_path / f"{number}")
        files[tmp_path / f"{number}"] = {key: [begin, 0] for key, begin in zip(keys, begins, strict=True)}
    parts = Parts(files)
    assert parts.names == {"w"}
    assert parts.shape("w") == [8, 3]
    assert torch.equal(parts.read("w", [5, 3], [1, 0]), whole[1:6])
