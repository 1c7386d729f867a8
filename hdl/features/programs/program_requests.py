"""Host port states for loading and running programs, and for checking edits."""

from hdl.control.protocol import Opcode, Status

__all__ = ["program_states"]


def program_states(m, port, header, address, word, second, third, status, take, final, respond, refuse, expect_end):
    """Add the states of LOAD_PROGRAM, RUN and EDIT to the host port, given its signals and actions.

    With one program bank, a run starts when its last word is transferred; with two banks, it starts when the whole
    run is known, since the set of the run determines the bank.
    """
    banked = hasattr(port, "banks")

    def judge():
        m.next = "Judge"

    with m.State("Load-Header"):
        m.d.comb += [port.program.valid.eq(1), port.program.payload.first.eq(1),
                     port.program.payload.data.eq(address)]
        m.next = "Load-Words"
        with m.If(header.count == 0):
            respond(1)

    with m.State("Load-Words"):
        m.d.comb += [port.program.valid.eq(word.valid), word.ready.eq(1)]
        with m.If(take):
            expect_end(lambda: respond(1))

    with m.State("Run"):
        if not banked:
            m.d.comb += port.run.valid.eq(word.valid & word.payload.last & final)
        m.d.comb += word.ready.eq(1)
        with m.If(take):
            m.d.sync += second.eq(third)
            if banked:
                m.d.sync += third.eq(word.payload.data)
            expect_end(judge if banked else respond)

    if banked:
        with m.State("Judge"):
            with m.If(header.opcode == Opcode.EDIT):
                m.d.comb += port.banks.ask.eq(1)
                m.d.sync += status.eq(port.banks.verdict)
                respond()
            with m.Elif(~port.banks.loaded):
                refuse(Status.NOT_LOADED)
            with m.Else():
                m.d.comb += port.banks.turn.eq(1)
                m.next = "Start"

        with m.State("Start"):
            m.d.comb += port.run.valid.eq(1)
            respond()
