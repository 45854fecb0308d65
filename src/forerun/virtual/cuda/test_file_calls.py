"""What a program does to files is seen by the program and by nobody else."""

import bz2
import contextlib
import glob
import os
import shutil
import socket
import sqlite3
import sys
import tarfile
from pathlib import Path

import pytest

from forerun.virtual.cuda.file_layer import FileLayer
from forerun.virtual.cuda.files import writing_to


@pytest.fixture
def layer(tmp_path, monkeypatch):
    (tmp_path / "real" / "data" / "deep").mkdir(parents=True)
    (tmp_path / "layer").mkdir()
    monkeypatch.chdir(tmp_path / "real")
    Path("data/rows.txt").write_text("mine")
    Path("data/deep/more.txt").write_text("mine too")
    yield FileLayer(tmp_path / "layer")
    every = {str(path): path.read_text() for path in Path("data").rglob("*") if path.is_file()}
    assert every == {"data/rows.txt": "mine", "data/deep/more.txt": "mine too"}
    assert sorted(path.name for path in Path.cwd().iterdir()) == ["data"]


def test_a_folder_lists_what_was_there_and_what_was_written(layer):
    with writing_to(layer):
        Path("data/fresh.txt").write_text("new")
        Path("data/rows.txt").unlink()
        everything = ["data/deep", "data/deep/more.txt", "data/fresh.txt"]
        Path("data/empty.txt").touch()
        assert sorted(os.listdir("data")) == ["deep", "empty.txt", "fresh.txt"]
        os.remove("data/empty.txt")
        assert sorted(map(str, Path("data").rglob("*"))) == everything
        assert sorted(glob.glob("data/**", recursive=True)) == ["data/", *everything]
        assert list(os.walk("data")) == [("data", ["deep"], ["fresh.txt"]), ("data/deep", [], ["more.txt"])]


def test_modules_that_bound_open_at_import_are_redirected_too(layer):
    with writing_to(layer):
        with bz2.open("data/packed.bz2", "wt") as file:
            file.write("new")
        assert not tarfile.is_tarfile("data/packed.bz2")
        with bz2.open("data/packed.bz2", "rt") as file:
            assert file.read() == "new"
    assert bz2._builtin_open is open  # type: ignore[attr-defined]


def test_a_removed_tree_stays(layer):
    with writing_to(layer):
        Path("data/deep/fresh.txt").write_text("new")
        shutil.rmtree("data")
        assert not os.path.exists("data/deep/more.txt")
        assert not os.path.exists("data")
        os.makedirs("data/deep")
        assert os.listdir("data/deep") == []


def test_files_relative_to_a_descriptor(layer):
    with writing_to(layer):
        folder = os.open("data", os.O_RDONLY)
        os.unlink("rows.txt", dir_fd=folder)
        os.close(os.open("fresh.txt", os.O_WRONLY | os.O_CREAT, dir_fd=folder))
        os.close(folder)
        assert sorted(os.listdir("data")) == ["deep", "fresh.txt"]


def test_writing_by_a_link_leaves_what_it_leads_to(layer):
    with writing_to(layer):
        os.symlink("data/rows.txt", "link.txt")
        os.symlink("data", "folder")
        assert Path("link.txt").read_text() == "mine"
        Path("link.txt").write_text("changed")
        Path("folder/deep/more.txt").write_text("changed")
        assert Path("data/rows.txt").read_text() == Path("data/deep/more.txt").read_text() == "changed"
        assert os.path.islink("link.txt")
        os.truncate("data/rows.txt", 0)


def test_a_program_works_in_a_folder_that_it_made(layer):
    there = os.getcwd()
    with writing_to(layer):
        os.makedirs("outputs/today")
        os.chdir("outputs/today")
        Path("notes.txt").write_text("new")
        assert Path("notes.txt").read_text() == "new"
        assert Path("../../data/rows.txt").read_text() == "mine"
        os.chdir(there)
        assert Path("outputs/today/notes.txt").read_text() == "new"


def test_a_module_that_the_program_wrote_can_be_imported(layer, monkeypatch):
    monkeypatch.syspath_prepend(os.path.abspath("data"))
    with writing_to(layer):
        Path("data/written_now.py").write_text("ANSWER = 3")
        import written_now  # type: ignore[import-not-found]

        assert written_now.ANSWER == 3
    del sys.modules["written_now"]


def test_sockets_that_are_files_are_where_the_program_made_their_folder(layer):
    with writing_to(layer):
        os.mkdir("data/own")
        with socket.socket(socket.AF_UNIX) as server, socket.socket(socket.AF_UNIX) as client:
            server.bind("data/own/s")
            server.listen()
            client.connect("data/own/s")
            client.sendall(b"hello")
            with server.accept()[0] as accepted:
                assert accepted.recv(5) == b"hello"
        with socket.socket() as server:  # of the network as before
            server.bind(("127.0.0.1", 0))


def test_a_data_base_is_one_of_the_layer(layer):
    with writing_to(layer):
        for name, options in (("data/runs.db", {}), ("file:data/more.db?mode=rwc", {"uri": True})):
            with contextlib.closing(sqlite3.connect(name, **options)) as base:
                base.execute("create table runs (name)")
                base.commit()
        with contextlib.closing(sqlite3.connect("data/runs.db")) as base:
            assert base.execute("select count(*) from runs").fetchall() == [(0,)]
        assert sorted(os.listdir("data")) == ["deep", "more.db", "rows.txt", "runs.db"]


def test_tokenizers_read_and_write_in_the_layer(layer):
    with writing_to(layer):
        from tokenizers import Tokenizer, models, pre_tokenizers, trainers

        os.makedirs("saved")
        Path("saved/corpus.txt").write_text("low lower lowest " * 20)
        tokenizer = Tokenizer(models.BPE())
        tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
        tokenizer.train(["saved/corpus.txt"], trainers.BpeTrainer(vocab_size=20, show_progress=False))
        tokenizer.save("saved/tokenizer.json")
        assert Tokenizer.from_file("saved/tokenizer.json").get_vocab() == tokenizer.get_vocab()
        files = tokenizer.model.save("saved")
        assert files == ["saved/vocab.json", "saved/merges.txt"]
        assert models.BPE.from_file(*files).token_to_id("low") == tokenizer.token_to_id("low")
