"""Rings in software of 1 to 4 ranks over gloo, compared with the golden model; rank 0 prints the results."""

import json
import random
import sys

import numpy as np
import torch
import torch.distributed as dist

from hdl.compression.registry import GRADIENT_CODECS, WEIGHT_CODECS
from host.pytorch.software import ring as software
from host.pytorch.software.job import SoftwareJob
from host.pytorch.software.links import Links
from host.pytorch.software.shared_memory import SharedMemory
from host.training import optimizers
from host.training.reference import golden_settings
from sim.golden import ring as golden
from sim.golden.codecs import CODECS
from tests.host.pytorch.scripts.shards import possible, ring_order, shards_of
from tests.sim.arithmetic.samples import scaled

SIZES = (1, 2, 3, 4)
#: Elements of a packet, so that blocks have several.
CHUNK = 256
LENGTHS = (0, 1, 31, 32, 33, 65, 127, 128, 129, 1500, 4111)
OPTIMIZERS = (optimizers.SGD(0.1), optimizers.SGD(0.05, momentum=0.9, nesterov=True, clip=0.5),
              optimizers.Adam(1e-2), optimizers.AdamW(1e-2, weight_decay=0.1))


def vectors(ranks, length, seed):
    """Gradients of each rank, with special values."""
    values = np.stack([scaled(length, seed + rank, -8, 8) for rank in range(ranks)])
    for rank, bits in enumerate((0x7F80_0000, 0x8000_0000, 0xFF80_0001, 1)[:ranks]):
        if length > 40 + rank:
            values[rank, 40 + rank] = bits
    return values


def sums(links, draw):
    """Sums, residuals and blocks of collectives with every codec; returns the number of comparisons.

    The first two codecs have every length, the others two of them.
    """
    rank, ranks, count = links.rank, links.size, 0
    for index, name in enumerate(possible(GRADIENT_CODECS)):
        ring = software.RankRing(links, gradients=name)
        for length in LENGTHS if index < 2 else draw.sample(LENGTHS, 2):
            begin = draw.choice((0, 32 * (ranks + 1)))
            gradients = vectors(ranks, length, length)
            expected = np.zeros_like(gradients)
            residuals, offset = np.zeros(length, np.uint32), begin // 32 % ranks
            options = {"gradient_codec": CODECS[name], "residuals": expected, "block_offset": offset}
            for _ in range(2):
                total, _ = golden.all_reduce(gradients, **options)
                vector = gradients[rank].copy()
                ring.all_reduce(vector, residuals=residuals, begin=begin)
                assert vector.tobytes() == total.tobytes(), (name, length, begin)
                scattered, _ = golden.reduce_scatter(gradients, **options)
                vector = gradients[rank].copy()
                ring.reduce_scatter(vector, residuals=residuals, begin=begin)
                for part in ring.parts(length, rank, offset):
                    assert vector[part.indices].tobytes() == scattered[rank, part.indices].tobytes(), (name, length)
                assert residuals.tobytes() == expected[rank].tobytes(), (name, length, begin)
                count += 2
    return count


def shards(links, draw):
    """Collectives of shards with every codec; returns the number of comparisons."""
    rank, ranks, count = links.rank, links.size, 0
    for name in possible(GRADIENT_CODECS):
        ring = software.RankRing(links, gradients=name)
        for length in draw.sample((0, 1, 31, 32, 33, 65, 129, 257, 700), 1 + (ranks == 3)):
            gradients = vectors(ranks, ranks * length, length).reshape(ranks, ranks, length)
            vector, residuals = gradients[rank].reshape(-1).copy(), np.zeros(ranks * length, np.uint32)
            values = ring_order(gradients)
            expected = np.zeros_like(values)
            for _ in range(2):
                total, _ = golden.reduce_scatter(values, gradient_codec=CODECS[name], residuals=expected)
                result = np.empty(length, np.uint32)
                ring.reduce_shards(vector, result, residuals=residuals)
                assert result.tobytes() == shards_of(total, length)[rank, rank].tobytes(), (name, length)
                assert residuals.tobytes() == shards_of(expected, length)[rank].tobytes(), (name, length)
                assert vector.tobytes() == gradients[rank].tobytes()
                count += 1
    for name in possible(WEIGHT_CODECS):
        length = draw.choice((1, 32, 65, 700))
        weights = vectors(ranks, ranks * length, length).reshape(ranks, ranks, length)
        total, _ = golden.all_gather(ring_order(weights), weight_codec=CODECS[name])
        vector = weights[rank].reshape(-1).copy()
        software.RankRing(links, weights=name).gather_shards(vector)
        assert vector.tobytes() == shards_of(np.stack([total] * ranks), length)[rank].tobytes(), (name, length)
        count += 1
    return count


def updates(links, draw):
    """Steps of jobs with every codec and optimizer; returns the number of comparisons."""
    rank, ranks, count = links.rank, links.size, 0
    for index, (gradients, weights) in enumerate(pairs(draw) if ranks == 3 else pairs(draw)[:2]):
        optimizer, packed = OPTIMIZERS[(index + ranks) % len(OPTIMIZERS)], draw.random() < 0.5
        ring = software.RankRing(links, gradients=gradients, weights=weights)
        job = SoftwareJob(ring, [1500], optimizers=[optimizer], packed_state=packed)
        start = scaled(1500, 5, -3, 3)
        job.load(start.view(np.float32), fresh=True)
        master, state = start, [np.zeros_like(start)] * 2
        residuals = np.zeros((ranks, 1500), np.uint32)
        for number in range(1, 4):
            values = np.stack([scaled(1500, 10 * number + each, -8, 2) for each in range(ranks)])
            update = golden.fused_update(
                values, master, state, golden_settings(optimizer.settings(number, gradient_scale=1 / ranks)),
                weight_codec=CODECS[weights], gradient_codec=CODECS[gradients], residuals=residuals,
                packed_state=packed)
            master, state = update.master, update.state
            result = job.step(values[rank].copy().view(np.float32), [optimizer])
            assert result.view(np.uint32).tobytes() == update.weights.tobytes(), (gradients, weights, optimizer)
            if number == 2:
                other = SoftwareJob(ring, [1500], optimizers=[optimizer], packed_state=packed)
                other.restore(job.state())
                job = other
            count += 1
        contents = job.state()["contents"]
        for index in range(optimizer.planes):
            assert contents[f"state_{index}"].view(np.uint32).tobytes() == state[index].tobytes()
        if job.residuals is not None:
            assert contents["residual"].view(np.uint32).tobytes() == residuals.tobytes()
    return count


def pairs(draw):
    """Every codec of gradients with one of weights, and every codec of weights with one of gradients."""
    gradients, weights = possible(GRADIENT_CODECS), possible(WEIGHT_CODECS)
    return [(name, draw.choice(weights)) for name in gradients] + [(draw.choice(gradients), name) for name in weights]


def main():
    software.CHUNK, software.SLICE = CHUNK, 2
    groups = {size: dist.new_group(list(range(size)), backend="gloo") for size in SIZES}
    rank, result = dist.get_rank(), {"sums": 0, "shards": 0, "updates": 0}
    opening = SharedMemory.open
    for size, group in groups.items():
        for memory in ("none", "shared", "of some"):
            if rank < size:
                draw = random.Random(f"{size} {memory}")  # equal on all ranks
                # Ranks of odd numbers cannot read the memory of the previous rank.
                SharedMemory.open = (lambda address: None) if memory == "of some" and rank % 2 else opening
                links = Links(group._get_backend(torch.device("cpu")), rank, size, shared=memory != "none")
                result["sums"] += sums(links, draw)
                result["shards"] += shards(links, draw)
                result["updates"] += updates(links, draw)
                result["equal"] = [links.equal("one text"), links.equal(f"text of rank {rank % 2}")]
                result["texts"] = links.texts("a" * rank)
    if rank == 0:
        print(json.dumps(result))


if __name__ == "__main__":
    torch.set_num_threads(1)
    _, number, store = sys.argv
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=int(number), world_size=4)
    main()
    dist.barrier()
    dist.destroy_process_group()
