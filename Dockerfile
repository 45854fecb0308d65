# Forerun for a machine with an NVIDIA GPU and its driver: PyTorch's wheels from the package index bring the CUDA libraries.
#
#   docker build -t forerun .
#   docker run --rm --gpus all -v "$PWD/work:/work" forerun doctor
#   docker run --rm --gpus all -v "$PWD/work:/work" forerun run code-detector
#
# Runs, checkpoints and the ledger are kept in /work. The compiler is for torch.compile (Triton).
FROM python:3.12-slim
RUN apt-get update && apt-get install -y --no-install-recommends build-essential && rm -rf /var/lib/apt/lists/*
WORKDIR /opt/forerun
COPY pyproject.toml README.md LICENSE NOTICE ./
COPY src ./src
RUN pip install --no-cache-dir ".[gpu,hub,quantization]"
ENV FORERUN_LEDGER=sqlite:////work/forerun.sqlite
WORKDIR /work
ENTRYPOINT ["forerun"]
CMD ["--help"]
