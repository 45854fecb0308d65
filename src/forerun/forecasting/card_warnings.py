"""What a reader must know of the card itself: what PyTorch runs on it, which numbers a rule made, what differs.

Sources: pytorch/pytorch#172352 and #175253 (wheels of 2.11 for CUDA 12.8 and 13.0 begin at compute capability 7.5;
those for CUDA 12.6 keep 5.0 to 7.0), #190385 (the proposal to end those with 2.15); read 2026-11-23.
"""

from forerun.clock.alike import example_of
from forerun.clock.priors import table
from forerun.hardware.catalogue import OLDEST_CAPABILITY, Device
from forerun.network.catalogue import fabric_of

AMD = (
    "{name} is an AMD GPU. Allocator, model and optimizer are as on CUDA; not modelled: workspaces of hipBLASLt, "
    "MIOpen's convolutions, Triton on ROCm, FP32 on matrix cores, bitsandbytes for ROCm{links}. {rates}"
)
NO_LINKS = ", the links between cards (collectives are priced at nothing)"
OWN_RATES = (
    "Products and attention take what AMD's libraries and PyTorch's kernels were seen to take on such cards. The "
    "published steps that were compared, LLaMA-3-8B by torchtitan on eight MI300X, took 1.11 times as long as forecast "
    "in bfloat16 and 1.21 to 1.39 times in float8."
)
RATES_OF_OTHERS = (
    "Products are those of other GPUs at this card's peak and bandwidth; on an MI300X AMD's libraries took 1.8 times "
    "as long as that says."
)
PLAIN_ATTENTION = (
    "Attention is taken as plain arithmetic (math): PyTorch's fused kernels for this AMD GPU are missing, or off "
    "unless TORCH_ROCM_AOTRITON_ENABLE_EXPERIMENTAL=1 is set. With them a step needs less memory and time."
)
OLD = (
    "{name} has compute capability {capability}: PyTorch's wheels from PyPI (2.11 and later, CUDA 12.8 or 13) do not "
    "run on it. Those for CUDA 12.6 do (pip install torch --index-url https://download.pytorch.org/whl/cu126); to end "
    "them with 2.15 is proposed."
)
NO_TENSOR_CORES = (
    "{name} has no tensor cores: 16-bit products are no faster than fp32, so mixed precision saves memory, not time."
)
NO_PUBLISHED_STEP = (
    "No published step on {architecture} was compared with a forecast; the range of time may be too narrow."
)
SLICE = (
    "{name} is a slice of {card} in MIG mode: bandwidth, cache and peaks are the slice's part of the card's. Slices "
    "share clock and power, and do not talk to each other by NCCL."
)
UNSEEN_ARCHITECTURES = ("pascal",)
"""Of NVIDIA, without any timing that coefficients were fitted to, and without a published step."""
IN_WORDS = {
    "memory_bytes": "memory",
    "peak_flops_per_second": "peaks",
    "bandwidth_bytes_per_second": "bandwidth",
    "context_bytes": "memory of the CUDA context",
    "sm_count": "number of multiprocessors",
}


def card_warnings(device: Device) -> list[str]:
    """Sentences for the reader of a forecast; none for a card that was read and that today's PyTorch runs on."""
    if device.kind == "cpu":
        return []
    name, capability = device.name, device.compute_capability
    sentences = [_of_amd(device)] if device.is_amd else []
    if device.is_amd and device.attention == "plain":
        sentences.append(PLAIN_ATTENTION)
    if capability is not None and capability < OLDEST_CAPABILITY:
        sentences.append(OLD.format(name=name, capability=".".join(map(str, capability))))
    if not device.is_amd and not device.has_tensor_cores:
        sentences.append(NO_TENSOR_CORES.format(name=name))
    if device.architecture in UNSEEN_ARCHITECTURES:
        sentences.append(NO_PUBLISHED_STEP.format(architecture=device.architecture.title()))
    if device.slice_of is not None:
        sentences.append(SLICE.format(name=name, card=device.slice_of))
    derived = [words for field, words in IN_WORDS.items() if field in device.derived_fields]
    if derived and device.slice_of is None:
        sentences.append(
            f"Of {name} these are worked out by rules from its specifications, not read: {', '.join(derived)} "
            f"(forerun gpus --search {name} --json has each rule)."
        )
    return sentences + ([f"{name}: {device.remark}."] if device.remark else [])


def _of_amd(device: Device) -> str:
    """What is as on CUDA, and what is not."""
    is_measured = example_of(device, table()["products"]["tensor"]["lean"]) is not None
    links = "" if fabric_of(device.name) else NO_LINKS
    return AMD.format(name=device.name, links=links, rates=OWN_RATES if is_measured else RATES_OF_OTHERS)
