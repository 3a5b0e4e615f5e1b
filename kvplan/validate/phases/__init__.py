"""The phases of a validation: one module each, all of one shape, `run(session, filled) -> PhaseResult`.

A phase works on a cache that is already filled and proved. It checks its kernel at the validated shape, and times it
where there is a GPU and everything is green. Its verdict is one sentence about itself. The first format of a run is the
16-bit one; `session.native` holds its phases, the figures that others are compared with.
"""
