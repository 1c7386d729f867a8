"""Random commands at and around a node's limits, with the golden model's verdict on each command."""

import random

from amaranth.hdl import Shape

from hdl.config import Memories, NodeConfig, SingleRing
from hdl.control.protocol import EventStatus, Operation, command_layout
from hdl.optimizer.rules import Rule

CONFIG = NodeConfig(topology=SingleRing(max_nodes=12), memories=Memories(gradient=320, weight=256, state=96))


def strays(command, config, position):
    """Whether a program command waits for a node that does not exist; ``position`` is (rank, number of nodes)."""
    rank, size = position
    outside = command["unit"] >= size or command["unit"] == rank or command["unit_queue"] >= config.queues
    return command["remote"] and command["after_1"] and (outside or not config.has_signals)


def verdict(command, config, rule, packed, position=None):
    """Golden verdict on a command according to docs/control/commands.md, with an exact division. For a program
    command, ``position`` is the node's rank and the number of nodes."""
    operation, length, size = command["operation"], command["length"], command["size"]
    lacking = [operation for operation, there in (
        (Operation.MASK, config.masking), (Operation.SPARSIFY, config.sparsify),
        (Operation.INFER, config.has("quantization")), (Operation.COMPUTE, config.stub),
        (Operation.LATCH, config.queues > 1), (Operation.LAYERS, config.compute),
        (Operation.SWITCH, config.topology.ports > 1), (Operation.APPLY_LATE, config.has_quorum),
        (Operation.MOVE_OUT, config.compute and config.compute.far), (Operation.PUSH, config.role.streams),
        (Operation.MOVE_IN, config.compute and config.compute.far)) if not there]
    if operation not in list(Operation) or operation in lacking:
        return EventStatus.UNKNOWN_OPERATION, operation
    stray = None
    if position is not None and strays(command, config, position):
        stray = EventStatus.BAD_UNIT, command["unit"] | command["unit_queue"] << 8 | position[1] << 16
    if operation in (Operation.QUIESCE, Operation.LATCH, Operation.SWITCH):
        return stray or (EventStatus.OK, 0)
    planes = {Rule.SGD: 0, Rule.MOMENTUM: 1}.get(rule, 2)
    updates = operation == Operation.FUSED_UPDATE or (operation == Operation.PUSH and config.is_server)
    if updates and (planes > config.memories.planes or rule not in list(Rule)):
        return EventStatus.BAD_RULE, getattr(rule, "value", rule)
    if operation == Operation.LAYERS:
        if length == 0:
            return EventStatus.BAD_LENGTH, 1
        base = command["weight_base"]
        if stray is not None:
            return stray
        return (EventStatus.BAD_BASE, base) if base % 32 or base > config.compute.activations else (EventStatus.OK, 0)
    if stray is not None:
        return stray
    outside = (command["port"] >= config.topology.ports or not 1 <= size <= CONFIG.topology.max_nodes
               or command["rank"] >= size)
    outside |= operation in (Operation.BROADCAST, Operation.PUSH) and command["root"] >= size
    # All groups belong to the root of the ring.
    owned = config.role.root_reduce and command["root_reduce"] and operation in (
        Operation.FUSED_UPDATE, Operation.ALL_REDUCE)
    outside |= bool(owned) and command["root"] >= size
    if operation == Operation.PUSH:
        outside |= (command["root"] == command["rank"]) != config.is_server or size == 1
    on_ring = operation not in (Operation.MASK, Operation.SPARSIFY, Operation.INFER, Operation.COMPUTE,
                                Operation.APPLY_LATE, Operation.MOVE_OUT, Operation.MOVE_IN)
    if on_ring and outside:
        return EventStatus.BAD_RANK, command["rank"] | size << 8 | command["port"] << 16 | command["root"] << 24
    block_offset, stride = command["block_offset"], command["stride"]
    if on_ring and (block_offset >= size or stride == 0):
        return EventStatus.BAD_STRIDE, block_offset | stride << 8
    memories = []
    if operation in (Operation.MOVE_OUT, Operation.MOVE_IN):
        memories = [(command["weight_base"], config.compute.activations, 1),
                    (command["state_base"], config.far_words, 1)]
    elif operation not in (Operation.ALL_GATHER, Operation.BROADCAST, Operation.INFER) and not (
            operation == Operation.PUSH and config.is_server):
        memories.append((command["gradient_base"], CONFIG.memories.gradient, 1))
    if updates or operation in (Operation.ALL_GATHER, Operation.BROADCAST, Operation.SPARSIFY):
        memories.append((command["weight_base"], CONFIG.memories.weight, 1))
    if operation == Operation.FUSED_UPDATE and (planes or config.weights.has_master):
        memories.append((command["state_base"], CONFIG.memories.state, 1 if owned else size))
    if operation == Operation.PUSH and config.is_server and planes:
        memories.append((command["state_base"], CONFIG.memories.state, 1))
    if operation == Operation.COMPUTE:
        memories.append((command["state_base"], CONFIG.memories.gradient, 1))
    for position, (base, capacity, shares) in enumerate(memories):
        of_state = updates and position == len(memories) - 1 and (planes or config.weights.has_master)
        packs = of_state and not config.weights.has_master
        elements = 2 if packed and packs else 1  # number of elements per word
        if base % (32 // elements) or base > capacity:
            return EventStatus.BAD_BASE, base
        groups, room = -(-length // 32), (capacity - base) * elements
        if on_ring and not of_state:  # the groups of gradients and weights may be separated by a stride
            needed, fitting = 32 * ((groups - 1) * stride + 1) if groups else 0, 32 * -(-room // (32 * stride))
        else:
            needed, fitting = -(-groups // shares) * 32 if shares > 1 else length, room * shares
        if needed > room:
            return EventStatus.BAD_LENGTH, fitting
    if operation in (Operation.MASK, Operation.INFER):
        for base in (command["weight_base"], command["state_base"])[:2 if operation == Operation.MASK else 1]:
            if base % 32 or base > CONFIG.memories.weight:
                return EventStatus.BAD_BASE, base
    return EventStatus.OK, 0


def random_command(generator, tag, **options):
    size = generator.choice([1, 2, 3, 4, generator.randrange(1, 13), generator.choice([0, 13, 16, 255])])

    def base(capacity):
        good = generator.randrange(0, capacity // 2, 32)
        return generator.choice([0, 0, good, good, capacity, generator.choice([
            good + generator.randrange(32), good + 16, capacity + 32, 1 << generator.randrange(32)])])

    noisy = random.Random(tag)
    noise = {name: noisy.getrandbits(Shape.cast(shape).width) for name, shape in command_layout().members.items()}
    command = {
        **noise,
        "operation": generator.choice([*Operation, Operation.FUSED_UPDATE, Operation.FUSED_UPDATE, 99, 255]),
        "rank": generator.choice([0, max(0, size - 1), min(size, 255)] + [0] * 5),
        "size": size,
        "port": generator.choice([0] * 20 + [1, 128]),
        "gradient_base": base(CONFIG.memories.gradient),
        "weight_base": base(CONFIG.memories.weight),
        "state_base": base(CONFIG.memories.state),
        "length": generator.choice([
            generator.randrange(0, 65), generator.randrange(0, 330), generator.choice([31, 32, 33, 96, 97, 256, 257]),
            generator.getrandbits(32)]),
        "block_offset": generator.choice([0, 0, max(0, size - 1), max(0, size - 1), min(size, 255)]),
        "stride": generator.choice([1, 1, 1, 1, 2, 2, 3, generator.randrange(256), 0]),
        "root": generator.choice([0, 0, max(0, size - 1), min(size, 255)]),
        "wait": 0, "signal": 0, "tag": tag,
    }
    return {**command, **options}
