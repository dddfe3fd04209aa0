"""VGG-16: plain 3x3 convolutions and three wide fully connected layers.

References
----------
Simonyan and Zisserman, "Very Deep Convolutional Networks for Large-Scale Image Recognition", ICLR 2015,
table 1, column D.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch.nn.functional as F
from torch import Tensor, nn

from trainyard.program.model import Model
from trainyard.zoo.common import image_batch, image_loss


@dataclass(frozen=True)
class VGGConfig:
    """Sizes of a VGG; the defaults are VGG-16.

    Attributes
    ----------
    image : height and width, pixels; a multiple of 2 to the number of stages.
    stages : (convolutions, channels) between two poolings.
    hidden : width of the fully connected layers.
    """

    image: int = 224
    classes: int = 1000
    stages: tuple[tuple[int, int], ...] = ((2, 64), (2, 128), (3, 256), (3, 512), (3, 512))
    hidden: int = 4096
    dropout: float = 0.5


class VGG(nn.Module):
    """Images [rows, 3, height, width] to logits [rows, classes]."""

    def __init__(self, config: VGGConfig) -> None:
        super().__init__()
        self.stages = nn.ModuleList()
        channels = 3
        for count, width in config.stages:
            convolutions = [
                nn.Conv2d(channels if i == 0 else width, width, 3, padding=1) for i in range(count)
            ]
            self.stages.append(nn.ModuleList(convolutions))
            channels = width
        side = config.image // 2 ** len(config.stages)
        self.hidden_1 = nn.Linear(channels * side * side, config.hidden)
        self.hidden_2 = nn.Linear(config.hidden, config.hidden)
        self.head = nn.Linear(config.hidden, config.classes)
        self.dropout = nn.Dropout(config.dropout)

    def forward(self, x: Tensor) -> Tensor:
        for stage in self.stages:
            assert isinstance(stage, nn.ModuleList)
            for convolution in stage:
                x = F.relu(convolution(x))
            x = F.max_pool2d(x, 2)
        x = self.dropout(F.relu(self.hidden_1(x.flatten(1))))
        x = self.dropout(F.relu(self.hidden_2(x)))
        result: Tensor = self.head(x)
        return result


def build(name: str, config: VGGConfig, rows: int) -> Model:
    """A VGG with cross-entropy on ``rows`` images."""
    return Model(name, VGG(config), image_loss, image_batch(rows, config.image, config.classes))
