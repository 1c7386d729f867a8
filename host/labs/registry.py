"""The labs: experiments on top of the library, each in its own folder. Register new labs here."""

from host.command_group import Entry

__all__ = ["LABS"]

#: Labs, keyed by name, in the order in which `gradring lab` lists them. A lab's module is imported to run it.
LABS = {
    "sweep": Entry("host.labs.sweep.lab", "sweep_lab",
                   "Compare formats by loss, traffic, cycles, LUTs and Fmax.",
                   features=("compute", "programs")),
    "predict": Entry("host.labs.predict.lab", "predict_lab",
                     "Predict cycles and words of a training step on rings of any size.",
                     features=("compute", "programs")),
    "large-rings": Entry("host.labs.large_rings.lab", "large_rings_lab",
                         "Run collectives on rings of more than 16 nodes, and compare bits, words and predicted "
                         "cycles."),
    "estimate": Entry("host.labs.estimate.lab", "estimate_lab",
                      "Estimate training steps of other machines by runs on a throttled one, then build and compare.",
                      features=("compute", "compute_stub", "programs", "throttles")),
    "tiling": Entry("host.labs.tiling.lab", "tiling_lab",
                    "Search for the factors of matrix products, by cycles that a simulated node counts.",
                    features=("compute", "programs")),
    "memory": Entry("host.labs.memory.lab", "memory_lab",
                    "Plan the memory of programs: which activations to keep, to move or to recompute.",
                    features=("compute", "far", "programs")),
    "migrate": Entry("host.labs.migrate.lab", "migrate_lab",
                     "Move a running training job to another ring, and compare it with a run that is not moved.",
                     features=("settable_version",)),
    "streaming": Entry("host.labs.streaming.lab", "streaming_lab",
                   "Train layer by layer from a server on golden nodes, with edits of the model during training.",
                   features=("streaming",)),
    "late": Entry("host.labs.late.lab", "late_lab",
                  "Train with late gradients that are waited for, dropped or applied later, and compare the "
                  "accuracies.",
                  features=("quorum",)),
    "learning": Entry("host.labs.learning.lab", "learning_lab",
                      "Compare test accuracies by schedule or by format, on golden nodes.",
                      features=("quorum",)),
    "centroids": Entry("host.labs.centroids.lab", "centroids_lab",
                       "Train tables of centroids on a ring, and compare their accuracy with dense weights.",
                       features=("codebook_layers", "compute", "programs")),
    "schedules": Entry("host.labs.schedules.lab", "schedules_lab",
                       "Forecast a training step by every schedule.",
                       features=("programs",)),
    "delayed": Entry("host.labs.delayed.lab", "delayed_lab",
                     "Measure passes with weights that lack the latest updates.",
                     features=("compute", "compute_stub", "programs")),
    "slow-link": Entry("host.labs.slow_link.lab", "slow_link_lab",
                       "Measure and model fused updates on a ring with a slow link for each partitioning."),
    "interleaved": Entry("host.labs.interleaved.lab", "interleaved_lab",
                         "Measure fused updates in the interleaved order, and model them in slots.",
                         features=("slots",)),
    "two-jobs": Entry("host.labs.two_jobs.lab", "two_jobs_lab",
                      "Measure the cycles of each of two jobs on a ring while the other one works, stalls or fails.",
                      features=("slots",)),
    "job-speed": Entry("host.labs.job_speed.lab", "job_speed_lab",
                       "Measure the processor time of a job's all-reduces, and of the training of a perceptron."),
}
