# Every target sets up the local virtual environment it needs; all work is done by Python.
# Options are given as variables: make sim NODES=8 EPOCHS=3, make synth UNIT=floating.add SEEDS=3.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP_INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt

# $(call option,NAME,--flag): the flag with the variable's value, where the variable is set.
option = $(if $($(1)),$(2) $($(1)))

.PHONY: help setup sim sweep predict predict-points tiling centroids memory relay migrate migrate-failures estimate slow-link quantize test pairs random-programs hostile partition faults launch-faults damaged-files wrong-commands slow-ranks torch-scripts late mutate check bench large-rings messages two-jobs job-speed \
  synth program synth-optimizer verilog registers wave docs packets clean

help:
	@echo "make sim    train on a simulated ring: WORKLOAD=digits, a classifier, or text, a character model (NODES="
	@echo "            EPOCHS= STEPS= SEED= THREADS= PROCESSES=, HIDDEN=64,32 or 32x9 for nine of 32, BATCH=,"
	@echo "            OPTIMIZER=sgd, momentum, nesterov, adam or adamw, LEARNING_RATE="
	@echo "            WEIGHT_DECAY= CLIP= MOMENTS=fp32 or bf16, DENSITY=0.1 to send the largest alone, COMPARE=1,"
	@echo "            WEIGHTS=mx9 and others to send new weights through a codec, GRADIENTS=mx9 and others gradients,"
	@echo "            COMPUTE=node for nodes that differentiate, each its share of a batch, digits or text, MACS=16, and for"
	@echo "            digits COMPUTE_FORMAT=bf16, TILING=searched for factors of products that are searched on a node,"
	@echo "            OVERLAP=none, strict, layers, chunks:2, search or all to compute and communicate by a program, stale:2 for"
	@echo "            first layers whose weights are an update behind,"
	@echo "            CHECKPOINT=5 for a checkpoint every fifth step, RESUME=1 to go on from the last one,"
	@echo "            TENSORBOARD=folder for events of every step,"
	@echo "            FAULTS=1e-4 for links that are damaged in a part of all cycles and repeat words, FAULT_SEED=,"
	@echo "            SLOW_LINK=2:0.5 for a link of half the rate from rank 2: groups are dealt so that it costs least,"
	@echo "            LINKS=slots for nodes that send in slots of a common TIME in place of on credit, with TRANSPORT=messages"
	@echo "            for a host at node 0 alone, which reaches the others by messages between slots,"
	@echo "            ACTIVATIONS=6144 FAR=1/4 MEMORY=mixed, swap, recompute or keep for text on nodes whose saved maps do"
	@echo "            not all fit and are moved to a far memory or made again,"
	@echo "            TOPOLOGY=2x4 for a grid of nodes with two ports, DISABLE=card1@40,node5@120,link5:0@60 ENABLE=card1@80"
	@echo "            for parts that leave and come after so many steps, SHAPE=flat or grid for its rings,"
	@echo "            STRAGGLER=3:4.5 QUORUM=3 LATE=fold, wait or drop LAMBDA= DEADLINE= SKEW=0.9 CYCLES= SWITCH_OUT=1 for slow workers"
	@echo "            and rounds that do not wait for it,"
	@echo "            RELAY=1 HIDDEN=64x16 MICROBATCH=8 SETS=30 for layers that come from a server one after the other, with"
	@echo "            MICROBATCHES= of a set, FAR=4 words per cycle of its far memory, WORKER_FAR=1 of theirs, PLATEAU=1 to add a layer on the way,"
	@echo "            RELAY=resident to have all layers stay on the workers, with the same bits,"
	@echo "            FORMATS=mx9 or one for each layer for its weights on the link, UNDERFLOW=1 to widen mx4 by counts,"
	@echo "            CHECKPOINT=5 RESUME=1 for its sets as for steps,"
	@echo "            HOST_PORT=1 to simulate every word that passes the host ports, PLANES=2 for nodes with more state,"
	@echo "            ARITHMETIC=native to simulate floating-point units by this processor's own, with the same bits,"
	@echo "            TRANSPORT=board for a simulated board behind a pseudo-terminal, DEVICE=/dev/ttyUSB0 BOARD=ulx3s-85f"
	@echo "            for a real one)"
	@echo "make sweep  what each format does to loss, traffic, cycles, LUTs and Fmax (SWEEP=full for runs of full length,"
	@echo "            FORMATS=mx9,mx6 NODES=2,4,8 WORKLOAD= EPOCHS= STEPS= JOBS=, COMPUTE_FORMATS=fp32,mx9 for formats of"
	@echo "            products on nodes that compute, SCHEDULER=tcp://host:8786 for the workers of a Dask cluster,"
	@echo "            SYNTH=no to place nothing); it goes on where an earlier one has ended"
	@echo "make tiling  searches for the factors of matrix products, by cycles that a node counts (FULL=1 for all states of"
	@echo "            64 x 64 x 64, METHODS=G-BFS,N-A2C SEEDS= ARITHMETIC=gateware)"
	@echo "make predict  time of a step on rings that nobody simulates, by a model (NODES=1000 LATENCY= MODEL=25M FORMATS= EXAMPLES="
	@echo "            MACS= OVERLAP= CHAKRA=file for ASTRA-sim, VALIDATE=1 for its errors against simulated rings)"
	@echo "make predict-points  those simulated rings, measured again: up to 15 minutes"
	@echo "make memory  plans of the activation memory, and what to keep, to move to far memory and to compute again: modelled,"
	@echo "            and measured on a simulated node; it goes on where an earlier run has ended"
	@echo "make relay  layers from a server on golden nodes: what edits of the model gain while it trains, and modelled stalls"
	@echo "            (SEEDS=10 EPOCHS= REPLAY=build/relay/edits.json for a run of those edits without the assessor; NODES=1 for"
	@echo "            the first seed of three cases on simulated nodes as well)"
	@echo "make migrate  move a training job to another ring while it runs (NODES=4 STEPS=24 AFTER=11 OPTIMIZER=adam HIDDEN="
	@echo "            WEIGHTS= GRADIENTS= LATENCY=40 INTERVAL=2 THREADS=2 TRANSPORT=board SOURCE=board BOARD=ulx3s-85f"
	@echo "            DEVICE=/dev/ttyUSB0 with TRANSPORT=serial KEY= OWNER_KEY= SEED=)"
	@echo "make migrate-failures  moves between processes, each killed before each step, and each message lost: up to 3 minutes"
	@echo "make estimate  training steps on other machines, estimated by one that is throttled, beside what they really take"
	@echo "            (TARGETS=\"16 MACs;link 1/2\" LENGTHS=\"256;1024\" EXAMPLES=8 RATIOS=no); up to 5 minutes for each machine's first build"
	@echo "make slow-link  updates on rings with a slow link, groups dealt in turn and to one node: measured and modelled"
	@echo "make centroids  trains tables of centroids on nodes that compute with indices, beside dense weights, and counts"
	@echo "            multiplications (SEEDS=5 CENTROIDS=16 NODES= EPOCHS= LEARNING_RATE= COMPUTE=host)"
	@echo "make quantize  a trained classifier in integers, by every scheme, on the nodes' integer datapath (WEIGHTS=file"
	@echo "            TRAIN=1 NODES= SEED= THREADS= CALIBRATION=percentile PERCENTILE=, and of the model that is written"
	@echo "            SCHEME= BITS= ROUNDING= EXTREMA= PER_OUTPUT=1 ONNX=1)"
	@echo "make test   run every test (TESTS=path to choose, WORKERS= processes)"
	@echo "make pairs  every operation queued behind every other, on rings of 1 to 16 nodes (PAIRS=20000 NODES=1,2,3 SEED= JOBS=)"
	@echo "make partition  rings of whole nodes in 2 and 4 processes as in one (NODES=4,8,16 LATENCY=16,64,256 PROCESSES=2,4)"
	@echo "make random-programs  random programs of two queues with random stalls, on rings of 1 to 4 nodes (PROGRAMS=2100 SEED= JOBS=,"
	@echo "            REMOTE=1 for commands that wait for other nodes, on links with FAULTS=1e-3)"
	@echo "make hostile  a hostile tenant beside another one, on twins of nodes that must answer alike (REQUESTS=100000 SEED= JOBS=)"
	@echo "make late   train with a straggler whose late gradients are folded in, waited for or dropped; compute: modelled"
	@echo "make launch-faults  stopped and killed ranks, other bytes and half messages: does each run end? (FAULTS=20 RANKS=2,4 SEED=)"
	@echo "make torch-scripts  random scripts of PyTorch on the ring, against gloo (SCRIPTS=300 RANKS=2,4 GRADIENTS=raw,mx9 SEED=)"
	@echo "make slow-ranks  ranks of a PyTorch script that are late on purpose: are they named? (CASES=100 RANKS=4 SLOW=0.5 SEED=)"
	@echo "make faults  wrong bits, lost and doubled words and cuts on a link that repeats words (FAULTS=1000000 SEED= JOBS=)"
	@echo "make damaged-files  damaged files of each kind that commands read: refused in a line, within 1 GB (FILES=600 SEED=)"
	@echo "make wrong-commands  wrong command lines of all commands: refused in a line, within 10 s of work (CASES=200 SEED=,"
	@echo "            SIGNALS=1 for signals to all commands as well)"
	@echo "make mutate  small mistakes in hdl/, one at a time, against the tests of their files (FILES=hdl/ring,... MUTANTS=30"
	@echo "            SEED= BUDGET=120 WORKERS=2); it goes on where an earlier run has ended"
	@echo "make check  lint, types, layers, lines that files share, and generated documents up to date"
	@echo "make job-speed  processor time of all-reduces of 10,000 and 100,000 elements, and of training 101,770 parameters"
	@echo "make bench  measured cycles against their bounds, simulation speed"
	@echo "make messages  messages of 64 words over seven hops of nodes that update weights: their cycles (MESSAGES=10000 SEED=)"
	@echo "make two-jobs  commands of two jobs on one ring of links: their cycles while the other rests, runs, stalls or fails"
	@echo "make large-rings  collectives on rings of 17, 32, 64 and 255 nodes: bits, words, cycles and speed (NODES=17,64 LATENCY=)"
	@echo "make synth  the bitstream of a board (BOARD=ulx3s-85f SEEDS=3 NATIVE=1), or one unit out of context"
	@echo "            (UNIT=floating.add, or several, SEEDS=3 PART= LANES= DSPS= DSP_REGISTERS=1 NATIVE=1)"
	@echo "make program  make a board's bitstream and load it by openFPGALoader (BOARD=ulx3s-85f CABLE=)"
	@echo "make synth-optimizer  what every rule and lane count of the optimizer costs (SEEDS=3 LANES= PART=)"
	@echo "make verilog  units as Verilog files with AXI4-Stream ports (UNIT=node, or several; LANES=, and parameters as in"
	@echo "            OPTIONS=\"weight_codec=mx9 masking=False\")"
	@echo "make registers  HTML pages and a C header of the registers, by PeakRDL from docs/registers.rdl"
	@echo "make docs   the pages of docs/ and of docstrings as a site, in build/site"
	@echo "make wave   an FST waveform of one fused update (NODES=)"
	@echo "make packets  the packets in that waveform, as text and as a waveform of their own"
	@echo "make clean  remove build/ (and, with ALL=1, the virtual environment); what was built for every clone stays in"
	@echo "            the cache folder: '.venv/bin/gradring cache' shows it, 'gradring cache clear' removes it"

# One stamp per set of dependencies, so that `make sim` installs neither test nor synthesis tools.
$(VENV)/.base: pyproject.toml constraints.txt
	@echo "Installing Python packages into $(VENV): up to 3 minutes"
	$(PYTHON) -m venv $(VENV)
	$(PIP_INSTALL) --editable .
	@touch $@

$(VENV)/.%: $(VENV)/.base pyproject.toml constraints.txt
	@echo "Installing Python packages into $(VENV), for $*: up to 3 minutes"
	$(PIP_INSTALL) --editable .[$*]
	@touch $@

# Options of the commands below, without blanks and lines where a variable is not set: make prints what it runs.
SIM_OPTIONS = $(strip $(call option,WORKLOAD,--workload) $(call option,NODES,--nodes) \
  $(call option,EPOCHS,--epochs) $(call option,STEPS,--steps) $(call option,SEED,--seed) \
  $(call option,THREADS,--threads) $(call option,PROCESSES,--processes) $(call option,TRANSPORT,--transport) $(call option,OPTIMIZER,--optimizer) \
  $(call option,HIDDEN,--hidden) $(call option,BATCH,--batch) $(call option,OVERLAP,--overlap) \
  $(call option,COMPUTE,--compute) $(call option,COMPUTE_FORMAT,--compute-format) $(call option,MACS,--macs) $(call option,TILING,--tiling) $(call option,ARITHMETIC,--arithmetic) \
  $(call option,LEARNING_RATE,--learning-rate) $(call option,WEIGHT_DECAY,--weight-decay) \
  $(call option,CLIP,--clip) $(call option,MOMENTS,--moments) $(call option,DENSITY,--density) \
  $(call option,WEIGHTS,--weights) $(call option,GRADIENTS,--gradients) \
  $(call option,FAULTS,--faults) $(call option,FAULT_SEED,--fault-seed) $(call option,SLOW_LINK,--slow-link) $(call option,LINKS,--links) \
  $(call option,ACTIVATIONS,--activations) $(call option,FAR,--far) $(call option,MEMORY,--memory) \
  $(call option,TOPOLOGY,--topology) $(call option,DISABLE,--disable) $(call option,ENABLE,--enable) \
  $(call option,SHAPE,--shape) \
  $(call option,STRAGGLER,--straggler) $(call option,QUORUM,--quorum) $(call option,LATE,--late) \
  $(call option,LAMBDA,--lambda) $(call option,DEADLINE,--deadline) $(call option,SKEW,--skew) \
  $(call option,CYCLES,--cycles) $(if $(filter-out 0 no,$(SWITCH_OUT)),--switch-out) \
  $(if $(filter-out 0 no,$(HOST_PORT)),--host-port) $(call option,PLANES,--state-planes) \
  $(call option,DEVICE,--device) $(call option,BOARD,--board) $(call option,BAUD,--baud) \
  $(if $(CHECKPOINT),--checkpoint $(if $(filter no,$(CHECKPOINT)),0,$(CHECKPOINT))) \
  $(if $(filter-out 0 no,$(RESUME)),--resume) $(call option,TENSORBOARD,--tensorboard) \
  $(if $(COMPARE),$(if $(filter 0 no,$(COMPARE)),--no-compare,--compare)))
SWEEP_OPTIONS = $(strip $(if $(filter full,$(SWEEP)),--full) $(call option,FORMATS,--formats) \
  $(call option,NODES,--nodes) $(call option,WORKLOAD,--workload) $(call option,EPOCHS,--epochs) \
  $(call option,STEPS,--steps) $(call option,JOBS,--jobs) $(call option,SCHEDULER,--scheduler) $(call option,COMPUTE_FORMATS,--compute-formats) \
  $(if $(filter 0 no,$(SYNTH)),--no-synth))
RELAY_OPTIONS = $(strip $(call option,SEEDS,--seeds) $(call option,EPOCHS,--epochs) $(call option,REPLAY,--replay) \
  $(if $(filter-out 0 no,$(NODES)),--nodes))
RELAY_NODES_OPTIONS = $(strip $(call option,HIDDEN,--hidden) $(call option,NODES,--nodes) \
  $(call option,MICROBATCH,--microbatch) $(call option,MICROBATCHES,--microbatches) $(call option,SETS,--sets) \
  $(call option,LEARNING_RATE,--rate) $(call option,MOMENTUM,--momentum) $(call option,FAR,--far) \
  $(call option,WORKER_FAR,--worker-far) \
  $(call option,SEED,--seed) $(call option,THREADS,--threads) $(call option,ARITHMETIC,--arithmetic) \
  $(call option,FORMATS,--format) $(if $(filter-out 0 no,$(PLATEAU)),--plateau) \
  $(if $(filter-out 0 no,$(UNDERFLOW)),--underflow) $(if $(filter resident,$(RELAY)),--resident) \
  $(if $(CHECKPOINT),--checkpoint $(if $(filter no,$(CHECKPOINT)),0,$(CHECKPOINT))) \
  $(if $(filter-out 0 no,$(RESUME)),--resume))
MIGRATE_OPTIONS = $(strip $(call option,NODES,--nodes) $(call option,STEPS,--steps) $(call option,AFTER,--after) \
  $(call option,OPTIMIZER,--optimizer) $(call option,HIDDEN,--hidden) $(call option,WEIGHTS,--weights) \
  $(call option,GRADIENTS,--gradients) $(call option,LATENCY,--latency) $(call option,INTERVAL,--interval) \
  $(call option,THREADS,--threads) $(call option,TRANSPORT,--transport) $(call option,SOURCE,--source) \
  $(call option,BOARD,--board) $(call option,DEVICE,--device) $(call option,KEY,--key) $(call option,OWNER_KEY,--owner-key) $(call option,SEED,--seed))
PREDICT_OPTIONS = $(strip $(call option,NODES,--nodes) $(call option,LATENCY,--link-latency) \
  $(call option,MODEL,--model) $(call option,FORMATS,--formats) $(call option,EXAMPLES,--examples) \
  $(call option,MACS,--macs) $(call option,OVERLAP,--overlap) $(call option,CHAKRA,--chakra) \
  $(if $(filter-out 0 no,$(VALIDATE)),--validate))
TILING_OPTIONS = $(strip $(if $(filter-out 0 no,$(FULL)),--full) $(call option,METHODS,--methods) \
  $(call option,SEEDS,--seeds) $(call option,ARITHMETIC,--arithmetic))
ESTIMATE_OPTIONS = $(strip $(if $(TARGETS),--targets "$(TARGETS)") $(if $(LENGTHS),--lengths "$(LENGTHS)") $(call option,EXAMPLES,--examples) \
  $(if $(filter 0 no,$(RATIOS)),--no-ratios))
QUANTIZE_OPTIONS = $(strip $(if $(filter-out 0 no,$(HOST_PORT)),--host-port) \
  $(call option,WEIGHTS,--weights) $(if $(TRAIN),--train) $(call option,NODES,--nodes) \
  $(call option,SEED,--seed) $(call option,THREADS,--threads) $(call option,CALIBRATION,--calibration) \
  $(call option,PERCENTILE,--percentile) $(call option,SCHEME,--scheme) $(call option,BITS,--bits) \
  $(call option,ROUNDING,--rounding) $(call option,EXTREMA,--extrema) $(if $(PER_OUTPUT),--per-output) \
  $(if $(ONNX),--onnx))
WAVE_OPTIONS = $(strip $(call option,NODES,--nodes))
TABLE_OPTIONS = $(strip $(call option,SEEDS,--seeds) $(call option,LANES,--lanes) \
  $(call option,PART,--part))
VERILOG_OPTIONS = $(strip $(call option,UNIT,--unit) $(call option,LANES,--lanes) $(call option,OPTIONS,--set))
BITSTREAM_OPTIONS = $(strip $(call option,SEEDS,--seeds) $(if $(NATIVE),--native))
SYNTH_OPTIONS = $(strip $(foreach unit,$(UNIT),--unit $(unit)) $(call option,SEEDS,--seeds) $(call option,PART,--part) \
  $(call option,FREQ,--freq) $(call option,LANES,--lanes) $(call option,DSPS,--dsps) \
  $(if $(DSP_REGISTERS),--dsp-registers) $(if $(NATIVE),--native))
PROGRAM_OPTIONS = $(strip $(call option,CABLE,--cable) $(if $(NATIVE),--native))

setup: $(VENV)/.base $(VENV)/.test $(VENV)/.check $(VENV)/.synth $(VENV)/.onnx $(VENV)/.registers $(VENV)/.wave \
  $(VENV)/.docs $(VENV)/.tensorboard $(VENV)/.tiling $(VENV)/.cluster $(VENV)/.chakra $(VENV)/.mpi

sim: $(VENV)/.base $(if $(TENSORBOARD),$(VENV)/.tensorboard)
	$(BIN)/gradring $(if $(filter-out 0 no,$(RELAY)),relay-nodes $(RELAY_NODES_OPTIONS),train $(SIM_OPTIONS))

sweep: $(VENV)/.base $(if $(filter 0 no,$(SYNTH)),,$(VENV)/.synth) $(if $(SCHEDULER),$(VENV)/.cluster)
	$(BIN)/gradring sweep $(SWEEP_OPTIONS)

tiling: $(VENV)/.base $(VENV)/.tiling
	$(BIN)/gradring tiling $(TILING_OPTIONS)

predict: $(VENV)/.base $(if $(CHAKRA),$(VENV)/.chakra)
	$(BIN)/gradring predict $(PREDICT_OPTIONS)

predict-points: $(VENV)/.base
	$(BIN)/python -m host.predict.points
	$(BIN)/gradring predict --validate

memory: $(VENV)/.base
	$(BIN)/gradring memory

relay: $(VENV)/.base
	$(BIN)/gradring relay $(RELAY_OPTIONS)

slow-link: $(VENV)/.base
	$(BIN)/python -m host.reports.slow_link

migrate: $(VENV)/.base
	$(BIN)/gradring migrate $(MIGRATE_OPTIONS)

migrate-failures: $(VENV)/.test
	$(BIN)/python -m tests.host.migration.failures

estimate: $(VENV)/.base
	$(BIN)/gradring estimate $(ESTIMATE_OPTIONS)

quantize: $(VENV)/.base $(VENV)/.synth $(if $(ONNX),$(VENV)/.onnx)
	$(BIN)/gradring quantize $(QUANTIZE_OPTIONS)

test: $(VENV)/.test $(VENV)/.check $(VENV)/.synth $(VENV)/.onnx $(VENV)/.registers $(VENV)/.docs \
  $(VENV)/.tensorboard $(VENV)/.tiling $(VENV)/.cluster $(VENV)/.chakra $(VENV)/.mpi
	$(strip $(BIN)/python -m pytest -n $(or $(WORKERS),auto) --dist worksteal $(TESTS))

# Tests start hundreds of processes, each of which would compile all modules again.
test: export PYTHONDONTWRITEBYTECODE =

hostile: $(VENV)/.test
	$(BIN)/python -m tests.tenants $(call option,REQUESTS,--requests) $(call option,SEED,--seed) \
	  $(call option,JOBS,--jobs)

pairs: $(VENV)/.test
	$(BIN)/python -m tests.pairs $(call option,PAIRS,--pairs) $(call option,NODES,--nodes) \
	  $(call option,SEED,--seed) $(call option,JOBS,--jobs)

random-programs: $(VENV)/.test
	$(BIN)/python -m tests.programs $(call option,PROGRAMS,--programs) $(call option,SEED,--seed) \
	  $(call option,JOBS,--jobs) $(if $(REMOTE),--remote) $(call option,FAULTS,--faults)

partition: $(VENV)/.test
	$(BIN)/python -m tests.partition $(call option,NODES,--nodes) $(call option,LATENCY,--latencies) \
	  $(call option,PROCESSES,--processes)

centroids: $(VENV)/.base
	$(BIN)/python -m host.training.centroid_tables $(call option,SEEDS,--seeds) $(call option,CENTROIDS,--centroids) \
	  $(call option,NODES,--nodes) $(call option,EPOCHS,--epochs) $(call option,LEARNING_RATE,--learning-rate) \
	  $(call option,COMPUTE,--compute)

late: $(VENV)/.base
	$(BIN)/python -m host.training.late_learning
	$(BIN)/python -m host.reports.late build/late
	$(BIN)/python -m host.training.late_run
	$(BIN)/python -m host.reports.late build/late-run

wrong-commands: $(VENV)/.test
	$(BIN)/python -m tests.wrong_commands $(call option,CASES,--cases) $(call option,SEED,--seed) \
	  $(if $(filter-out 0 no,$(SIGNALS)),--signals)

launch-faults: $(VENV)/.test
	$(BIN)/python -m tests.launch_faults $(call option,FAULTS,--faults) $(call option,RANKS,--ranks) \
	  $(call option,SEED,--seed) $(call option,JOBS,--jobs)

torch-scripts: $(VENV)/.test $(VENV)/.torch
	$(BIN)/python -m tests.torch_scripts $(call option,SCRIPTS,--scripts) $(call option,RANKS,--ranks) \
	  $(call option,GRADIENTS,--gradients) $(call option,SEED,--seed)

slow-ranks: $(VENV)/.test $(VENV)/.torch
	$(BIN)/python -m tests.slow_ranks $(call option,CASES,--cases) $(call option,RANKS,--ranks) \
	  $(call option,SLOW,--slow) $(call option,SEED,--seed)

damaged-files: $(VENV)/.test
	$(BIN)/python -m tests.damaged $(call option,FILES,--files) $(call option,SEED,--seed)

faults: $(VENV)/.test
	$(BIN)/python -m tests.faults $(call option,FAULTS,--faults) $(call option,SEED,--seed) $(call option,JOBS,--jobs)

mutate: $(VENV)/.test
	$(BIN)/python -m tests.mutation $(call option,FILES,--files) $(call option,MUTANTS,--mutants) \
	  $(call option,SEED,--seed) $(call option,BUDGET,--budget) $(call option,WORKERS,--workers)

check: $(VENV)/.check
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo
	$(BIN)/pylint --score=no hdl sim host boards gradring
	$(BIN)/python -m host.documents --check

bench: $(VENV)/.test
	$(BIN)/gradring bench

messages: $(VENV)/.test
	$(BIN)/python -m tests.messages $(call option,MESSAGES,--messages) $(call option,SEED,--seed)

two-jobs: $(VENV)/.base
	$(BIN)/python -m host.reports.two_jobs

large-rings: $(VENV)/.base
	$(BIN)/python -m host.predict.large_rings $(call option,NODES,--nodes) $(call option,LATENCY,--latency)

job-speed: $(VENV)/.base
	$(BIN)/python -m host.jobs.speed

synth: $(VENV)/.synth
ifdef BOARD
	$(BIN)/python -m boards.bitstream --board $(BOARD) $(BITSTREAM_OPTIONS)
else
	$(BIN)/python -m boards.synth $(SYNTH_OPTIONS)
endif

program: $(VENV)/.synth
	$(BIN)/python -m boards.bitstream --board "$(BOARD)" --program $(PROGRAM_OPTIONS)

synth-optimizer: $(VENV)/.synth
	$(BIN)/python -m boards.optimizer_table $(TABLE_OPTIONS)

verilog: $(VENV)/.base
	$(BIN)/python -m boards.verilog $(VERILOG_OPTIONS)

registers: $(VENV)/.registers
	$(BIN)/peakrdl html docs/registers.rdl -o build/registers/html
	$(BIN)/peakrdl c-header docs/registers.rdl -o build/registers/gradring_registers.h

docs: $(VENV)/.docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

wave: $(VENV)/.base
	$(BIN)/gradring wave $(WAVE_OPTIONS)

packets: $(VENV)/.wave
	$(BIN)/gradring packets

clean:
	rm -rf build $(if $(ALL),$(VENV))
	@echo "The cache folder, which all clones share, stays: 'gradring cache clear' removes it"
