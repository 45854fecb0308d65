import gzip
import json

import pytest

from forerun.errors import BadData
from forerun.recipes.code_detector.data.corpus import CodeCorpus, check_group_disjoint, embedded, from_path, split_of

ROW = {"id": "a", "code": "x = 1", "language": "python", "label": "human", "group": "g1", "split": "train"}


def write(path, *rows):
    path.write_text("\n".join(row if isinstance(row, str) else json.dumps(row) for row in rows))
    return path


@pytest.fixture(scope="module")
def corpus() -> CodeCorpus:
    return embedded()


def test_embedded_rows_are_those_of_the_attribution(corpus):
    counts = {}
    for sample in corpus.samples:
        counts[sample.source, sample.label] = counts.get((sample.source, sample.label), 0) + 1
    assert counts == {
        ("semeval26_a_trial", "human"): 5018,
        ("semeval26_a_trial", "ai"): 4966,
        ("codeaid_63", "human"): 19,
        ("codeaid_63", "ai"): 112,
    }
    assert all((sample.generator == "human") == (sample.label == "human") for sample in corpus.samples)


def test_embedded_splits_are_large_enough_and_share_no_group(corpus):
    groups = {name: {sample.group for sample in corpus.split(name)} for name in ("train", "val", "test")}
    assert [len(corpus.split(name)) for name in groups] == [7153, 1167, 1795]
    assert not groups["train"] & groups["test"]
    assert not groups["train"] & groups["val"]
    assert not groups["val"] & groups["test"]


@pytest.mark.parametrize(("attribute", "value"), [("source", "codeaid_63"), ("language", "java"), ("family", "qwen")])
def test_held_out_rows_are_only_in_the_test_split(corpus, attribute, value):
    held_out = corpus.hold_out(attribute, value)
    held_out_ids = {sample.id for sample in corpus.samples if getattr(sample, attribute) == value}
    test = {sample.id for sample in held_out.split("test")}
    assert held_out_ids <= test
    assert not {s.id for s in held_out.samples if s.split != "test"} & held_out_ids
    assert {sample.label for sample in held_out.split("test")} == {"human", "ai"}


def test_holding_out_an_unknown_source_names_the_known(corpus):
    with pytest.raises(BadData, match="codeaid_63, semeval26_a_trial"):
        corpus.hold_out("source", "nowhere")


def test_reads_plain_and_gzipped_files(tmp_path):
    plain = write(tmp_path / "rows.jsonl", ROW, ROW | {"id": "b", "group": "g2", "split": "test", "code_norm": "x = 1"})
    packed = tmp_path / "rows.jsonl.gz"
    packed.write_bytes(gzip.compress(plain.read_bytes()))
    assert from_path(plain) == from_path(packed)
    assert [sample.source for sample in from_path(plain).samples] == ["unknown", "unknown"]


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ("{not json", "line 2: one JSON object"),
        ("[1]", "line 2: one JSON object a line; found list"),
        (ROW | {"label": "robot"}, "line 2: field label must be one of human, ai; found 'robot'"),
        (ROW | {"language": "cobol"}, "line 2: field language must be one of"),
        (ROW | {"code": ""}, "line 2: field code must be a text"),
        ({key: value for key, value in ROW.items() if key != "group"}, "line 2: field group"),
        (ROW | {"split": "dev"}, "row 2: field split must be train, val or test"),
        (ROW | {"split": "test"}, "group g1: all its rows belong in one split; found a in train and a in test"),
    ],
)
def test_a_broken_row_is_named(tmp_path, row, message):
    with pytest.raises(BadData, match=message):
        from_path(write(tmp_path / "rows.jsonl", ROW, row))


def test_unreadable_and_empty_files(tmp_path):
    (tmp_path / "empty.jsonl").write_text("\n")
    (tmp_path / "torn.jsonl.gz").write_bytes(gzip.compress(b"{}" * 1000)[:20])
    for name in ("empty.jsonl", "torn.jsonl.gz", "missing.jsonl"):
        with pytest.raises(BadData, match=name):
            from_path(tmp_path / name)


def test_without_splits_groups_are_spread_and_stay_whole(tmp_path):
    rows = [{k: v for k, v in ROW.items() if k != "split"} | {"id": str(i), "group": f"g{i // 2}"} for i in range(2000)]
    corpus = from_path(write(tmp_path / "rows.jsonl", *rows))
    check_group_disjoint(corpus.samples)
    shares = [len(corpus.split(name)) / 2000 for name in ("train", "val", "test")]
    assert shares == pytest.approx([0.70, 0.12, 0.18], abs=0.03)
    assert corpus.samples[0].split == split_of("g0")
