"""Three graph convolutions of torch_geometric over 100,000 nodes, float32."""

import torch
from torch_geometric.nn import GCNConv


class Graph(torch.nn.Module):
    """Features of nodes to classes."""

    def __init__(self):
        super().__init__()
        self.layers = torch.nn.ModuleList([GCNConv(128, 256), GCNConv(256, 256), GCNConv(256, 40)])

    def forward(self, x, edges):
        """(nodes, 128) -> (nodes, 40)."""
        for layer in self.layers[:-1]:
            x = torch.nn.functional.dropout(layer(x, edges).relu(), 0.5, self.training)
        return self.layers[-1](x, edges)


model = Graph().cuda()
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
x, edges = torch.randn(100_000, 128).cuda(), torch.randint(0, 100_000, (2, 1_000_000)).cuda()
labels = torch.randint(0, 40, (100_000,)).cuda()
for _ in range(8):
    optimizer.zero_grad()
    loss = torch.nn.functional.cross_entropy(model(x, edges), labels)
    loss.backward()
    optimizer.step()
