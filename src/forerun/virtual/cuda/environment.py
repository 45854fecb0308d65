"""Variables of a program's environment that change how it runs on the card, and which of them are not followed."""

from collections.abc import Mapping

BLOCKING = "CUDA_LAUNCH_BLOCKING"
SLOWS = {
    BLOCKING: "the host waits for every kernel, so that the GPU runs dry between them, which is in the time",
    "PYTORCH_NO_CUDA_MEMORY_CACHING": "the driver is asked for every tensor, which is in neither memory nor time",
}
"""Those that only debugging and full determinism need, and what of them is in a forecast."""
BETWEEN_RANKS = {
    "NCCL_P2P_DISABLE": "GPUs exchange over the host's memory",
    "NCCL_SHM_DISABLE": "GPUs exchange over the network inside a machine",
    "NCCL_IB_DISABLE": "machines exchange over TCP",
    "NCCL_NVLS_ENABLE": "NCCL takes no NVLink SHARP",
}
"""The same of several ranks."""
OFF_BY_ZERO = frozenset({"NCCL_NVLS_ENABLE"})
"""Variables of which 0 is what counts."""
REMEDIES = {True: "Unset it to train.", False: "Collectives are priced as without it."}


def blocks_launches(environment: Mapping[str, str]) -> bool:
    """Whether the host waits for every kernel."""
    return environment.get(BLOCKING, "").strip() not in ("", "0")


def not_followed(environment: Mapping[str, str]) -> list[str]:
    """Sentences on the variables that are set, with what they do."""
    sentences = []
    has_ranks = environment.get("WORLD_SIZE", "1").strip() != "1"
    for variables in (SLOWS, BETWEEN_RANKS if has_ranks else {}):
        for name, effect in variables.items():
            value = environment.get(name, "").strip()
            if value and (value == "0") == (name in OFF_BY_ZERO):
                sentences.append(f"{name}={value}: {effect}. {REMEDIES[variables is SLOWS]}")
    return sentences
