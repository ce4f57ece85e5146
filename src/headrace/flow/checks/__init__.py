"""What is found wrong with a flow before it starts: its triggers, modes and operators, its state, its batch size."""
