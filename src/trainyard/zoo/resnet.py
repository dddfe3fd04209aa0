"""ResNet and Wide-ResNet: residual convolutional networks with batch normalisation.

References
----------
He et al., "Deep Residual Learning for Image Recognition", CVPR 2016, table 1.
Zagoruyko and Komodakis, "Wide Residual Networks", BMVC 2016.
Zheng et al., "Alpa: Automating Inter- and Intra-Operator Parallelism", OSDI 2022 (the wide ones over 250M).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch.nn.functional as F
from torch import Tensor, nn

from trainyard.program.model import Model
from trainyard.zoo.common import image_batch, image_loss


@dataclass(frozen=True)
class ResNetConfig:
    """Sizes of a ResNet; the defaults are ResNet-50.

    Attributes
    ----------
    image : height and width, pixels.
    blocks : residual blocks per stage; each stage after the first halves the image and doubles the channels.
    base : channels of the first stage.
    bottleneck : blocks of 1x1, 3x3, 1x1 convolutions with four times wider outputs; else two 3x3.
    width_factor : by how much the inner channels of a bottleneck are wider than in ResNet.
    wide_first : whether the first 1x1 convolution already has the wider inner channels; not so in the very
        large networks of Alpa's evaluation.
    """

    image: int = 224
    classes: int = 1000
    blocks: tuple[int, ...] = (3, 4, 6, 3)
    base: int = 64
    bottleneck: bool = True
    width_factor: int = 1
    wide_first: bool = True


class ConvNorm(nn.Module):
    """A convolution without bias that keeps the size (but for its stride), and batch normalisation."""

    def __init__(self, inputs: int, outputs: int, size: int, stride: int = 1) -> None:
        super().__init__()
        self.convolution = nn.Conv2d(inputs, outputs, size, stride, padding=size // 2, bias=False)
        self.norm = nn.BatchNorm2d(outputs)

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.norm(self.convolution(x))
        return result


class Block(nn.Module):
    """Two or three convolutions, added to the input (projected where the shape changes)."""

    def __init__(self, config: ResNetConfig, inputs: int, channels: int, stride: int) -> None:
        super().__init__()
        inner, outputs = channels * config.width_factor, channels * (4 if config.bottleneck else 1)
        if config.bottleneck:
            first = inner if config.wide_first else channels
            parts = [
                ConvNorm(inputs, first, 1),
                ConvNorm(first, inner, 3, stride),
                ConvNorm(inner, outputs, 1),
            ]
        else:
            parts = [ConvNorm(inputs, inner, 3, stride), ConvNorm(inner, outputs, 3)]
        self.parts = nn.ModuleList(parts)
        self.project = None
        if stride != 1 or inputs != outputs:
            self.project = ConvNorm(inputs, outputs, 1, stride)

    def forward(self, x: Tensor) -> Tensor:
        y = x
        for i, part in enumerate(self.parts):
            y = part(y)
            if i + 1 < len(self.parts):
                y = F.relu(y)
        return F.relu(y + (x if self.project is None else self.project(x)))


class ResNet(nn.Module):
    """Images [rows, 3, height, width] to logits [rows, classes]."""

    def __init__(self, config: ResNetConfig) -> None:
        super().__init__()
        self.stem = ConvNorm(3, config.base, 7, stride=2)
        blocks = []
        inputs = config.base
        for stage, count in enumerate(config.blocks):
            channels = config.base * 2**stage
            for i in range(count):
                blocks.append(Block(config, inputs, channels, 2 if stage > 0 and i == 0 else 1))
                inputs = channels * (4 if config.bottleneck else 1)
        self.blocks = nn.ModuleList(blocks)
        self.head = nn.Linear(inputs, config.classes)

    def forward(self, x: Tensor) -> Tensor:
        x = F.max_pool2d(F.relu(self.stem(x)), 3, stride=2, padding=1)
        for block in self.blocks:
            x = block(x)
        result: Tensor = self.head(x.mean((2, 3)))
        return result


def build(name: str, config: ResNetConfig, rows: int) -> Model:
    """A ResNet with cross-entropy on ``rows`` images."""
    return Model(name, ResNet(config), image_loss, image_batch(rows, config.image, config.classes))
