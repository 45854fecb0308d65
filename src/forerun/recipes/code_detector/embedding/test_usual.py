"""Without a folder of its own `similar` takes the embedding of the shipped rows, and makes it once."""

from types import SimpleNamespace

from forerun.recipes.code_detector.embedding import usual


def test_it_is_made_once_and_the_folders_own_comes_first(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FORERUN_CACHE", str(tmp_path / "cache"))
    made = []

    def make(files, name, *, epochs):
        made.append((name, epochs))
        return SimpleNamespace(model="m", card="c")

    def write(model, card, folder):
        folder.mkdir()
        (folder / "x").write_text(f"{model}{card}")

    monkeypatch.setattr(usual, "task_files", lambda data: [])
    monkeypatch.setattr(usual, "make_embedding", make)
    monkeypatch.setattr(usual, "write_embedding", write)
    monkeypatch.setattr(usual, "read_embedding", lambda folder: (folder.name, (folder / "x").read_text()))
    assert [usual.usual_embedding() for _ in range(2)] == [("embedding", "mc")] * 2
    assert made == [("the shipped rows", usual.EPOCHS)]
    own = tmp_path / usual.OWN_FOLDER
    own.mkdir(parents=True)
    (own / "x").write_text("own")
    assert usual.usual_embedding()[1] == "own"
