"""The models of worker/models in PyTorch, with the same names of tensors. What the gradients of
tests/pytorch and the steps of `foreshard bench train` are compared with."""

import torch
import torch.nn.functional as F
from torch import nn


def conv(inputs, outputs, kernel=3, stride=1):
    return nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, bias=False)


class Mlp(nn.Module):
    def __init__(self, shape, classes, widths=(256, 128)):
        super().__init__()
        inputs = shape[0] * shape[1] * shape[2]
        self.hidden = len(widths)
        for i, width in enumerate(widths):
            setattr(self, f"fc{i + 1}", nn.Linear(inputs, width, bias=False))
            setattr(self, f"bn{i + 1}", nn.BatchNorm1d(width))
            inputs = width
        self.output = nn.Linear(inputs, classes)

    def forward(self, x):
        x = x.permute(0, 2, 3, 1).flatten(1)  # pixels in the order height, width, channel
        for i in range(self.hidden):
            x = F.relu(getattr(self, f"bn{i + 1}")(getattr(self, f"fc{i + 1}")(x)))
        return self.output(x)


class Cnn(nn.Module):
    """`as_stored`: fc1 reads the image in the order height, width, channel, as the weights do
    there; otherwise as PyTorch has it, which saves a copy."""

    def __init__(self, shape, classes, widths=(32, 64), units=128, as_stored=False):
        super().__init__()
        height, width, inputs = shape
        self.as_stored = as_stored
        self.pools = []
        for i, outputs in enumerate(widths):
            setattr(self, f"conv{i + 1}", conv(inputs, outputs))
            setattr(self, f"bn{i + 1}", nn.BatchNorm2d(outputs))
            self.pools.append(height >= 4 and width >= 4)
            if self.pools[-1]:
                height, width = height // 2, width // 2
            inputs = outputs
        self.fc1 = nn.Linear(inputs * height * width, units, bias=False)
        setattr(self, f"bn{len(widths) + 1}", nn.BatchNorm1d(units))
        self.output = nn.Linear(units, classes)

    def forward(self, x):
        for i, pooled in enumerate(self.pools):
            x = getattr(self, f"conv{i + 1}")(x)
            if pooled:
                x = F.max_pool2d(x, 2)
            x = F.relu(getattr(self, f"bn{i + 1}")(x))
        if self.as_stored:
            x = x.permute(0, 2, 3, 1)
        x = self.fc1(x.flatten(1))
        return self.output(F.relu(getattr(self, f"bn{len(self.pools) + 1}")(x)))


class PaddedShortcut(nn.Module):
    """Every stride-th row and column, zeros for the channels that are missing."""

    def __init__(self, inputs, outputs, stride):
        super().__init__()
        self.stride, self.before = stride, (outputs - inputs) // 2
        self.behind = outputs - inputs - self.before

    def forward(self, x):
        x = x[:, :, :: self.stride, :: self.stride]
        return F.pad(x, (0, 0, 0, 0, self.before, self.behind))


class BasicBlock(nn.Module):
    expansion = 1

    def __init__(self, inputs, channels, stride, padded_shortcut=False):
        super().__init__()
        self.conv1, self.bn1 = conv(inputs, channels, 3, stride), nn.BatchNorm2d(channels)
        self.conv2, self.bn2 = conv(channels, channels), nn.BatchNorm2d(channels)
        if stride == 1 and inputs == channels:
            self.downsample = nn.Identity()
        elif padded_shortcut:
            self.downsample = PaddedShortcut(inputs, channels, stride)
        else:
            self.downsample = nn.Sequential(conv(inputs, channels, 1, stride),
                                            nn.BatchNorm2d(channels))

    def forward(self, x):
        out = F.relu(self.bn1(self.conv1(x)))
        return F.relu(self.bn2(self.conv2(out)) + self.downsample(x))


class Bottleneck(nn.Module):
    expansion = 4

    def __init__(self, inputs, channels, stride):
        super().__init__()
        outputs = channels * self.expansion
        self.conv1, self.bn1 = conv(inputs, channels, 1), nn.BatchNorm2d(channels)
        self.conv2, self.bn2 = conv(channels, channels, 3, stride), nn.BatchNorm2d(channels)
        self.conv3, self.bn3 = conv(channels, outputs, 1), nn.BatchNorm2d(outputs)
        self.downsample = nn.Identity()
        if stride != 1 or inputs != outputs:
            self.downsample = nn.Sequential(conv(inputs, outputs, 1, stride),
                                            nn.BatchNorm2d(outputs))

    def forward(self, x):
        out = F.relu(self.bn1(self.conv1(x)))
        out = F.relu(self.bn2(self.conv2(out)))
        return F.relu(self.bn3(self.conv3(out)) + self.downsample(x))


class PreActivationBlock(nn.Module):
    expansion = 1

    def __init__(self, inputs, channels, stride):
        super().__init__()
        self.bn1, self.conv1 = nn.BatchNorm2d(inputs), conv(inputs, channels, 3, stride)
        self.bn2, self.conv2 = nn.BatchNorm2d(channels), conv(channels, channels)
        self.downsample = None
        if stride != 1 or inputs != channels:
            self.downsample = nn.Sequential(conv(inputs, channels, 1, stride))

    def forward(self, x):
        activated = F.relu(self.bn1(x))
        out = self.conv2(F.relu(self.bn2(self.conv1(activated))))
        return out + (x if self.downsample is None else self.downsample(activated))


def stages(module, block, inputs, widths, depths, **options):
    """Adds layer1, layer2, ... and returns the channels of the last."""
    for i, (width, depth) in enumerate(zip(widths, depths)):
        blocks = []
        for j in range(depth):
            blocks.append(block(inputs, width, 2 if i > 0 and j == 0 else 1, **options))
            inputs = width * block.expansion
        setattr(module, f"layer{i + 1}", nn.Sequential(*blocks))
    return inputs


class ResNet(nn.Module):
    def __init__(self, shape, classes, block, widths, depths, large_images=False, **options):
        super().__init__()
        first = 64 if widths[0] == 64 else 16
        self.large_images, self.depth = large_images, len(widths)
        self.conv1 = conv(shape[2], first, 7, 2) if large_images else conv(shape[2], first)
        self.bn1 = nn.BatchNorm2d(first)
        self.fc = nn.Linear(stages(self, block, first, widths, depths, **options), classes)

    def forward(self, x):
        x = F.relu(self.bn1(self.conv1(x)))
        if self.large_images:
            x = F.max_pool2d(x, 3, 2, 1)
        for i in range(self.depth):
            x = getattr(self, f"layer{i + 1}")(x)
        return self.fc(F.adaptive_avg_pool2d(x, 1).flatten(1))


class WideResNet(nn.Module):
    def __init__(self, shape, classes, widths, depths):
        super().__init__()
        self.conv1 = conv(shape[2], 16)
        outputs = stages(self, PreActivationBlock, 16, widths, depths)
        self.bn1 = nn.BatchNorm2d(outputs)
        self.fc = nn.Linear(outputs, classes)

    def forward(self, x):
        x = self.layer3(self.layer2(self.layer1(self.conv1(x))))
        return self.fc(F.adaptive_avg_pool2d(F.relu(self.bn1(x)), 1).flatten(1))


def make_model(name, shape, classes, as_stored=False):
    """`shape`: height, width, channels."""
    if name == "mlp":
        return Mlp(shape, classes)
    if name == "cnn":
        return Cnn(shape, classes, as_stored=as_stored)
    if name == "resnet18":
        return ResNet(shape, classes, BasicBlock, (64, 128, 256, 512), (2, 2, 2, 2))
    if name == "resnet20":
        return ResNet(shape, classes, BasicBlock, (16, 32, 64), (3, 3, 3), padded_shortcut=True)
    if name == "resnet50":
        return ResNet(shape, classes, Bottleneck, (64, 128, 256, 512), (3, 4, 6, 3),
                      large_images=True)
    if name == "wrn16_4":
        return WideResNet(shape, classes, (64, 128, 256), (2, 2, 2))
    raise ValueError(f"there is no model {name}")
