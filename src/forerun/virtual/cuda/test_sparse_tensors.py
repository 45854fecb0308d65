"""Sparse gradients and matrices on the virtual GPU need the memory of what they hold, not of what they stand for."""

import itertools

import pytest
import torch
from torch import nn

import forerun

pytestmark = pytest.mark.filterwarnings("ignore:Sparse invariant checks")  # PyTorch's own, once a process
ROWS, WIDTH, BATCH = 100_000, 64, 256
FLOAT_BYTES = 4


def optimizers():
    return {
        "sgd": lambda p: torch.optim.SGD(p, 0.1),
        "momentum": lambda p: torch.optim.SGD(p, 0.1, momentum=0.9),
        "adagrad": lambda p: torch.optim.Adagrad(p, 0.1),
        "sparse-adam": lambda p: torch.optim.SparseAdam(list(p)),
    }


@pytest.mark.parametrize("layer", [nn.Embedding, nn.EmbeddingBag])
def test_a_gradient_has_the_rows_of_its_batch(layer):
    """On the host the same program runs with the same kinds of gradients."""
    with forerun.virtual_cuda("t4"):
        for device, make in itertools.product(("cpu", "cuda"), optimizers().values()):
            table = layer(ROWS if device == "cuda" else 100, WIDTH, sparse=True).to(device)
            optimizer = make(table.parameters())
            for step in range(2):
                numbers = torch.randint(0, 100, (8, BATCH // 8), device=device)
                before = torch.cuda.memory_allocated()
                table(numbers).square().mean().backward()
                gradient = table.weight.grad
                assert (gradient.is_sparse, gradient.shape) == (True, table.weight.shape)
                assert gradient.coalesce()._values().shape[1] == WIDTH
                held = torch.cuda.memory_allocated() - before
                del gradient
                optimizer.step()
                optimizer.zero_grad(set_to_none=step == 0)
            if device == "cuda":  # values, and numbers of eight bytes
                assert BATCH * WIDTH * FLOAT_BYTES <= held <= BATCH * (WIDTH * FLOAT_BYTES + 2 * 8) + 4096


def test_a_product_with_a_sparse_matrix_needs_no_matrix_of_all_pairs():
    nodes, edges = 100_000, 400_000
    graph = torch.sparse_coo_tensor(
        torch.randint(0, nodes, (2, edges)), torch.ones(edges), (nodes, nodes), check_invariants=False
    )
    with forerun.virtual_cuda("t4") as gpu:
        before = torch.cuda.memory_allocated()
        graph = graph.cuda()
        assert torch.cuda.memory_allocated() - before == edges * (2 * 8 + FLOAT_BYTES)
        layer = nn.Linear(WIDTH, WIDTH).cuda()
        features = torch.randn(nodes, WIDTH, device="cuda")
        for product in (torch.spmm, torch.sparse.mm, torch.mm):
            product(graph, layer(features)).sum().backward()
        assert layer.weight.grad.shape == (WIDTH, WIDTH)
        assert (graph.t() @ features).shape == (nodes, WIDTH)
        assert graph.coalesce().indices().shape == (2, edges)
        assert not graph.cpu().is_cuda
        assert gpu.memory.peak_allocated_bytes < 10 * nodes * WIDTH * FLOAT_BYTES


def test_what_is_not_known_of_sparse_tensors_says_so():
    with forerun.virtual_cuda("t4"):
        graph = torch.eye(4).to_sparse().cuda()
        with pytest.raises(NotImplementedError, match="only products of a sparse matrix by a dense one"):
            torch.mm(torch.ones(4, 4, device="cuda"), graph)
        with pytest.raises(NotImplementedError, match=r"aten\.tanh.* of a sparse tensor is not known"):
            graph.tanh()
        table = nn.Embedding(8, 4, sparse=True).cuda()
        table(torch.arange(4, device="cuda")).sum().backward()
        with pytest.raises(NotImplementedError, match="linalg_vector_norm"):  # as on the card
            nn.utils.clip_grad_norm_(table.parameters(), 1.0)
        assert graph.to_dense().shape == (4, 4)


@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support")
@pytest.mark.parametrize("makes", ["on the host", "on the card", "of its parts"])
def test_a_compressed_matrix_multiplies_as_one_of_positions_does(makes):
    positions, nodes, width = torch.arange(8000).view(2, 4000) % 1000, 1000, 16
    with forerun.virtual_cuda("t4") as gpu:
        matrix = torch.sparse_coo_tensor(positions, torch.ones(4000), (nodes, nodes)).coalesce()
        if makes == "on the host":
            matrix = matrix.to_sparse_csr().cuda()
        elif makes == "on the card":
            matrix = matrix.cuda().to_sparse_csr()
        else:
            parts = matrix.to_sparse_csr()
            matrix = torch.sparse_csr_tensor(
                parts.crow_indices().cuda(), parts.col_indices().cuda(), parts.values().cuda(), (nodes, nodes)
            )
        features = torch.randn(nodes, width, device="cuda", requires_grad=True)
        (matrix @ features).sum().backward()
        assert features.grad.shape == (nodes, width)
        calls = [gpu.trace.calls[op.call] for op in gpu.trace.ops]
        reads = [call.bytes_read for call in calls if "sparse_product" in call.name]
        assert len(reads) == 2  # of the features, and of the gradient by the matrix turned
        kept = matrix._values().shape[0]
        assert reads[0] == kept * (2 * 8 + FLOAT_BYTES) + kept * width * FLOAT_BYTES
