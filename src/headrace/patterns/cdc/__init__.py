"""The shop whose database the demo captures: its generator and its model. Its flows are those of `headrace.cdc`."""
