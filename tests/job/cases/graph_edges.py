"""One large graph: nodes in dim 0, and an edge_index of another size.

Right: an input may be declared whole (here the edges; and here nodes cannot be split either, as edges join any two), then
it is planned and trained; until then a refusal that says how to declare it.
"""

import torch
import torch.nn.functional as F
from torch import nn

NODES, EDGES = 64, 200


class Graph(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner, self.out = nn.Linear(8, 32), nn.Linear(32, 3)

    def forward(self, x, edges):
        h = F.relu(self.inner(x))
        h = h + torch.zeros_like(h).index_add(0, edges[1], h[edges[0]])
        return self.out(h)


def module():
    torch.manual_seed(0)
    return Graph()


def loss(module, batch):
    return F.cross_entropy(module(batch["x"], batch["edge_index"]), batch["y"])


def data(step):
    g = torch.Generator().manual_seed(100 + step)
    return {"x": torch.randn(NODES, 8, generator=g), "edge_index": torch.randint(0, NODES, (2, EDGES), generator=g),
            "y": torch.randint(0, 3, (NODES,), generator=g)}


whole = ("edge_index",)  # its rows are no nodes


def model():
    return module(), loss, data(0)


if __name__ == "__main__":  # what one device gives
    net = module()
    value = loss(net, data(0))
    value.backward()
    norm = torch.stack([p.grad.norm() for p in net.parameters() if p.grad is not None]).norm()
    print(f"loss {value.item():.6f}  grad norm {norm.item():.6f}  parameters {sum(p.numel() for p in net.parameters())}")
