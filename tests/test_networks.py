"""Settings on machines with a network between them: what a job waits for, and what its forecast says of it."""

import json
import subprocess
import sys

import pytest

import forerun
from forerun.errors import UnknownNetwork

RUN = {
    "name": "net", "workload": "causal-lm", "precision": "bf16-mixed",
    "model": {"name": "gpt2", "config": {"n_layer": 4, "n_embd": 256, "n_head": 4, "vocab_size": 4096}},
    "batch": {"micro_batch_size": 4, "sequence_length": 256}, "data": {"examples": 100_000},
}  # fmt: skip


def forecast(ranks, kind="ddp", **cluster):
    return forerun.forecast(
        RUN | {"parallel": {"kind": kind, "world_size": ranks}, "cluster": cluster}, gpu="h100-80gb"
    )


def waits(found):
    return found.step.phases.communication_seconds


@pytest.mark.medium
def test_slower_networks_and_more_machines_are_waited_for_longer():
    fast, slow = (forecast(64, network=name) for name in ("ib-ndr400", "ethernet-10g"))
    assert waits(slow) > 20 * waits(fast)
    assert waits(slow) < waits(forecast(1024, network="ethernet-10g")) < 2 * waits(slow)
    assert not any("rank" in gap for gap in slow.not_modelled)


@pytest.mark.medium
def test_gradients_over_plain_ethernet_by_hand():
    """DDP over 10 Gb/s: twice the fp32 gradients at half of the wire, NVIDIA/nccl issues 209 and 450."""
    found = forecast(64, network="ethernet-10g")
    gradients = 4 * found.parameters.trainable
    assert waits(found) == pytest.approx(2 * gradients / (0.5 * 1.25e9), rel=0.35)


@pytest.mark.medium
def test_the_network_and_the_width_of_what_is_derived_are_said():
    unnamed, named = forecast(16, "fsdp"), forecast(16, "fsdp", network="efa-p5")
    assert any("ib-ndr400 is taken" in warning for warning in unnamed.warnings)
    assert not any("is taken between machines" in warning for warning in named.warnings)
    derived = next(warning for warning in named.warnings if "derived" in warning)
    assert "all-gather" in derived
    assert "within" in derived
    inside = forecast(8, "fsdp")
    assert not any("derived" in warning or "network" in warning for warning in inside.warnings)


def test_an_unknown_network_is_one_paragraph():
    with pytest.raises(UnknownNetwork, match="ib-ndr400"):
        forecast(16, network="ib-ndr-400")


@pytest.mark.medium
def test_the_catalogue_on_the_command_line():
    command = [sys.executable, "-m", "forerun", "networks", "--search", "AWS", "--json"]
    document = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    assert {"efa-p4d", "efa-p5", "efa-p5en"} <= {row["name"] for row in document["networks"]}
