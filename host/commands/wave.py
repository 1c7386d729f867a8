# amaranth: UnusedElaboratable=no
"""The command `gradring wave`."""

from pathlib import Path
from typing import Annotated

import typer

from hdl.config import Memories, NodeConfig
from hdl.node import Node
from host.console import Nodes, Progress, make_console, shown
from host.driver.memory import Allocation
from host.options import command
from host.output import prepare
from host.training.optimizers import SGD
from host.transports.session import open_session
from sim.verilated import toolchain
from sim.verilated.verilog import convert

__all__ = ["wave_command"]


def name_values(config: NodeConfig, wave: Path, *, nodes: int) -> Path:
    """Write a save file next to a waveform, so that states and enumeration members are shown by name."""
    from sim.verilated.names import encodings, write_gtkw

    node, identity = Node(config), f"Node({config})"
    design = convert(node, name="node", identity=identity)
    save = wave.with_suffix(".gtkw")
    write_gtkw(save, wave, encodings(node, design, identity=identity), nodes=nodes)
    return save


@command
def wave_command(
    nodes: Nodes = 2,
    length: Annotated[int, typer.Option(help="Number of elements to reduce.")] = 1024,
    output: Annotated[Path, typer.Option(help="Waveform file. [default: build/wave/ring.fst]", show_default=False)
                      ] = toolchain.BUILD / "wave" / "ring.fst",
) -> None:
    """Write a waveform of one fused update."""
    import numpy as np

    console = make_console()
    if length < 1:
        raise ValueError(f"Vector must have at least 1 element, not {length:,}")
    allocation = Allocation(length=length)
    config = NodeConfig(memories=Memories(planes=allocation.planes))
    config.check_ring(nodes)
    allocation.check(config, nodes=nodes)
    prepare(output.parent, files=(output.name,))
    with Progress(console) as progress:
        with open_session(config, nodes=nodes, wave=output, announce=progress.stage) as session:
            progress.stage("run")
            ring = session.ring
            ring.memory.require(allocation)
            generator = np.random.default_rng(0)
            gradients = generator.standard_normal((nodes, length)).astype(np.float32)
            gradients[generator.random((nodes, length)) < 0.5] = 0
            ring.memory.write_weights(np.zeros(length, dtype=np.float32))
            ring.memory.write_gradients(list(gradients))
            ring.settings.write(SGD(learning_rate=0.1).settings(1, gradient_scale=1 / nodes))
            outcome = ring.collectives.fused_update(length)
            cycles = session.cycle
            progress.stage("names")
            names = name_values(config, output, nodes=nodes)
    console.print(f"{shown(output)}: {cycles:,} cycles, of which the last {outcome.cycles:,} are a fused update of "
                  f"{length:,} elements on {nodes} nodes", soft_wrap=True)
    console.print(f"open it with GTKWave, states and operations by name: gtkwave {shown(names)}; or with Surfer",
                  soft_wrap=True)
