# `make help` lists all targets, `make help-sim` the variables of one. host/make has both: it reads the variables of
# make's command line from MAKEFLAGS, checks them, installs what the target needs into .venv, and runs its command.

# Of the variables below, only PYTHON can be set on the command line.

# The Python that runs host/make, and makes .venv.
PYTHON := python3

override targets := help setup clean docs \
  sim migrate late streaming centroids quantize \
  sweep predict predict-points estimate tiling memory bench slow-link two-jobs large-rings job-speed \
  synth program synth-optimizer verilog registers wave packets \
  test check features known-answers pairs run-pairs random-programs partition messages torch-scripts mutate \
  faults hostile launch-faults slow-ranks migrate-failures damaged-files wrong-commands

# With -e, the MAKEFLAGS of the environment has the names of variables in place of their values.
override export GRADRING_MAKEFLAGS = $(MAKEFLAGS)

# A text as one word of a shell, which takes nothing in it as its own.
override quoted = '$(subst ','\'',$(1))'

# `+`: make -n runs it too, and it then prints the commands of the target in place of running them.
override define run
+@$(foreach text,$(PYTHON) -m host.make $@ $(MAKECMDGOALS),$(call quoted,$(text)))
endef

.PHONY: $(targets)
$(targets):
	$(run)

# The variables of a target; an extra of pyproject.toml, or the packages that all need, as .venv/.base.
help-% .venv/.%: always
	$(run)

always: ;

# An error that names the target that was meant.
.DEFAULT:
	$(run)
