"""Files of gradients that training runs have recorded: selection of elements, and files.

:mod:`host.gradients.files` reads and writes the files. :mod:`host.pytorch.recording` records gradients.
"""
