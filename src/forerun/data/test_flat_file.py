"""A file that grows is a plain `.npy`, and pieces of it are what was written."""

import os
import pickle

import numpy as np
import pytest

from forerun.data.flat_file import FlatFile, FlatWriter


def written(path, pieces, dtype=np.int32):
    with FlatWriter(path, dtype) as writer:
        for piece in pieces:
            writer.add(piece)
    return FlatFile(path)


def test_pieces_come_back_and_numpy_reads_the_whole(tmp_path):
    path = tmp_path / "a.npy"
    file = written(path, [[1, 2], [], np.arange(100_000), range(3)])
    whole = np.concatenate([[1, 2], np.arange(100_000), [0, 1, 2]])
    assert np.array_equal(np.load(path), whole)
    assert np.array_equal(np.load(path, mmap_mode="r"), whole)
    assert (len(file), np.load(path).dtype) == (len(whole), np.int32)
    for first, end in ((0, 2), (1, 90_000), (100_002, 100_005), (7, 7)):
        assert np.array_equal(file.piece(first, end), whole[first:end])
    assert file.piece(0, 2).flags.writeable  # torch warns of arrays that are not


def test_an_empty_file_has_no_values(tmp_path):
    file = written(tmp_path / "a.npy", [], np.float64)
    assert (len(file), len(file.piece(0, 0)), len(np.load(tmp_path / "a.npy"))) == (0, 0, 0)


def test_another_process_reads_it_too(tmp_path):
    file = written(tmp_path / "a.npy", [np.arange(10)])
    assert np.array_equal(pickle.loads(pickle.dumps(file)).piece(3, 6), [3, 4, 5])


def test_a_file_cut_short_is_an_error_not_zeros(tmp_path):
    path = tmp_path / "a.npy"
    file = written(path, [np.arange(1000)])
    os.truncate(path, path.stat().st_size - 8)
    with pytest.raises(EOFError, match="value 1000 of 1000"):
        file.piece(990, 1000)
