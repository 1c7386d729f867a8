"""Registry of commands; new commands must be added here."""

from host.command_group import CommandGroup, Entry

__all__ = ["COMMANDS", "Commands"]

#: Commands keyed by name, in the order shown by the help.
COMMANDS = {
    "train": Entry("host.commands.train", "train_command",
                   "Train on a ring, and compare every node with the golden model after every step."),
    "bench": Entry("host.commands.bench", "bench_command",
                   "Measure cycles of units and of the ring against their bounds, and the speed of simulation.",
                   features=("codebook", "grid", "quantization")),
    "lab": Entry("host.commands.lab", "lab_app", "Run an experiment; without its name, list all experiments."),
    "quantize": Entry("host.features.quantization.command", "quantize_command",
                      "Quantise a trained perceptron by every scheme, and measure it on the nodes.",
                      features=("quantization",)),
    "info": Entry("host.commands.info", "info_command",
                  "Show a node's configuration, its registers, and tool versions."),
    "wave": Entry("host.commands.wave", "wave_command",
                  "Write a waveform of one fused update."),
    "packets": Entry("host.commands.packets", "packets_command",
                     "Show the packets in a waveform written by gradring wave, and write them to another waveform."),
    "examples": Entry("host.commands.examples", "examples_command",
                      "Copy the examples to a folder, to run and change them."),
    # Arguments after the script are passed to the script.
    "launch": Entry("host.commands.launch", "launch_command",
                    "Run a PyTorch script, one process for each node, with its sums over a simulated "
                    "ring.", {"allow_interspersed_args": False}),
    "cache": Entry("host.commands.cache", "cache_app",
                   "Show the build products that are kept: kinds, entries, size and last use."),
}


class Commands(CommandGroup):
    """Group of :data:`COMMANDS`."""

    entries = COMMANDS
