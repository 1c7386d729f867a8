"""Two small models that are trained with DDP, from which the recorded gradients of this folder come.

``python -m host.labs.formats.record`` trains them on four ranks and records their gradients. ``torchrun
--nproc-per-node 4 -m host.labs.formats.models text 1024`` trains the text model with a loss scale.
"""

import itertools
import statistics
import sys
from collections.abc import Iterator

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

from host.models.digits import digits
from host.models.text import ALPHABET, topics
from host.pytorch.backend import register

__all__ = ["LAST", "STEPS", "CharacterModel", "main"]

#: Number of steps of each model, and number of the last steps over which the loss is averaged.
STEPS, LAST = 256, 50
_CONTEXT, _WIDTH, _HEADS, _LAYERS, _BATCH = 32, 64, 4, 2, 16

Batches = Iterator[tuple[torch.Tensor, torch.Tensor]]


class Layer(nn.Module):
    """Transformer layer, which adds the outputs of causal attention and of a feed-forward network to its input."""

    def __init__(self) -> None:
        super().__init__()
        self.attention_norm, self.norm = nn.LayerNorm(_WIDTH), nn.LayerNorm(_WIDTH)
        self.qkv, self.projection = nn.Linear(_WIDTH, 3 * _WIDTH, bias=False), nn.Linear(_WIDTH, _WIDTH, bias=False)
        self.network = nn.Sequential(nn.Linear(_WIDTH, 4 * _WIDTH), nn.GELU(), nn.Linear(4 * _WIDTH, _WIDTH))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Compute the output, of shape (sequences, characters, width), as the input."""
        parts = self.qkv(self.attention_norm(x)).chunk(3, -1)
        query, key, value = (part.unflatten(-1, (_HEADS, -1)).transpose(1, 2) for part in parts)
        mixed = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.projection(mixed.transpose(1, 2).flatten(2))
        output: torch.Tensor = x + self.network(self.norm(x))
        return output


class CharacterModel(nn.Module):
    """Character-level GPT of 109,824 parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.characters = nn.Embedding(len(ALPHABET), _WIDTH)
        self.positions = nn.Embedding(_CONTEXT, _WIDTH)
        self.layers = nn.Sequential(*(Layer() for _ in range(_LAYERS)))
        self.norm, self.output = nn.LayerNorm(_WIDTH), nn.Linear(_WIDTH, len(ALPHABET), bias=False)

    def forward(self, characters: torch.Tensor) -> torch.Tensor:
        """Return logits of shape (sequences, alphabet, characters) for integers of shape (sequences, characters)."""
        x = self.characters(characters) + self.positions.weight[:characters.shape[1]]
        logits: torch.Tensor = self.output(self.norm(self.layers(x))).transpose(1, 2)
        return logits


def _text(generator: torch.Generator) -> Batches:
    """Yield batches of characters and of the characters that follow them."""
    whole = torch.cat([torch.from_numpy(piece) for piece in topics(context=1 << 16).train])
    while True:
        starts = torch.randint(len(whole) - _CONTEXT - 1, (_BATCH,), generator=generator)
        rows = torch.stack([whole[start:start + _CONTEXT + 1] for start in starts.tolist()])
        yield rows[:, :-1], rows[:, 1:]


def _digits(generator: torch.Generator) -> Batches:
    """Yield batches of images and labels."""
    data = digits()
    inputs, labels = torch.from_numpy(data.train_x).float(), torch.from_numpy(data.train_y).long()
    while True:
        chosen = torch.randint(len(inputs), (_BATCH,), generator=generator)
        yield inputs[chosen], labels[chosen]


def main(name: str, scale: float = 1.0) -> None:
    """Train the model ``digits``, a perceptron, or ``text``, a character-level GPT, and print the mean loss of the
    last steps. Gradients are computed and summed for the loss times ``scale``."""
    torch.set_num_threads(1)
    register()
    dist.init_process_group("gradring")
    torch.manual_seed(0)
    generator = torch.Generator().manual_seed(1 + dist.get_rank())
    if name == "text":
        model, batches, rate = DistributedDataParallel(CharacterModel()), _text(generator), 2e-3
    else:
        model = DistributedDataParallel(nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10)))
        batches, rate = _digits(generator), 5e-3
    optimizer = torch.optim.AdamW(model.parameters(), lr=rate)
    losses = []
    for inputs, labels in itertools.islice(batches, STEPS):
        optimizer.zero_grad()
        loss = functional.cross_entropy(model(inputs), labels)
        (loss * scale).backward()
        for parameter in model.parameters():
            if parameter.grad is not None:
                parameter.grad /= scale
        optimizer.step()
        losses.append(loss.item())
    mean = torch.tensor(statistics.mean(losses[-LAST:]), dtype=torch.float64)
    dist.all_reduce(mean)
    if dist.get_rank() == 0:
        print(f"{name}: mean loss of the last {LAST} steps {mean.item() / dist.get_world_size():.4f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main(sys.argv[1], *map(float, sys.argv[2:]))
