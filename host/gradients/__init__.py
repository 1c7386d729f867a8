"""Files of gradients that training runs have recorded: selection of elements, files, and the set in this package.

:mod:`host.gradients.files` reads and writes the files. :mod:`host.pytorch.recording` records gradients.
"""
