"""What `forerun train --nproc` sets for the processes that it starts."""

import pytest

from forerun.cli.run_commands import overrides_for_processes

RUN = """
name: a
workload: causal-lm
model: {name: tiny-llama}
data: {examples: 64}
"""


@pytest.mark.parametrize(
    ("layout", "overrides", "expected"),
    [
        ("", [], ["parallel.kind=ddp", "parallel.world_size=2"]),
        ("", ["parallel.kind=fsdp"], ["parallel.kind=fsdp", "parallel.kind=fsdp", "parallel.world_size=2"]),
        ("parallel: {kind: fsdp, world_size: 8}", [], ["parallel.kind=fsdp", "parallel.world_size=2"]),
        ("parallel: {pipeline: 2}", [], []),
        ("parallel: {context: 2}", [], []),
        ("", ["parallel.tensor=2"], ["parallel.tensor=2"]),
    ],
)
def test_a_layout_with_as_many_ranks_is_left_as_it_is(tmp_path, layout, overrides, expected):
    file = tmp_path / "run.yaml"
    file.write_text(RUN + layout)
    assert overrides_for_processes(str(file), overrides, 2) == expected
