"""Streaming encoder and decoder for NVFP4 packets."""

from amaranth.hdl import Module

from hdl.features.mx import coding
from hdl.features.mx.packing import Packer, Unpacker
from hdl.features.nvfp4.dequantizer import Dequantizer
from hdl.features.nvfp4.quantizer import Quantizer, quantizer_latency
from hdl.streams.stream import connect_stream

__all__ = ["Decoder", "Encoder"]


class Encoder(coding.Encoder):
    """Encode packets of elements: a :class:`Quantizer` and a :class:`~hdl.features.mx.packing.Packer`.

    Parameters, members and throughput are as in :class:`hdl.features.mx.coding.Encoder`, except that ``codec`` is an
    :class:`~hdl.features.nvfp4.format.NVFP4`. The first words of a block are offered :attr:`latency` cycles after its
    last beat was accepted, if its first beat completes a word.
    """

    @property
    def latency(self):
        """Latency in cycles from accepting a block's last beat to offering its first beat's words."""
        return quantizer_latency(self._codec, self._lanes) + Packer.latency

    def elaborate(self, platform):
        m = Module()
        m.submodules.quantizer = quantizer = Quantizer(codec=self._codec, lanes=self._lanes, format=self._format)
        m.submodules.packer = packer = Packer(codec=self._codec, lanes=self._lanes, words=self.words)
        for source, sink in ((self.i, quantizer.i), (quantizer.o, packer.i), (packer.o, self.o)):
            connect_stream(m, source, sink)
        return m


class Decoder(coding.Decoder):
    """Decode packets of words: an :class:`~hdl.features.mx.packing.Unpacker` and a :class:`Dequantizer`.

    Parameters, members and throughput are as in :class:`hdl.features.mx.coding.Decoder`, except that ``codec`` is an
    :class:`~hdl.features.nvfp4.format.NVFP4`. A beat is offered :attr:`latency` cycles after its last word was
    accepted.
    """

    @property
    def latency(self):
        """Latency in cycles from accepting a beat's last word to offering its elements."""
        return Unpacker.latency + Dequantizer.latency

    def elaborate(self, platform):
        m = Module()
        m.submodules.unpacker = unpacker = Unpacker(codec=self._codec, lanes=self._lanes, words=self.words)
        m.submodules.dequantizer = dequantizer = Dequantizer(
            codec=self._codec, lanes=self._lanes, format=self._format)
        for source, sink in ((self.i, unpacker.i), (unpacker.o, dequantizer.i), (dequantizer.o, self.o)):
            connect_stream(m, source, sink)
        m.d.comb += self.error.eq(unpacker.error)
        return m
