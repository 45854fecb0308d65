"""PyTorch Geometric: graph classification with GCN layers, batches of graphs of different sizes, global pooling."""

import torch
from parameter_count import print_parameters
from torch import nn
from torch_geometric.data import Data
from torch_geometric.loader import DataLoader
from torch_geometric.nn import GCNConv, global_mean_pool


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second, self.head = GCNConv(16, 64), GCNConv(64, 64), nn.Linear(64, 3)

    def forward(self, x, edges, batch):
        x = self.first(x, edges).relu()
        x = self.second(x, edges).relu()
        return self.head(global_mean_pool(x, batch))


def graph(number):
    nodes = 8 + number % 5
    edges = torch.stack([torch.arange(nodes), torch.arange(nodes).roll(1)])
    return Data(x=torch.randn(nodes, 16), edge_index=torch.cat([edges, edges.flip(0)], 1), y=torch.tensor([number % 3]))


device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
model = Net().to(device)
print_parameters(model)
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
for epoch in range(3):
    for data in DataLoader([graph(n) for n in range(60)], batch_size=10):
        data = data.to(device)
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(data.x, data.edge_index, data.batch), data.y)
        loss.backward()
        optimizer.step()
    print(f"epoch {epoch} loss {loss.item():.3f}")
