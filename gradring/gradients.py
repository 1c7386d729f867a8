"""Gradients that ``gradring launch --record-gradients`` or ``GRADRING_RECORD_GRADIENTS`` has recorded.

::

    from gradring.gradients import addends_of, load

    for addends in addends_of(load("gradients")):
        print(addends.parameter, addends.step, addends.values.shape)
"""

from host.gradients.files import Addends, Sample, addends_of, load

__all__ = ["Addends", "Sample", "addends_of", "load"]
