"""The network, the rows of each node, a loop that trains, and one that scores."""

import numpy as np
import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Net(nn.Module):
    """A network for images of 8 x 8 pixels."""

    def __init__(self) -> None:
        super().__init__()
        conv = nn.Conv2d(1, 8, 3, padding=1)
        pooled = nn.Sequential(conv, nn.ReLU(), nn.MaxPool2d(2), nn.Flatten())
        self.body = nn.Sequential(pooled, nn.Linear(128, 32), nn.ReLU())
        self.head = nn.Linear(32, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Returns a score for each digit."""
        scores: torch.Tensor = self.head(self.body(x))
        return scores


def load_data(partition_id: int, batch_size: int) -> tuple[DataLoader, DataLoader]:
    """Returns batches of a node's training and test rows, of three digits."""
    digits, mine = load_digits(), [(partition_id + k) % 10 for k in range(3)]
    rows = np.flatnonzero(np.isin(digits.target, mine))[partition_id % 3 :: 3]
    rows = np.random.default_rng(partition_id).permutation(rows)
    x, y = torch.tensor(digits.images[rows, None] / 16).float(), torch.tensor(digits.target[rows])
    cut = int(0.7 * len(rows))
    train, test = TensorDataset(x[:cut], y[:cut]), TensorDataset(x[cut:], y[cut:])
    return DataLoader(train, batch_size, shuffle=True), DataLoader(test, batch_size)


def train(net: nn.Module, trainloader: DataLoader, epochs: int, lr: float) -> float:
    """Trains the network; returns the mean loss."""
    optimizer = torch.optim.SGD(net.parameters(), lr=lr, momentum=0.9)
    net.train()
    running_loss = 0.0
    for _ in range(epochs):
        for x, y in trainloader:
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(net(x), y)
            loss.backward()
            optimizer.step()
            running_loss += loss.item()
    return running_loss / (epochs * len(trainloader))


@torch.no_grad()
def test(net: nn.Module, testloader: DataLoader) -> float:
    """Returns the share of rows that the network classifies right."""
    net.eval()
    right = sum(int((net(x).argmax(1) == y).sum()) for x, y in testloader)
    return right / len(testloader.dataset)
