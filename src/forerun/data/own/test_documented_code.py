"""Code beside its description is asked about, with retrieval as the default."""

from forerun.data.own.formats import recognise

ROWS = [{"code": f"def f{n}(): return {n}", "docstring": f"Return the number {n}.", "repo": "a/b"} for n in range(30)]


def test_code_and_its_description_are_a_pair_by_default_and_asked_about():
    best, *others = recognise(ROWS)
    assert (best.format, best.workload, best.is_certain) == ("pairs", "embedding", False)
    assert best.fields == {"anchor": "docstring", "positive": "code"}
    assert [p.fields for p in others[:2]] == [
        {"prompt": "docstring", "completion": "code"}, {"source": "code", "target": "docstring"},
    ]  # fmt: skip
    assert "text" in [p.format for p in others]


def test_a_workload_decides():
    assert recognise(ROWS, workload="causal-lm")[0].fields == {"prompt": "docstring", "completion": "code"}
    assert recognise(ROWS, workload="embedding")[0].fields == {"anchor": "docstring", "positive": "code"}
    best = recognise(ROWS, workload="seq2seq-lm")[0]
    assert (best.workload, best.fields) == ("seq2seq-lm", {"prompt": "docstring", "completion": "code"})


def test_names_of_code_search_net():
    rows = [
        {"repository_name": "a/b", "func_name": f"f{n}", "whole_func_string": f'def f{n}(): """Number {n}."""; return {n}',
         "func_code_string": f'def f{n}(): """Number {n}."""; return {n}', "func_documentation_string": f"Number {n}."}
        for n in range(30)
    ]  # fmt: skip
    best = recognise(rows)[0]
    assert best.fields == {"anchor": "func_documentation_string", "positive": "func_code_string"}
    assert "In 100% of rows func_code_string holds func_documentation_string itself" in best.reason
    assert "holds" not in recognise(ROWS)[0].reason


def test_code_alone_is_text():
    assert recognise([{"code": row["code"]} for row in ROWS])[0].format == "text"
