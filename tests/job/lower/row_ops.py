"""PyTorch's functions as a model uses them on each row: [ROWS, ..] to [ROWS, ..], or to a loss."""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

ROWS, WIDTH = 4, 6

Batch = dict[str, Tensor]
Use = Callable[[Tensor, Batch], Tensor]


def batch() -> Batch:
    g = torch.Generator().manual_seed(0)
    shapes = {"x": (WIDTH,), "matrix": (WIDTH, WIDTH), "image": (2, WIDTH, WIDTH), "signal": (10, WIDTH)}
    drawn = {name: torch.randn(ROWS, *shape, generator=g) for name, shape in shapes.items()}
    return {**drawn, "index": torch.randint(0, WIDTH, (ROWS, WIDTH), generator=g)}


def positive(x: Tensor) -> Tensor:
    """A positive definite matrix per row."""
    return x @ x.mT + torch.eye(WIDTH)


def signs(b: Batch) -> Tensor:
    return (b["index"] > 3).float() * 2 - 1


def nan(x: Tensor, b: Batch) -> Tensor:
    return torch.where(b["index"] > 4, torch.nan, x)


def grid(b: Batch) -> Tensor:
    return b["image"].movedim(1, -1).tanh()


VECTORS: dict[str, Use] = {
    "nansum": lambda x, b: nan(x, b).nansum(1),
    "nanmean": lambda x, b: nan(x, b).nanmean(1),
    "nanmedian": lambda x, b: nan(x, b).nanmedian(1).values,
    "mode": lambda x, b: x.mode(1).values,
    "aminmax": lambda x, b: torch.stack(x.aminmax(dim=1)).T,
    "std_mean": lambda x, b: torch.stack(torch.std_mean(x, 1)).T,
    "searchsorted": lambda x, b: x * torch.searchsorted(b["x"].sort(1).values, x.detach()),
    "isin": lambda x, b: x * torch.isin(b["index"], torch.tensor([1, 2])),
    "index_fill": lambda x, b: x.index_fill(1, torch.tensor([0, 2]), 0.5),
    "renorm": lambda x, b: x.renorm(2, 0, 0.5),
    "bilinear": lambda x, b: F.bilinear(x, b["x"], torch.linspace(-1, 1, 72).view(2, 6, 6)),
    "affine_grid": lambda x, b: F.affine_grid(x.view(-1, 2, 3), (ROWS, 1, 3, 2), align_corners=False),
    "cross": lambda x, b: torch.linalg.cross(x[:, :3], b["x"][:, 3:]),
    "repeat": lambda x, b: x.repeat(2, 1).unflatten(0, (2, -1)).transpose(0, 1),
    "polar": lambda x, b: torch.view_as_real(torch.polar(x.exp(), x)),
    "hfft": lambda x, b: torch.fft.hfft(torch.complex(x, x * x)),
    "ifft of a complex multiple": lambda x, b: torch.view_as_real(
        torch.fft.ifft(torch.fft.fft(x) * (1 + 2j))
    ),
    "rrelu": lambda x, b: F.rrelu(x, training=False),
}
MATRICES: dict[str, Use] = {
    "rot90": lambda x, b: x.rot90(1, (1, 2)),
    "slogdet": lambda x, b: torch.linalg.slogdet(positive(x))[1],
    "cholesky_solve": lambda x, b: torch.cholesky_solve(b["matrix"], torch.linalg.cholesky(positive(x))),
    "cholesky_inverse": lambda x, b: torch.cholesky_inverse(torch.linalg.cholesky(positive(x))),
    "solve for a vector": lambda x, b: torch.linalg.solve(positive(x), b["x"]),
    "solve for a vector of each of several matrices": lambda x, b: torch.linalg.solve(
        positive(x)[:, None].expand(-1, 5, -1, -1), b["x"][:, None].expand(-1, 5, -1)
    ),
    "solve_triangular": lambda x, b: torch.linalg.solve_triangular(positive(x), b["matrix"], upper=True),
    "lu": lambda x, b: torch.linalg.lu(positive(x))[2],
    "lu_solve": lambda x, b: torch.linalg.lu_solve(*torch.linalg.lu_factor(positive(x)), b["matrix"]),
    "qr": lambda x, b: torch.linalg.qr(positive(x))[1],
    "svd": lambda x, b: torch.linalg.svd(x, full_matrices=False)[1],
    "pinv": lambda x, b: torch.linalg.pinv(positive(x)),
    "eigh": lambda x, b: torch.linalg.eigh(positive(x))[0],
    "eig": lambda x, b: torch.view_as_real(torch.linalg.eig(positive(x) / 10)[0]),
    "matrix_exp": lambda x, b: torch.linalg.matrix_exp(x / 10),
    "householder_product": lambda x, b: torch.linalg.householder_product(x / 10, b["x"] / 10),
}
IMAGES: dict[str, Use] = {
    "grid_sample": lambda x, b: F.grid_sample(x, grid(b), align_corners=False),
    "grid_sample of volumes": lambda x, b: F.grid_sample(
        x[:, None], F.pad(grid(b), (0, 1))[:, None], align_corners=False
    ),
    "max_unpool2d": lambda x, b: F.max_unpool2d(*F.max_pool2d(x, 2, return_indices=True), 2),
    "antialiased": lambda x, b: F.interpolate(x, size=(4, 4), mode="bilinear", antialias=True),
    "attention with one mask": lambda x, b: F.scaled_dot_product_attention(
        x, x, b["image"], attn_mask=torch.ones(6, 6).tril().bool()
    ),
}
SIGNALS: dict[str, Use] = {
    "stft": lambda x, b: torch.view_as_real(
        torch.stft(x, 16, 4, window=torch.hann_window(16), return_complex=True)
    ),
    "Tensor.stft": lambda x, b: torch.view_as_real(
        x.stft(16, 8, window=torch.ones(16), center=False, return_complex=True)
    ),
    "as_strided": lambda x, b: x.as_strided((ROWS, 10, 12), (60, 5, 1)),
    "as_strided, rows behind": lambda x, b: x.as_strided((10, ROWS, 6), (5, 60, 2), 1).transpose(0, 1),
}
LOSSES: dict[str, Use] = {
    "multi_margin_loss": lambda x, b: F.multi_margin_loss(x, b["index"][:, 0], weight=torch.arange(1.0, 7)),
    "multilabel_margin_loss": lambda x, b: F.multilabel_margin_loss(x, b["index"]),
    "sum of multi_margin_loss": lambda x, b: F.multi_margin_loss(x, b["index"][:, 0], p=2, reduction="sum"),
}
BAGS: dict[str, Callable[[nn.Module, Batch], Tensor]] = {
    "sum": lambda m, b: F.embedding_bag(b["index"], m.weight, mode="sum"),
    "mean": lambda m, b: F.embedding_bag(b["index"], m.weight),
    "max": lambda m, b: F.embedding_bag(b["index"], m.weight, mode="max"),
    "padded mean": lambda m, b: F.embedding_bag(b["index"], m.weight, padding_idx=1),
    "padded max": lambda m, b: F.embedding_bag(b["index"], m.weight, mode="max", padding_idx=-5),
    "learned weights": lambda m, b: F.embedding_bag(
        b["index"], m.weight, mode="sum", per_sample_weights=m(b["x"]), padding_idx=1
    ),
}


def by_source() -> dict[str, Callable[[nn.Module, Batch], Tensor]]:
    """Every use on what a layer makes of an entry of the batch."""

    def layered(entry: str, use: Use) -> Callable[[nn.Module, Batch], Tensor]:
        return lambda m, b: use(m(b[entry]).flatten(1) if entry == "signal" else m(b[entry]), b)

    tables = {"x": VECTORS | LOSSES, "matrix": MATRICES, "image": IMAGES, "signal": SIGNALS}
    found = {name: layered(entry, use) for entry, table in tables.items() for name, use in table.items()}
    return found | {f"embedding_bag, {name}": use for name, use in BAGS.items()}
