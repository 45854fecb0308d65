import json

import numpy as np
import pytest
import torch
from starlette.testclient import TestClient

from forerun.errors import BadData
from forerun.recipes.code_detector.embedding.model import FileEmbedding
from forerun.recipes.code_detector.embedding.nearest import nearest_pairs
from forerun.recipes.code_detector.embedding.vectors import (
    EmbeddingCard,
    FileVectors,
    cosine_of,
    read_embedding,
    write_embedding,
)
from forerun.recipes.code_detector.service.app import make_app
from forerun.recipes.code_detector.service.test_app import FakeDetector
from forerun.recipes.code_detector.similarity.compare import Sizes, SourceFile, base_code, compare
from forerun.recipes.code_detector.similarity.features import STRUCTURE, VOCABULARY

SORT = "def sort_values(values):\n" + "".join(
    f"    if values[{n}] > values[{n + 1}]:\n        values[{n}], values[{n + 1}] = values[{n + 1}], values[{n}]\n"
    for n in range(4)
)
READ = (
    "def read_lines(path):\n    with open(path) as file:\n        for number, line in enumerate(file):\n"
    "            words = line.strip().split(',')\n            print(number, len(words), words)\n"
)
OTHER = "class Bank:\n    def __init__(self):\n        self.money = 0\n\n" + "".join(
    f"    def add{n}(self, amount):\n        self.money = self.money + amount * {n} + len(str(amount)) - max(amount, {n})\n"
    for n in range(3)
)


def untrained() -> FileVectors:
    """Hashed features and a random projection."""
    torch.manual_seed(0)
    card = EmbeddingCard(
        data="nothing", files=0, tasks=0, parts=[VOCABULARY, STRUCTURE], encoder="none", width=256, epochs=0,
        map_at_r_before=0.5, map_at_r=0.5, unrelated=np.linspace(-0.2, 0.8, 101).tolist(), piece_cosine=0.6,
    )  # fmt: skip
    return FileVectors(FileEmbedding([VOCABULARY, STRUCTURE], width=256), card)


@pytest.fixture(scope="module")
def vectors() -> FileVectors:
    return untrained()


def embedded(vectors, *codes, base=()):
    handed_out = base_code([SourceFile("base", code, "python") for code in base], Sizes())
    files = [SourceFile(f"f{n}", code, "python") for n, code in enumerate(codes)]
    return vectors.embed_sources(files, Sizes(), handed_out)


def test_pieces_that_do_the_same_are_evidence_wherever_they_stand(vectors):
    a, b = embedded(vectors, SORT + "\n" + READ, OTHER + "\n" + READ.replace("path", "name") + "\n" + SORT)
    evidence = vectors.evidence(a, b)
    read = (len(SORT.splitlines()) + 2, len(SORT.splitlines()) + 1 + len(READ.splitlines()))
    assert {(e.a_first_line, e.a_last_line) for e in evidence} == {(1, len(SORT.splitlines())), read}
    assert all(e.tier == "embedding" and e.tokens > 20 and 0.6 < e.cosine <= 1 for e in evidence)
    lines = b.code.split("\n")
    assert [lines[e.b_first_line - 1] for e in evidence] == ["def sort_values(values):", "def read_lines(name):"]
    assert vectors.evidence(*embedded(vectors, SORT, OTHER)) == []


def test_answers_do_not_depend_on_what_else_is_asked(vectors):
    together = embedded(vectors, SORT, READ, OTHER)
    alone = [embedded(vectors, code)[0] for code in (SORT, READ, OTHER)]
    for one, two in zip(together, alone, strict=True):
        np.testing.assert_allclose(one.vector, two.vector, atol=1e-5)


def test_what_was_handed_out_brings_nobody_closer(vectors):
    codes = (READ + "\n" + SORT, READ + "\n" + OTHER)
    plain, apart = embedded(vectors, *codes), embedded(vectors, *codes, base=[READ])
    assert cosine_of(*apart) < cosine_of(*plain) - 0.1
    assert vectors.evidence(*plain)
    assert not vectors.evidence(*apart)


def test_unrelated_pairs_are_counted(vectors):
    assert [vectors.unrelated_share(cosine) for cosine in (-1, 0.305, 0.9)] == [1, pytest.approx(50 / 101), 0]


def test_neighbours_come_closest_first(vectors):
    files = embedded(vectors, SORT, OTHER, READ, SORT + "\n# mine\n", "x = 1")
    best = nearest_pairs(files, vectors, pair_limit=2)
    assert (best[0].a, best[0].b) == ("f0", "f3")
    assert best[0].cosine > best[1].cosine
    of_one = nearest_pairs(files, vectors, pair_limit=9, query=1)
    assert {pair.a for pair in of_one} == {"f1"}
    assert {pair.b for pair in of_one} == {"f0", "f2", "f3"}
    assert nearest_pairs(files, vectors, pair_limit=9, query=4) == []


def test_it_is_read_back_and_damage_is_said(vectors, tmp_path):
    write_embedding(vectors.model, vectors.card, tmp_path / "e")
    again = read_embedding(tmp_path / "e")
    np.testing.assert_array_equal(embedded(again, SORT)[0].vector, embedded(vectors, SORT)[0].vector)
    assert again.card == vectors.card
    with pytest.raises(BadData, match="forerun embed"):
        read_embedding(tmp_path)
    (tmp_path / "e" / "embedding.safetensors").write_bytes(b"\x00" * 40)
    with pytest.raises(BadData, match="forerun embed"):
        read_embedding(tmp_path / "e")
    described = json.loads((tmp_path / "e" / "embedding.json").read_text()) | {"width": 8}
    write_embedding(vectors.model, EmbeddingCard.model_validate(described), tmp_path / "e")
    with pytest.raises(BadData, match="forerun embed"):
        read_embedding(tmp_path / "e")


def test_the_service_finds_neighbours_with_evidence(vectors):
    def file(code):
        return {"code": code, "language": "python"}

    with TestClient(make_app(FakeDetector(), embedding=vectors)) as client:
        assert client.get("/v1/status").json()["embedding"] == "nothing"
        body = {"query": file(SORT), "candidates": [file(OTHER), file(READ), file(SORT.replace("values", "xs"))]}
        for by in ("syntax", "embedding"):
            neighbours = client.post("/v1/find-similar", json={**body, "by": by, "shown": 3}).json()["found"]
            assert neighbours[0]["index"] == 2
            assert "embedding" in {each["tier"] for each in neighbours[0]["comparison"]["evidence"]}
            assert 0 <= neighbours[0]["unrelated"] <= neighbours[-1]["unrelated"] <= 1
        cosines = [each["embedding"] for each in neighbours]
        assert cosines == sorted(cosines, reverse=True)
        pair = client.post("/v1/similarity", json={"a": file(SORT), "b": file(SORT)}).json()
        assert pair["embedding"] == pytest.approx(1, abs=1e-5)
    with TestClient(make_app(FakeDetector())) as client:
        refused = client.post("/v1/find-similar", json={**body, "by": "embedding"})
        assert (refused.status_code, client.get("/v1/status").json()["embedding"]) == (404, "detector")


def test_small_files_have_no_evidence(vectors):
    a, b = embedded(vectors, "x = 1", "x = 1")
    assert vectors.with_evidence(compare(a.file, b.file, Sizes()), a, b).evidence == []
